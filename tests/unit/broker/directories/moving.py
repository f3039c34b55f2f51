"""Replicas of one broker that move between its directories: what tests of that ask and look at."""

import asyncio
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.records.batch import decode_records
from scriba.records.header import walk
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log
from scriba.wire.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from tests.unit.broker.brokers import Brokers

ONE, TWO = "/data/one", "/data/two"
DIRS: dict[str, Any] = {"log_dirs": f"{ONE},{TWO}", "metadata_log_dir": ONE}
BROKER, TOPIC = 4, 2
TWO_DIRS: dict[str, Any] = {"log_dirs": "/data/one,/data/two", "metadata_log_dir": "/data/meta"}


async def alter(
    brokers: Brokers, path: str, topic: str = "t", index: int = 0, broker_id: int = 1
) -> ErrorCode:
    peer = await brokers.dial(broker_id)
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[index])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])
    answer = await peer.call(request, 2, AlterReplicaLogDirsResponse)
    peer.close()
    (told,) = answer.results
    assert (told.topic_name, told.partitions[0].partition_index) == (topic, index)
    return ErrorCode(told.partitions[0].error_code)


async def configure(brokers: Brokers, kind: int, name: str, **values: Any) -> None:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=str(value))
        for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await brokers.nodes[1].metadata.call(
        IncrementalAlterConfigsRequest(resources=[resource]), 1
    )
    assert [each.error_code for each in answer.responses] == [0]


def home(brokers: Brokers, topic: str = "t", broker_id: int = 1) -> str:
    found = brokers.nodes[broker_id].replicas.home(brokers.partition(broker_id, topic))
    assert found is not None
    return found.path


def elsewhere(path: str) -> str:
    return TWO if path == ONE else ONE


def entries(brokers: Brokers, topic: str = "t", broker_id: int = 1) -> list[str]:
    """What is in the directories under the topic's name."""
    disk = brokers.nodes[broker_id].world.disk
    found = [f"{path}/{name}" for path in (ONE, TWO) for name in disk.list(path)]
    return [each for each in found if each.rpartition("/")[2].startswith(f"{topic}-")]


def values(partition: Partition) -> list[bytes]:
    """What is in a log, by its offsets: as it is in the files, in memory or not."""
    store, found = partition.log, []
    for segment in store._segments:
        data = store._disk.read(segment.path(".log"))[: segment.size]
        for position, header in walk(data):
            batch = data[position : position + header.size]
            found += [r for r in decode_records(batch) if r.offset >= store.start_offset]
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "none twice"
    return [record.value or b"" for record in found]


def kinds(node: Node) -> list[EventKind]:
    return [event.kind for event in node.events.page(0, 256).events]


async def filled(
    brokers: Brokers, count: int = 30, size: int = 100_000, **configs: Any
) -> list[bytes]:
    """A topic with one replica, in segments of some records."""
    settings = {"segment.bytes": "1048576", **{k.replace("_", "."): v for k, v in configs.items()}}
    await brokers.create("t", (1,), configs=settings)
    sent = [b"%05d" % n + b"." * size for n in range(count)]
    for value in sent:
        assert await brokers.produce(1, "t", value) is ErrorCode.NONE
    return sent


async def moved_to(brokers: Brokers, path: str, topic: str = "t", broker_id: int = 1) -> None:
    await brokers.until(lambda: home(brokers, topic, broker_id) == path)
    await brokers.until(lambda: EventKind.DIR_MOVE_DONE in kinds(brokers.nodes[broker_id]))


async def slow(brokers: Brokers, rate: int) -> None:
    limit = {"replica_alter_log_dirs_io_max_bytes_per_second": rate}
    await configure(brokers, BROKER, "1", **limit)


async def one_in_each_directory(brokers: Brokers) -> dict[str, str]:
    """Topics `t` and `u` with a record each; where their only replicas lie."""
    for topic in "tu":
        await brokers.create(topic, (1,))
        assert await brokers.produce(1, topic, b"of " + topic.encode()) is ErrorCode.NONE
    places = {topic: home(brokers, topic) for topic in "tu"}
    assert places["t"] != places["u"]
    return places


def offline(brokers: Brokers, broker_id: int = 1) -> list[str]:
    return [each.path for each in brokers.nodes[broker_id].replicas.dirs if each.offline]


def held_back(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Futures of an earlier run are not open before this is set: reading them takes a while."""
    gate, open_future = asyncio.Event(), LogDir.open_future

    async def open_later(directory: LogDir, *args: Any) -> Log:
        await gate.wait()
        return await open_future(directory, *args)

    monkeypatch.setattr(LogDir, "open_future", open_later)
    return gate


async def restarted(brokers: Brokers) -> None:
    await brokers.reboot(1, "kill")
    await brokers.until(lambda: brokers.nodes[1].replicas.get("t", 0) is not None)
