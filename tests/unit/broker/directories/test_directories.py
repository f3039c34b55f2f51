"""Several directories: the metadata says which replica lies where, and where it lies itself."""

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scriba.broker.node import Node
from scriba.config import StartError
from scriba.controller.image import DIRECTORY_UNASSIGNED
from scriba.events import EventKind
from scriba.records.batch import decode_records
from scriba.records.header import walk
from scriba.runtime.loop.loop import run
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings
from scriba.storage.directory.meta_properties import MetaProperties
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.stored import PartitionChangeRecord, decode_metadata_record
from scriba.wire.schema import Message

Script = Callable[[Node], Awaitable[None]]
METADATA = "__cluster_metadata-0"


def play(script: Script, dirs: list[Path], **settings: str) -> None:
    given = {
        "log.dirs": ",".join(map(str, dirs)),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }

    async def main() -> None:
        async with RealWorld() as world:
            node = Node(NodeSettings.parse(given), world)
            await node.start()
            try:
                await script(node)
            finally:
                await node.stop()

    run(main())


async def create(node: Node, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await node.controller.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert answer.topics[0].error_code == 0
    await node.replicas.settled()


def directory_id(folder: Path) -> bytes:
    found = MetaProperties.decode((folder / "meta.properties").read_bytes()).directory_id
    assert found is not None
    return found


def places(node: Node, topic: str) -> dict[int, bytes]:
    found = node.image.topics_by_name[topic].partitions
    return {index: partition.directory(node.id) for index, partition in found.items()}


def lying(dirs: list[Path], topic: str) -> dict[int, bytes]:
    return {
        int(entry.name.rpartition("-")[2]): directory_id(folder)
        for folder in dirs
        for entry in folder.glob(f"{topic}-*")
    }


def metadata_records(folder: Path) -> list[Message]:
    found: list[Message] = []
    for segment in sorted((folder / METADATA).glob("*.log")):
        data = segment.read_bytes()
        for position, header in walk(data):
            if not header.is_control:
                batch = data[position : position + header.size]
                found += [decode_metadata_record(r.value) for r in decode_records(batch) if r.value]
    return found


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def test_the_metadata_says_in_which_directory_each_replica_lies(dirs: list[Path]) -> None:
    async def first(node: Node) -> None:
        await create(node, "spread", 5)
        assert places(node, "spread") == lying(dirs, "spread")
        assert sorted(Counter(places(node, "spread").values()).values()) == [2, 3]

    async def after_a_restart(node: Node) -> None:
        assert places(node, "spread") == lying(dirs, "spread")

    play(first, dirs)
    play(after_a_restart, dirs)


def test_a_replica_that_was_moved_is_told_of_with_the_next_start(dirs: list[Path]) -> None:
    async def first(node: Node) -> None:
        await create(node, "moved", 2)

    play(first, dirs)
    home = next(folder for folder in dirs if (folder / "moved-0").exists())
    other = next(folder for folder in dirs if folder is not home)
    shutil.move(home / "moved-0", other / "moved-0")

    async def then(node: Node) -> None:
        assert places(node, "moved")[0] == directory_id(other)
        assert DIRECTORY_UNASSIGNED not in places(node, "moved").values()

    play(then, dirs)


def test_the_metadata_log_carries_the_directories(dirs: list[Path]) -> None:
    async def script(node: Node) -> None:
        await create(node, "noted", 4)

    play(script, dirs)
    told = {}
    for record in metadata_records(dirs[0]):
        if isinstance(record, PartitionChangeRecord) and record.directories:
            told[record.partition_id] = record.directories[0]
    assert told == lying(dirs, "noted")


def test_one_directory_needs_no_telling(tmp_path: Path) -> None:
    async def script(node: Node) -> None:
        await create(node, "lone", 2)
        assert set(places(node, "lone").values()) == {directory_id(tmp_path)}

    play(script, [tmp_path])
    changes = [r for r in metadata_records(tmp_path) if isinstance(r, PartitionChangeRecord)]
    assert not any(record.directories for record in changes)


def test_a_directory_that_vanishes_is_offline_and_the_others_take_new_replicas(
    dirs: list[Path],
) -> None:
    async def script(node: Node) -> None:
        await create(node, "before", 2)
        shutil.rmtree(dirs[1])
        await create(node, "after", 4)
        assert not dirs[1].exists()
        assert [each.offline for each in node.replicas.dirs] == [False, True]
        told = [event for event in node.events.since() if event.kind is EventKind.LOG_DIR_OFFLINE]
        assert [event.about for event in told] == [str(dirs[1])]
        await create(node, "later", 4)
        assert set(lying(dirs[:1], "later")) == {0, 1, 2, 3}

    play(script, dirs)


# ---- a directory for the metadata ----


def test_the_metadata_log_may_have_a_directory_of_its_own(dirs: list[Path], tmp_path: Path) -> None:
    apart = tmp_path / "metadata"

    async def first(node: Node) -> None:
        await create(node, "kept", 3)
        assert directory_id(apart) not in places(node, "kept").values()
        assert node.data_dirs == list(map(str, dirs))

    async def after_a_restart(node: Node) -> None:
        assert len(node.image.topics_by_name["kept"].partitions) == 3

    play(first, dirs, metadata_log_dir=str(apart))
    assert (apart / METADATA).is_dir()
    assert not any((folder / METADATA).exists() for folder in dirs)
    play(after_a_restart, dirs, metadata_log_dir=f"{apart}/")


def test_the_metadata_log_may_lie_in_any_of_the_directories(dirs: list[Path]) -> None:
    async def script(node: Node) -> None:
        await create(node, "kept", 4)
        assert places(node, "kept") == lying(dirs, "kept")

    play(script, dirs, metadata_log_dir=str(dirs[1]))
    assert (dirs[1] / METADATA).is_dir()
    assert not (dirs[0] / METADATA).exists()


def test_metadata_in_another_place_than_it_should_be_is_not_overlooked(
    dirs: list[Path], tmp_path: Path
) -> None:
    async def script(node: Node) -> None:
        pass

    play(script, dirs)
    with pytest.raises(StartError, match=r"one holds __cluster_metadata-0.*metadata\.log\.dir="):
        play(script, dirs, metadata_log_dir=str(tmp_path / "metadata"))
    play(script, dirs)
