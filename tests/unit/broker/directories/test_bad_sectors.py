"""A device that does not give what was written: one directory goes, all others are served."""

import asyncio
import errno
import os

import pytest

from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.testing.sim.world.disk import SimFile
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.directories.moving import (
    TWO_DIRS,
    alter,
    elsewhere,
    filled,
    home,
    kinds,
    offline,
    one_in_each_directory,
)


def failing(
    monkeypatch: pytest.MonkeyPatch, brokers: Brokers, directory: str, code: int = errno.EIO
) -> list[str]:
    """Nothing is in memory any more, and what is loaded from here fails; what was asked for."""
    load, asked = SimFile.load, []

    async def load_or_fail(file: SimFile, offset: int, n: int) -> None:
        if file.path.startswith(directory):
            asked.append(file.path)
            raise OSError(code, os.strerror(code), file.path)
        await load(file, offset, n)

    monkeypatch.setattr(SimFile, "load", load_or_fail)
    brokers.sim.host("b1").disk_faults.cold = 1.0
    return asked


def closed(brokers: Brokers, topics: str = "tu") -> None:
    """What a read needs of their files is read again."""
    for topic in topics:
        brokers.partition(1, topic).log.close_if_idle(even_if_busy=True)


async def fetched(brokers: Brokers) -> dict[str, PartitionData]:
    peer = await brokers.dial(1)
    topics = brokers.nodes[1].image.topics_by_name
    asked = [
        FetchTopic(
            topic_id=topics[name].id,
            partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
        )
        for name in "tu"
    ]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=asked)
    answer = await peer.call(request, 17, FetchResponse)
    peer.close()
    assert answer.error_code == ErrorCode.NONE
    names = {topics[name].id: name for name in "tu"}
    return {names[each.topic_id]: each.partitions[0] for each in answer.responses}


def test_a_bad_sector_in_one_directory_leaves_a_fetch_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        closed(brokers)
        failing(monkeypatch, brokers, brokers.partition(1, "t").log.directory)
        told = await fetched(brokers)
        assert told["t"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told["u"].records
        assert offline(brokers) == [places["t"]]

    play(script, count=1, **TWO_DIRS)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_no_file_to_be_had_fails_one_partition_of_a_fetch_and_no_directory(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async def script(brokers: Brokers) -> None:
        await one_in_each_directory(brokers)
        closed(brokers)
        bad = brokers.partition(1, "t").log.directory
        with pytest.MonkeyPatch.context() as meanwhile:
            failing(meanwhile, brokers, bad, code)
            told = await fetched(brokers)
        assert told["t"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told["u"].records
        told = await fetched(brokers)
        assert told["t"].records
        assert not offline(brokers)

    play(script, count=1, **TWO_DIRS)


def test_a_bad_sector_amid_the_records_takes_its_directory_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        assert await brokers.produce(1, "t", b"." * 200_000) is ErrorCode.NONE
        bad = brokers.partition(1, "t").log.directory
        failing(monkeypatch, brokers, bad)
        # All that tells where the records lie is in memory.
        brokers.sim.host("b1").disk_faults.cold = 0.0
        monkeypatch.setattr(SimFile, "resident", lambda file, *_: not file.path.startswith(bad))
        with pytest.raises((ConnectionError, EOFError)):
            await fetched(brokers)
        assert offline(brokers) == [places["t"]]
        told = await fetched(brokers)
        assert told["t"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told["u"].records

    play(script, count=1, **TWO_DIRS)


def test_a_bad_sector_of_a_leader_holds_up_no_other_partition_of_a_follower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = {}
        for topic in "tu":
            await brokers.create(topic, (1, 2))
            assert await brokers.produce(1, topic, b"first") is ErrorCode.NONE
            places[topic] = home(brokers, topic)
        assert places["t"] != places["u"]
        brokers.kill(2)
        for topic in "tu":
            assert await brokers.produce(1, topic, b"second", acks=1) is ErrorCode.NONE
        closed(brokers)
        failing(monkeypatch, brokers, brokers.partition(1, "t").log.directory)
        await brokers.boot(2)
        await brokers.until(lambda: brokers.partition(2, "u").log.end_offset == 2)
        assert offline(brokers) == [places["t"]]
        assert EventKind.REQUEST_FAILED not in kinds(brokers.nodes[1])

    play(script, count=2, **TWO_DIRS)


def test_a_bad_sector_in_the_source_of_a_move_ends_the_move_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        source = home(brokers)
        asked = failing(monkeypatch, brokers, f"{source}/t-0")
        assert await alter(brokers, elsewhere(source)) is ErrorCode.NONE
        await brokers.until(lambda: bool(asked))
        await asyncio.sleep(5)
        assert offline(brokers) == [source]
        node = brokers.nodes[1]
        assert not node.replicas.moves
        assert EventKind.DIR_MOVE_ENDED in kinds(node)
        assert brokers.processes[1].alive

    play(script, count=1, **TWO_DIRS)
