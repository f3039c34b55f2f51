"""What a device refuses beside records: it takes one directory offline, and never the node."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.jobs.schedule import removal_pass, retention_pass
from scriba.config import StartError
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.testing.sim.world.disk import SimDisk, SimFile
from scriba.wire.messages import admin
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.directories.moving import (
    TWO_DIRS,
    alter,
    elsewhere,
    entries,
    filled,
    home,
    kinds,
    offline,
    one_in_each_directory,
    values,
)


def refusing(
    monkeypatch: pytest.MonkeyPatch, brokers: Brokers, call: str, beginning: str, code: int
) -> list[str]:
    """A call of the disk fails for paths of this beginning; those it was asked for."""
    disk = brokers.nodes[1].world.disk
    real: Callable[..., Any] = getattr(disk, call)
    asked: list[str] = []

    def refuse(path: str, *more: Any) -> Any:
        if path.startswith(beginning):
            asked.append(path)
            raise OSError(code, os.strerror(code), path)
        return real(path, *more)

    monkeypatch.setattr(disk, call, refuse)
    return asked


async def delete(brokers: Brokers, topic: str) -> None:
    request = admin.DeleteTopicsRequest(
        topics=[admin.DeleteTopicState(name=topic)], timeout_ms=1000
    )
    await brokers.nodes[1].metadata.call(request, 6)
    await brokers.nodes[1].replicas.applied()


async def goes_on(brokers: Brokers, topic: str) -> None:
    assert await brokers.produce(1, topic, b"goes on") is ErrorCode.NONE
    assert brokers.processes[1].alive


def test_files_that_retention_cannot_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        node, partition = brokers.nodes[1], brokers.partition(1, "t")
        partition.log.roll(node.world.clock.now())
        partition.move_start(1)
        await retention_pass(node, node.world.clock.now())
        asked = refusing(monkeypatch, brokers, "unlink", places["t"], errno.EROFS)
        await brokers.until(lambda: bool(asked), seconds=3600)
        await asyncio.sleep(1)
        assert offline(brokers) == [places["t"]]
        await goes_on(brokers, "u")

    play(script, count=1, **TWO_DIRS)


def test_a_topic_that_cannot_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        asked = refusing(monkeypatch, brokers, "rename", f"{places['t']}/t-0", errno.EIO)
        await delete(brokers, "t")
        assert asked
        assert offline(brokers) == [places["t"]]
        await goes_on(brokers, "u")

    play(script, count=1, **TWO_DIRS)


def test_a_deleted_topic_whose_files_cannot_be_removed_keeps_no_other_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        asked = refusing(monkeypatch, brokers, "unlink", places["t"], errno.EROFS)
        await delete(brokers, "t")
        await delete(brokers, "u")
        disk = brokers.nodes[1].world.disk
        await brokers.until(lambda: bool(asked), seconds=300)

        def gone() -> bool:
            return not any(each.startswith("u-0") for each in disk.list(places["u"]))

        await brokers.until(gone, seconds=300)
        assert offline(brokers) == [places["t"]]

    play(script, count=1, **TWO_DIRS)


def test_files_of_a_deleted_topic_that_a_full_device_does_not_remove_go_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        node = brokers.nodes[1]
        with pytest.MonkeyPatch.context() as meanwhile:
            asked = refusing(meanwhile, brokers, "unlink", places["t"], errno.ENOSPC)
            await delete(brokers, "t")
            await brokers.until(lambda: bool(asked), seconds=300)
        await asyncio.sleep(5)
        await removal_pass(node, node.world.clock.now())
        assert not any(each.startswith("t-0") for each in node.world.disk.list(places["t"]))
        assert not offline(brokers)

    play(script, count=1, **TWO_DIRS)


def test_the_old_directory_of_a_move_that_fails_once_the_new_one_has_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers, count=3)
        source = home(brokers)
        asked = refusing(monkeypatch, brokers, "rename", f"{source}/t-0", errno.EROFS)
        assert await alter(brokers, elsewhere(source)) is ErrorCode.NONE
        await brokers.until(lambda: EventKind.DIR_MOVE_DONE in kinds(brokers.nodes[1]))
        assert asked
        assert offline(brokers) == [source]
        assert values(brokers.partition(1, "t")) == sent
        assert f"{source}/t-0" in entries(brokers)
        await goes_on(brokers, "t")
        await brokers.reboot(1, "stop")
        await brokers.until(lambda: brokers.nodes[1].replicas.get("t", 0) is not None)
        assert home(brokers) == elsewhere(source)

    play(script, count=1, **TWO_DIRS)


def test_a_bad_sector_amid_the_records_that_a_move_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        source = home(brokers)
        read = SimFile.pread_into

        def read_or_fail(file: SimFile, view: memoryview, offset: int) -> int:
            if file.path.startswith(f"{source}/t-0") and view.nbytes > 50_000:
                raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
            return read(file, view, offset)

        monkeypatch.setattr(SimFile, "pread_into", read_or_fail)
        assert await alter(brokers, elsewhere(source)) is ErrorCode.NONE
        await brokers.until(lambda: offline(brokers) == [source])
        assert not brokers.nodes[1].replicas.moves

    play(script, count=1, **TWO_DIRS)


@pytest.mark.parametrize(("code", "fails"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_a_volume_of_which_nobody_can_tell_how_full_it_is(
    monkeypatch: pytest.MonkeyPatch, code: int, fails: bool
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        asked = refusing(monkeypatch, brokers, "space", places["t"], code)
        await brokers.until(lambda: bool(asked))
        await asyncio.sleep(5)
        assert offline(brokers) == ([places["t"]] if fails else [])
        await goes_on(brokers, "u")

    play(script, count=1, **TWO_DIRS, scriba_log_dirs_write_watermark="0.9")


def test_a_file_that_somebody_else_has_removed_fails_no_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        directory = next(each for each in brokers.nodes[1].replicas.dirs)
        with pytest.raises(KafkaError, match="retention"), directory.guarded("retention"):
            raise FileNotFoundError(errno.ENOENT, "gone", f"{directory.path}/t-0/0.log")
        assert not offline(brokers)
        await goes_on(brokers, next(iter(places)))

    play(script, count=1, **TWO_DIRS)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_device_that_has_failed_before_a_start_takes_its_directory_offline(end: str) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        faults = brokers.sim.host("b1").disk_faults
        if end == "stop":
            await brokers.nodes[1].stop()
        else:
            brokers.kill(1)
        faults.fail_sync, faults.fail_dirs, faults.fail_in = 1.0, True, places["u"]
        await brokers.boot(1)
        assert offline(brokers) == [places["u"]]
        assert EventKind.LOG_DIR_OFFLINE in kinds(brokers.nodes[1])
        await goes_on(brokers, "t")
        assert not any(each.startswith(places["t"]) for each in entries(brokers, "u"))
        assert await brokers.produce(1, "u", b"lost") is not ErrorCode.NONE

    play(script, count=1, **TWO_DIRS)


def failing_at_start(
    monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...], place: str, code: int
) -> None:
    """Calls of a simulated disk that its device refuses in one directory, whoever starts there."""
    for call in calls:
        real = getattr(SimDisk, call)

        def refuse(self: SimDisk, path: str, *more: Any, real: Any = real, **named: Any) -> Any:
            if path.startswith(place):
                raise OSError(code, os.strerror(code), path)
            return real(self, path, *more, **named)

        monkeypatch.setattr(SimDisk, call, refuse)


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        (("lock",), errno.EROFS),  # mounted read-only
        (("mkdir", "lock", "read", "list"), errno.EIO),  # nothing can be read, nor who it is
    ],
)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_directory_that_cannot_be_locked_is_offline_and_comes_back_as_it_was(
    monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...], code: int, end: str
) -> None:
    async def script(brokers: Brokers) -> None:
        places = await one_in_each_directory(brokers)
        assert await brokers.produce(1, "u", b"before") is ErrorCode.NONE
        if end == "stop":
            await brokers.nodes[1].stop()
        else:
            brokers.kill(1)
        with monkeypatch.context() as patch:
            failing_at_start(patch, calls, places["u"], code)
            await brokers.boot(1)
            assert offline(brokers) == [places["u"]]
            assert EventKind.LOG_DIR_OFFLINE in kinds(brokers.nodes[1])
            await goes_on(brokers, "t")
            assert await brokers.produce(1, "u", b"lost") is not ErrorCode.NONE
            assert "u-0" not in brokers.nodes[1].world.disk.list(places["t"])
            await brokers.nodes[1].stop()
        await brokers.boot(1)
        assert offline(brokers) == []
        await brokers.until(lambda: brokers.leads(1, "u"))
        assert values(brokers.partition(1, "u")) == [b"of u", b"before"]

    play(script, count=1, **TWO_DIRS)


def test_a_new_directory_that_fails_is_offline_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        assert offline(brokers) == ["/data/two"]
        await brokers.create("t", (1,))
        await goes_on(brokers, "t")

    failing_at_start(monkeypatch, ("write_atomic",), "/data/two", errno.EIO)
    play(script, count=1, **TWO_DIRS)


def test_a_node_does_not_start_where_no_directory_can_be_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.nodes[1].stop()
        failing_at_start(monkeypatch, ("lock",), "/data", errno.EROFS)
        with pytest.raises(StartError, match="cannot be used as a log directory: Read-only"):
            await brokers.boot(1)

    play(script, count=1, **TWO_DIRS)


def test_a_node_does_not_start_without_the_directory_of_its_metadata() -> None:
    async def script(brokers: Brokers) -> None:
        await one_in_each_directory(brokers)
        await brokers.nodes[1].stop()
        faults = brokers.sim.host("b1").disk_faults
        faults.fail_sync, faults.fail_dirs, faults.fail_in = 1.0, True, "/data/meta"
        with pytest.raises(StartError, match="log directory /data/meta is offline"):
            await brokers.boot(1)

    play(script, count=1, **TWO_DIRS)
