# ruff: noqa: ASYNC110
"""What is durable when, and what happens when the device does not do its part."""

import asyncio
import contextlib
import errno
import os

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.settings import TopicSettings
from scriba.storage.results import Failure, NoRoom, storage_error
from tests.unit.storage.shelf import Shelf


async def test_flush_moves_the_flushed_end_to_what_was_written(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 3)
    assert log.flushed_offset == 0
    await log.flush()
    assert log.flushed_offset == 3
    before = shelf.disk.calls["sync"]
    await log.flush()
    assert shelf.disk.calls["sync"] == before


async def test_many_who_wait_share_one_sync(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings())
    shelf.append(log)
    await log.flush()
    shelf.disk.gate = asyncio.Event()
    before = shelf.disk.calls["sync"]
    shelf.append(log)
    first = asyncio.create_task(log.flush())
    while shelf.disk.calls["sync"] == before:
        await asyncio.sleep(0)
    waiters = []
    for _ in range(20):
        shelf.append(log)
        waiters.append(asyncio.create_task(log.flush()))
    await asyncio.sleep(0)
    assert not first.done()
    shelf.disk.gate.set()
    await asyncio.gather(first, *waiters)
    assert log.flushed_offset == log.end_offset == 22
    assert shelf.disk.calls["sync"] - before == 2


async def test_a_sync_under_way_promises_nothing_about_later_appends(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings())
    shelf.append(log)
    shelf.disk.gate = asyncio.Event()
    first = asyncio.create_task(log.flush())
    while not shelf.disk.calls["sync"]:
        await asyncio.sleep(0)
    shelf.append(log)
    shelf.disk.gate.set()
    await first
    assert log.flushed_offset == 1
    await log.flush()
    assert log.flushed_offset == 2


async def test_a_waiter_that_goes_away_does_not_take_the_sync_with_it(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    shelf.disk.gate = asyncio.Event()
    leaving = asyncio.create_task(log.flush())
    staying = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    shelf.disk.gate.set()
    await staying
    assert log.flushed_offset == 1


async def test_segments_that_leave_the_log_while_a_sync_is_under_way_need_none(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    while log.end_offset < 200:
        shelf.append(log)
    await log.truncation.retention(shelf.now, 0)  # what else it syncs is synced
    shelf.disk.gate = asyncio.Event()
    flushing = asyncio.ensure_future(log.flush())
    async with asyncio.timeout(300):
        while shelf.disk.touched[-1] != ("sync", "00000000000000000000.log"):
            await asyncio.sleep(0)
        log.delete_records_to(150)
        await log.truncation.retention(shelf.later(1), log.end_offset)
        assert log.start_offset == 150
        shelf.disk.gate.set()
        await flushing
    assert log.flushed_offset == log.end_offset
    shelf.append(log)
    await log.flush()
    assert log.flushed_offset == 201


async def test_new_files_are_in_their_directories_before_the_flushed_end_passes_them(
    shelf: Shelf,
) -> None:
    log = shelf.open(topic_id=bytes(range(16)))
    shelf.append(log)
    await log.flush()
    order = [what for what in shelf.disk.touched if "sync" in what[0]]
    assert ("sync", "partition.metadata") in order
    assert order[-1] == ("sync_dir", shelf.root.name)
    assert ("sync_dir", "t-0") in order
    shelf.disk.touched.clear()
    for _ in range(30):
        shelf.append(log)
    assert log.segment_count == 2
    await log.flush()
    synced = [name for what, name in shelf.disk.touched if what == "sync"]
    assert synced == [
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        shelf.files(".log")[1],
        shelf.files(".snapshot")[0],
    ]
    assert ("sync_dir", "t-0") in shelf.disk.touched


async def test_leader_epochs_are_durable_with_their_records(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, epoch=4)
    await log.flush()
    assert (shelf.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"


async def test_after_a_failed_sync_there_is_no_second_try(shelf: Shelf) -> None:
    told = []
    log = shelf.open(on_failure=lambda log, failure: told.append((log.topic, failure.device)))
    shelf.append(log, 2)
    await log.flush()
    shelf.append(log)
    shelf.disk.broken = True
    with pytest.raises(KafkaError) as failed:
        await log.flush()
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    shelf.disk.broken = False
    with pytest.raises(KafkaError):
        await log.flush()
    with pytest.raises(KafkaError) as refused:
        shelf.append(log)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.flushed_offset, log.end_offset) == (2, 3)
    assert told == [("t", True)]
    assert len(await shelf.consume(log)) == 3


async def test_whoever_uses_a_failed_log_is_told_by_an_error_of_its_own(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    shelf.disk.broken = True
    raised = []
    for use in (log.flush, log.flush, log.sync, log.sync):
        with pytest.raises(KafkaError) as failed:
            await use()
        raised.append(failed.value)
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            shelf.append(log)
        raised.append(refused.value)
        with pytest.raises(KafkaError) as refused:
            log.append_follower(memoryview(b""), shelf.now)
        raised.append(refused.value)
    assert log.failure is not None
    kept = log.failure.error
    assert {(each.code, each.message) for each in raised} == {(kept.code, kept.message)}
    assert len({id(each) for each in (kept, *raised)}) == 1 + len(raised)
    assert kept.__traceback__ is None


async def test_everyone_who_waited_learns_of_the_failed_sync(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    shelf.disk.broken = True
    results = await asyncio.gather(*(log.flush() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, KafkaError) for result in results)


async def test_those_who_wait_for_the_next_sync_do_not_get_one_after_a_failure(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    shelf.append(log)
    shelf.disk.gate = asyncio.Event()
    first = asyncio.create_task(log.flush())
    while not shelf.disk.calls["sync"]:
        await asyncio.sleep(0)
    shelf.append(log)
    second = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    shelf.disk.broken = True
    syncs = shelf.disk.calls["sync"]
    shelf.disk.gate.set()
    await asyncio.wait([first, second])
    assert isinstance(first.exception(), KafkaError)
    assert isinstance(second.exception(), KafkaError)
    assert (shelf.disk.calls["sync"], log.flushed_offset) == (syncs, 0)


NO_ROOM = pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])


@NO_ROOM
@pytest.mark.parametrize("name", [".log", ".index", ".snapshot", "partition.metadata", "directory"])
async def test_a_sync_that_fails_for_want_of_room_costs_its_log_and_not_the_directory(
    shelf: Shelf, code: int, name: str
) -> None:
    told = []
    log = shelf.open(
        topic_id=bytes(range(16)),
        on_failure=lambda log, failure: told.append((failure.device, failure.error.message)),
    )
    while log.segment_count < 2:
        shelf.append(log)
    if name == "directory":
        shelf.disk.broken_dirs = code
    else:
        shelf.disk.broken, shelf.disk.broken_in, shelf.disk.broken_by = True, name, code
    with pytest.raises(KafkaError) as failed:
        await log.flush()
    assert not isinstance(failed.value, NoRoom), "the same would not succeed later"
    ((device, why),) = told
    assert not device
    assert "start the node again" in why
    syncs = shelf.disk.calls["sync"], shelf.disk.calls["sync_dir"]
    shelf.disk.broken, shelf.disk.broken_dirs = False, 0
    with pytest.raises(KafkaError):
        await log.flush()
    assert (shelf.disk.calls["sync"], shelf.disk.calls["sync_dir"]) == syncs, "no second try"
    assert log.flushed_offset == 0


@NO_ROOM
async def test_retention_that_cannot_sync_a_snapshot_for_want_of_room_costs_its_log(
    shelf: Shelf, code: int
) -> None:
    told = []
    log = shelf.open(on_failure=lambda log, failure: told.append(failure.device))
    while log.segment_count < 2:
        shelf.append(log, producer_id=3, producer_epoch=0, base_sequence=log.end_offset)
    shelf.disk.broken, shelf.disk.broken_in, shelf.disk.broken_by = True, ".snapshot", code
    with pytest.raises(KafkaError):
        await log.truncation.retention(shelf.now, 0)
    assert told == [False]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "partition.metadata"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
async def test_a_file_that_cannot_be_opened_for_its_sync_is_waited_for(
    shelf: Shelf, suffix: str, code: int
) -> None:
    told: list[object] = []
    refused: list[str] = []
    log = shelf.open(
        topic_id=bytes(range(16)), on_failure=lambda log, failure: told.append(failure)
    )
    log.on_refused = refused.append
    while log.segment_count < 2:
        shelf.append(log, producer_id=3, producer_epoch=0, base_sequence=log.end_offset)
    log.close_if_idle(even_if_busy=True)
    shelf.disk.unopened[suffix] = code
    with pytest.raises(NoRoom):
        await log.sync(hurried=True)
    flushing = asyncio.ensure_future(log.flush())
    async with asyncio.timeout(300):
        while len(refused) < 3:
            await asyncio.sleep(0.01)
    assert not flushing.done()
    shelf.disk.unopened.clear()
    shelf.disk.touched.clear()
    await flushing
    assert told == []
    assert log.flushed_offset == log.end_offset
    assert any(what == "sync" and name.endswith(suffix) for what, name in shelf.disk.touched)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_directory_that_cannot_be_opened_for_its_sync_is_waited_for(
    shelf: Shelf, code: int
) -> None:
    told: list[object] = []
    log = shelf.open(on_failure=lambda log, failure: told.append(failure))
    shelf.append(log)
    shelf.disk.broken_dirs = code
    with pytest.raises(NoRoom):
        await log.sync(hurried=True)
    shelf.disk.broken_dirs = 0
    await log.flush()
    assert told == []
    assert log.flushed_offset == 1


async def test_a_full_disk_costs_the_batch_and_nothing_else(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 2)
    size = log.size
    shelf.disk.full = ".log"
    with pytest.raises(KafkaError) as refused:
        shelf.append(log, producer_id=9, producer_epoch=0, base_sequence=0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (shelf.directory / shelf.files(".log")[0]).stat().st_size == size
    assert (log.end_offset, list(log.active_producers())) == (2, [])
    assert len(await shelf.consume(log)) == 2
    shelf.disk.full = ""
    assert shelf.append(log).base_offset == 2
    assert log.failure is None


async def test_a_torn_batch_on_a_read_only_disk_goes_before_the_next_append(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 2)
    size = log.size
    shelf.disk.full, shelf.disk.read_only = ".log", True
    with pytest.raises(KafkaError):
        shelf.append(log)
    path = shelf.directory / shelf.files(".log")[0]
    assert path.stat().st_size > size
    with pytest.raises(KafkaError):
        shelf.append(log)
    shelf.disk.full, shelf.disk.read_only = "", False
    shelf.append(log, size=1)
    assert path.stat().st_size == log.size
    assert len(await shelf.consume(log)) == 3


async def test_a_full_disk_at_a_roll_leaves_the_log_usable(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, size=3000)
    shelf.disk.full = "index"
    with pytest.raises(KafkaError) as refused:
        shelf.append(log, size=3000)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    shelf.disk.full = ""
    assert shelf.append(log, size=3000).base_offset == 1
    assert log.segment_count == 2
    assert len(await shelf.consume(log, 10_000)) == 2


async def test_damage_found_by_a_reader_takes_the_log_out_of_use_but_not_its_bytes(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    for _ in range(20):
        shelf.append(log)
    await log.close()
    path = shelf.directory / shelf.files(".log")[0]
    data = bytearray(path.read_bytes())
    size = len(shelf.batch())
    data[size * 2 + 16] = 9
    path.write_bytes(data)
    told = []
    log = shelf.open(
        recovery_point=20,
        clean=True,
        on_failure=lambda log, failure: told.append(failure.device),
    )
    assert log.failure is None
    with pytest.raises(KafkaError) as failed:
        await shelf.read(log, 3)
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert told == [False]
    with pytest.raises(KafkaError):
        shelf.append(log)
    assert path.read_bytes() == data
    assert (await shelf.headers(log, 0, bound=1))[0].base_offset == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_read_for_which_no_file_may_be_opened_costs_nothing_but_this_read(
    shelf: Shelf, number: int
) -> None:
    told: list[Failure] = []
    log = shelf.open(on_failure=lambda log, failure: told.append(failure))
    for _ in range(100):
        shelf.append(log)
    await log.flush()
    log.close_if_idle(even_if_busy=True)
    shelf.disk.unopened = {".log": number}
    with pytest.raises(NoRoom):
        await shelf.read(log, 0)
    with pytest.raises(NoRoom):
        await log.offset_for_timestamp(0)
    shelf.disk.unopened = {}
    assert (told, log.failure) == ([], None)
    assert len(await shelf.consume(log)) == 100


async def test_a_snapshot_that_the_device_does_not_take_refuses_the_flush_that_is_due_for_it(
    shelf: Shelf,
) -> None:
    """As an error of the protocol: the checkpoint job, which flushes too, knows no other."""
    log = shelf.open()
    shelf.disk.unopened = {".snapshot": errno.EIO}
    for _ in range(100):
        with contextlib.suppress(KafkaError):
            shelf.append(log)
    with pytest.raises(KafkaError, match="cannot take a snapshot"):
        await log.flush(log.sealed_offset)
    shelf.disk.unopened = {}
    await log.flush()
    assert log.flushed_offset == log.end_offset > 0


async def test_segments_that_a_read_only_device_keeps_are_a_matter_of_its_directory(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Failure] = []
    log = shelf.open(on_failure=lambda log, failure: told.append(failure))
    for _ in range(100):
        shelf.append(log)
    log.delete_records_to(90)
    assert await log.truncation.retention(shelf.now, 100)

    def refused(path: str) -> None:
        raise OSError(errno.EROFS, "read-only file system", path)

    monkeypatch.setattr(shelf.disk, "unlink", refused)
    with pytest.raises(KafkaError, match="cannot remove its old segments"):
        await log.truncation.retention(shelf.later(120_000), 100)
    assert [failure.device for failure in told] == [True]


async def test_a_log_whose_last_flush_took_a_snapshot_is_closed_with_whole_indexes(
    shelf: Shelf,
) -> None:
    """The newest timestamp is told by the end of the time index, which only a close completes."""
    for end in (10, 20):
        log = shelf.open(recovery_point=end - 10, clean=True)
        for _ in range(10):
            shelf.append(log, at=shelf.later(1000).wall_ms)
        log._writer.take_snapshot(end)
        await log.flush()
        await log.close()
    log = shelf.open(recovery_point=20, clean=True)
    found = await log.offset_for_timestamp(shelf.now.wall_ms)
    assert found is not None
    assert found.offset == 19
    assert await log.newest_record_ms() == shelf.now.wall_ms


async def test_closing_leaves_nothing_to_read_for_the_next_start(shelf: Shelf) -> None:
    log = shelf.open()
    for i in range(100):
        shelf.append(log, producer_id=3, producer_epoch=0, base_sequence=i)
    await log.close()
    shelf.disk.touched.clear()
    log = shelf.open(recovery_point=100, clean=True)
    assert not [name for what, name in shelf.disk.touched if name.endswith((".log", "index"))]
    assert (log.end_offset, log.flushed_offset) == (100, 100)
    assert next(log.active_producers()).last_sequence == 99
    before = shelf.disk.calls["sync"]
    await log.close()
    assert shelf.disk.calls["sync"] == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_what_the_process_or_the_device_has_no_room_for_is_no_failed_device(number: int) -> None:
    error = storage_error("a checkpoint", OSError(number, os.strerror(number)))
    assert isinstance(error, NoRoom)
