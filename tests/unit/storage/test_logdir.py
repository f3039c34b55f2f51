# ruff: noqa: ASYNC110
"""A log directory: whose it is, how it was left, and what it survives."""

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest

from scriba.config import StartError
from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.storage.compaction.cleaner import Rewritten, clean
from scriba.storage.compaction.log import Stale, work_on
from scriba.storage.directory.checkpoints import parse_offsets
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import Log
from scriba.storage.results import NoRoom
from scriba.testing.sim.plays.compacting import MEANS, append
from tests.unit.storage.directories import SETTINGS, log_in, ready
from tests.unit.storage.shelf import FaultyFile, Shelf


def names(shelf: Shelf) -> set[str]:
    return set(os.listdir(shelf.root))


async def test_a_new_directory_becomes_ours(shelf: Shelf) -> None:
    directory = await ready(shelf)
    assert (directory.clean, directory.id) == (False, b"d" * 16)
    await directory.close(broker_epoch=5)
    assert {"meta.properties", ".kafka_cleanshutdown", ".lock"} <= names(shelf)
    marker = json.loads((shelf.root / ".kafka_cleanshutdown").read_text())
    assert marker == {"version": 0, "brokerEpoch": 5}
    again = LogDir.open(shelf.disk, str(shelf.root), shelf.offload)
    assert (again.clean, again.broker_epoch) == (True, 5)
    again.release()


async def test_another_clusters_or_nodes_directory_is_refused_untouched(shelf: Shelf) -> None:
    directory = await ready(shelf)
    await directory.close()
    before = {name: (shelf.root / name).stat().st_mtime_ns for name in names(shelf)}
    for cluster, node, text in (("other", 1, "belongs to cluster"), ("cluster", 2, "node 1")):
        directory = LogDir.open(shelf.disk, str(shelf.root), shelf.offload)
        with pytest.raises(StartError, match=text):
            await directory.adopt(cluster, node, b"x" * 16)
        directory.release()
    assert {name: (shelf.root / name).stat().st_mtime_ns for name in names(shelf)} == before


async def test_a_directory_in_use_is_refused(shelf: Shelf) -> None:
    directory = await ready(shelf)
    with pytest.raises(StartError, match="in use by another"):
        LogDir.open(shelf.disk, str(shelf.root), shelf.offload)
    directory.release()


async def test_unreadable_meta_properties_stop_the_start_and_release_the_lock(shelf: Shelf) -> None:
    (shelf.root / "meta.properties").write_text("version=7\n")
    for _ in range(2):
        with pytest.raises(StartError, match="cannot be read"):
            LogDir.open(shelf.disk, str(shelf.root), shelf.offload)


async def test_a_path_that_is_no_directory_stops_the_start(shelf: Shelf) -> None:
    (shelf.root / "file").write_text("")
    with pytest.raises(StartError, match="cannot be used"):
        LogDir.open(shelf.disk, str(shelf.root / "file"), shelf.offload)


async def test_after_a_clean_shutdown_logs_go_on_where_they_were(shelf: Shelf) -> None:
    directory = await ready(shelf)
    for partition in range(3):
        log = await log_in(shelf, directory, partition, topic_id=b"t" * 16)
        shelf.append(log, 10 + partition)
    log.delete_records_to(4)
    directory.high_watermarks.set(PartitionName("t", 2), 9)
    await directory.checkpoint_high_watermarks()
    await directory.close()
    directory = await ready(shelf)
    assert not (shelf.root / ".kafka_cleanshutdown").exists()
    assert directory.partitions() == [PartitionName("t", i) for i in range(3)]
    assert directory.high_watermark("t", 2) == 9
    shelf.disk.touched.clear()
    logs = [await log_in(shelf, directory, partition) for partition in range(3)]
    assert [(log.end_offset, log.flushed_offset) for log in logs] == [(n, n) for n in (10, 11, 12)]
    assert logs[2].start_offset == 4
    assert not [name for _, name in shelf.disk.touched if name.endswith(".log")]
    await directory.close()


async def test_a_crash_is_seen_as_one(shelf: Shelf) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    shelf.append(log, 10)
    await log.flush()
    await directory.checkpoint()
    shelf.append(log, 5)
    directory.release()
    directory = await ready(shelf)
    assert not directory.clean
    log = await log_in(shelf, directory)
    assert (log.end_offset, log.flushed_offset) == (15, 10)
    directory.release()


async def test_a_checkpoint_before_all_logs_are_open_forgets_none(shelf: Shelf) -> None:
    directory = await ready(shelf)
    for partition in range(2):
        log = await log_in(shelf, directory, partition)
        shelf.append(log, 10)
        log.delete_records_to(3)
        await log.flush()
    await directory.checkpoint()
    directory.release()
    directory = await ready(shelf)
    await log_in(shelf, directory, 0)
    await directory.checkpoint()
    directory.release()
    directory = await ready(shelf)
    log = await log_in(shelf, directory, 1)
    assert (log.flushed_offset, log.start_offset) == (10, 3)
    directory.release()


async def test_a_topic_made_anew_is_not_measured_by_the_old_ones_checkpoints(shelf: Shelf) -> None:
    directory = await ready(shelf)
    old = await log_in(shelf, directory, topic_id=b"a" * 16)
    for _ in range(10):
        shelf.append(old, 10)
    old.delete_records_to(50)
    await old.flush()
    await directory.checkpoint()
    directory.high_watermarks.set(PartitionName("t", 0), 100)
    await directory.checkpoint_high_watermarks()
    directory.begin_deletion(old)
    new = await log_in(shelf, directory, topic_id=b"b" * 16)
    assert (new.start_offset, new.end_offset) == (0, 0)
    shelf.append(new, 3)
    directory.release()
    directory = await ready(shelf)
    new = await log_in(shelf, directory, topic_id=b"b" * 16)
    assert (new.start_offset, new.end_offset, new.failure) == (0, 3, None)
    assert directory.high_watermark("t", 0) == 0
    (deleted,) = directory.deleted()
    await directory.remove_deleted([deleted])
    assert directory.deleted() == []
    directory.release()


async def test_a_compaction_that_outlives_its_topic_says_nothing_of_the_one_made_anew(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await ready(shelf)
    old = await log_in(shelf, directory, topic_id=b"a" * 16)
    for _ in range(10):
        shelf.append(old, 10)
    flush = Log.flush

    async def meanwhile(log: Log, up_to: int | None = None) -> None:
        await flush(log, up_to)
        directory.begin_deletion(old)
        await log_in(shelf, directory, topic_id=b"b" * 16)

    monkeypatch.setattr(Log, "flush", meanwhile)
    with pytest.raises(Stale):
        await directory.take_compacted(
            old, Rewritten(0, (0,), 0, 0, 0, b"", old.end_offset), 0, shelf.now
        )
    shelf.append(directory.logs[PartitionName("t", 0)], 3)
    directory.release()
    directory = await ready(shelf)
    new = await log_in(shelf, directory, topic_id=b"b" * 16)
    assert (new.end_offset, new.failure) == (3, None)
    directory.release()


async def test_a_truncation_lowers_the_recovery_point_first(shelf: Shelf) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(10):
        shelf.append(log, 2)
    await log.flush()
    await directory.checkpoint()
    await directory.truncate(log, 6, shelf.now)
    assert (log.end_offset, log.flushed_offset) == (6, 6)
    directory.release()
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    assert (log.end_offset, log.failure) == (6, None)
    directory.release()


async def test_a_checkpoint_beside_a_truncation_does_not_raise_the_recovery_point_again(
    shelf: Shelf,
) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(10):
        shelf.append(log)
    await log.flush()
    await directory.checkpoint()
    checkpoints: list[asyncio.Task[None]] = []
    shelf.after_offload(1, lambda: checkpoints.append(asyncio.create_task(directory.checkpoint())))
    await directory.truncate(log, 4, shelf.now)
    (checkpoint,) = checkpoints  # as the lowered one was written
    await checkpoint
    assert log.end_offset == 4
    directory.release()  # killed
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    assert (log.end_offset, log.failure) == (4, None)
    await directory.close()


@pytest.mark.parametrize("cut_fails", [False, True])
async def test_a_truncation_discards_what_the_cleaner_noted_above_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, cut_fails: bool
) -> None:
    """Else other records that come to be there would count as compacted. It is noted before the
    files are cut, as a crash may come in between."""
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(4)]
    for log in logs:
        for _ in range(10):
            shelf.append(log, 2)
        await log.flush()
    await directory.checkpoint()
    for log in logs:
        await directory.checkpoint_compacted(log, 12)

    def refused(file: FaultyFile, size: int) -> None:
        raise OSError(errno.EIO, "the device does not answer")

    below, above, all_of_it, untouched = logs
    with monkeypatch.context() as patched:
        if cut_fails:
            patched.setattr(FaultyFile, "truncate", refused)
        failed = await directory.truncate_all(
            {below: 6, above: 14, all_of_it: 4}, shelf.now, wholly=[all_of_it]
        )
    assert bool(failed) == cut_fails
    directory.release()
    directory = await ready(shelf)
    found = [directory.compacted.get(PartitionName("t", log.partition), -1) for log in logs]
    assert found[0] <= 6
    assert found[1] == found[untouched.partition] == 12
    assert found[2] <= 4
    directory.release()


async def test_truncations_cut_their_files_together_and_off_the_loop(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(5)]
    for log in logs:
        for _ in range(30):
            shelf.append(log, 2, size=100)
        await log.flush()
    threads: list[int] = []
    cut = FaultyFile.truncate

    def watched(file: FaultyFile, size: int) -> None:
        threads.append(threading.get_ident())
        cut(file, size)

    monkeypatch.setattr(FaultyFile, "truncate", watched)
    await directory.truncate_all({log: 7 + log.partition for log in logs}, shelf.now)
    assert len(threads) >= len(logs)
    assert threading.get_ident() not in threads
    assert len(set(threads)) == 1, "one call for all"
    for log in logs:
        end = (7 + log.partition) // 2 * 2
        assert log.end_offset == log.flushed_offset == end
        shelf.append(log, 2)
        assert len(await shelf.headers(log, 0)) == end // 2 + 1
    directory.release()
    # After a crash nothing of what was cut off comes back.
    directory = await ready(shelf)
    for partition, log in enumerate(logs):
        found = await log_in(shelf, directory, partition)
        assert (found.end_offset, found.failure) == (log.end_offset, None)
    directory.release()


async def test_a_truncation_that_is_called_off_leaves_no_file_longer_than_its_log(
    shelf: Shelf,
) -> None:
    """The shutdown that called it off is a clean one: the next start believes what it finds."""
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(2)]
    for log in logs:
        for _ in range(10):
            shelf.append(log)
        await log.flush()
    truncating = asyncio.create_task(directory.truncate_all(dict.fromkeys(logs, 4), shelf.now))
    while logs[0].end_offset != 4:
        await asyncio.sleep(0)
    for _ in range(2):
        truncating.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([truncating])
    assert truncating.cancelled()
    await directory.close()
    directory = await ready(shelf)
    assert directory.clean
    for partition in range(2):
        log = await log_in(shelf, directory, partition)
        assert (log.end_offset, log.failure) == (4, None)
        shelf.append(log, epoch=5)
        assert [each.offset for each in await shelf.consume(log)] == [0, 1, 2, 3, 4]
    await directory.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("wholly", [False, True])
async def test_a_truncation_for_which_there_is_no_room_is_refused_and_can_be_asked_for_again(
    shelf: Shelf, number: int, wholly: bool
) -> None:
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(2)]
    for log in logs:
        for _ in range(60):
            shelf.append(log)
        await log.flush()
        log.close_if_idle(even_if_busy=True)
    full, other = logs
    shelf.disk.unopened = {f"t-0/{1000 if wholly else 0:020}.log": number}
    wanted = {full: 1000 if wholly else 20, other: 50}
    emptied = [full] if wholly else []
    failed = await directory.truncate_all(wanted, shelf.now, emptied)
    assert [*failed] == [full]
    assert isinstance(failed[full], NoRoom)
    assert (full.failure, other.failure, directory.failure) == (None, None, None)
    assert (full.end_offset, other.end_offset) == (60, 50)
    assert (shelf.root / "t-1" / f"{other.sealed_offset:020}.log").stat().st_size < 4000
    shelf.disk.unopened = {}
    assert [each.offset for each in await shelf.consume(full)] == list(range(60))
    assert not await directory.truncate_all(wanted, shelf.now, emptied)
    for log in logs:
        shelf.append(log)
    first = 1000 if wholly else 0
    assert [each.offset for each in await shelf.consume(full)] == [*range(first, wanted[full] + 1)]
    assert [each.offset for each in await shelf.consume(other)] == list(range(51))
    await directory.close()


async def test_files_that_cannot_be_cut_for_want_of_room_cost_their_logs_not_the_directory(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(3)]
    for log in logs:
        for _ in range(10):
            shelf.append(log)
        await log.flush()

    def refused(file: FaultyFile, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(FaultyFile, "truncate", refused)
        failed = await directory.truncate_all(dict.fromkeys(logs[:2], 4), shelf.now)
    assert [*failed] == logs[:2]
    assert all("cannot be truncated" in str(error) for error in failed.values())
    assert [log.failure is None for log in logs] == [False, False, True]
    assert directory.failure is None
    await directory.close()
    assert not (shelf.root / ".kafka_cleanshutdown").exists()


async def test_a_device_that_does_not_cut_files_is_offline(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(10):
        shelf.append(log, 2)

    def refused(file: FaultyFile, size: int) -> None:
        raise OSError(errno.EIO, "the device does not answer")

    monkeypatch.setattr(FaultyFile, "truncate", refused)
    with pytest.raises(KafkaError, match="cannot be truncated"):
        await directory.truncate(log, 6, shelf.now)
    assert directory.offline
    directory.release()


async def test_a_failed_device_takes_all_its_logs_with_it(shelf: Shelf) -> None:
    told = []
    directory = await ready(
        shelf, on_failure=lambda place, log, why: told.append(log and log.partition)
    )
    logs = [await log_in(shelf, directory, partition) for partition in range(3)]
    for log in logs:
        shelf.append(log)
    shelf.disk.broken = True
    with pytest.raises(KafkaError):
        await logs[1].flush()
    assert directory.offline
    for log in logs:
        with pytest.raises(KafkaError) as refused:
            shelf.append(log)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        await log_in(shelf, directory, 7)
    assert told == [1, 0, 2, None]
    await directory.close()
    assert not (shelf.root / ".kafka_cleanshutdown").exists()


async def test_a_damaged_log_leaves_the_others_alone_but_no_mark_of_a_clean_end(
    shelf: Shelf,
) -> None:
    directory = await ready(shelf)
    logs = [await log_in(shelf, directory, partition) for partition in range(2)]
    for log in logs:
        shelf.append(log, 2)
    logs[0].fail("a bit flipped", device=False)
    shelf.append(logs[1])
    assert not directory.offline
    await directory.close()
    assert not (shelf.root / ".kafka_cleanshutdown").exists()


async def test_a_log_that_was_never_opened_after_a_crash_leaves_no_mark_of_a_clean_end(
    shelf: Shelf,
) -> None:
    """Its checkpoint and a snapshot agree on an offset amid its last segment: with the mark, the
    records behind it would be overwritten."""
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(8):
        shelf.append(log)
    log._writer.take_snapshot(8)
    await log.flush()
    await directory.checkpoint()
    for _ in range(8):
        shelf.append(log)
    directory.release()  # killed

    directory = await ready(shelf)
    shelf.disk.unopened = {".log": errno.ENOSPC}
    with pytest.raises(NoRoom):
        await log_in(shelf, directory)
    shelf.disk.unopened = {}
    await directory.close()  # to make room

    directory = await ready(shelf)
    assert not directory.clean
    log = await log_in(shelf, directory)
    assert (log.end_offset, log.failure) == (16, None)
    await directory.close()


async def test_logs_that_nobody_opened_since_a_clean_end_are_still_clean(shelf: Shelf) -> None:
    directory = await ready(shelf)
    for partition in range(2):
        shelf.append(await log_in(shelf, directory, partition), 3)
    await directory.close()
    for _ in range(2):
        directory = await ready(shelf)
        assert directory.clean
        await log_in(shelf, directory, 1)
        await directory.close()
    # One that was touched, and is not open, is not.
    directory = await ready(shelf)
    shelf.disk.unopened = {".log": errno.ENOSPC, ".index": errno.ENOSPC}
    (shelf.root / "t-1" / "00000000000000000000.timeindex").unlink()
    with pytest.raises(NoRoom):
        await log_in(shelf, directory, 1)
    shelf.disk.unopened = {}
    await directory.close()
    directory = await ready(shelf)
    assert not directory.clean
    directory.release()


@pytest.mark.parametrize("damage", ["a flipped byte", "a lost end"])
async def test_flushed_records_found_damaged_are_never_taken_for_an_unflushed_tail(
    shelf: Shelf, damage: str
) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(20):
        shelf.append(log)
    await log.flush()
    await directory.checkpoint()
    directory.release()  # killed
    path = shelf.directory / "00000000000000000000.log"
    with path.open("r+b") as file:
        if damage == "a lost end":
            file.truncate(8 * len(shelf.batch()))
        else:
            file.seek(8 * len(shelf.batch()) + 16)
            file.write(b"\x07")
    size = path.stat().st_size
    for _ in range(3):
        directory = await ready(shelf)
        log = await log_in(shelf, directory)
        assert log.failure is not None
        await directory.checkpoint()
        await directory.close()
        assert not directory.clean
        assert path.stat().st_size == size


async def test_directories_of_nobody_are_set_aside_and_kept(shelf: Shelf) -> None:
    directory = await ready(shelf)
    for topic_id in (b"a" * 16, b"b" * 16):
        log = await log_in(shelf, directory, topic_id=topic_id)
        shelf.append(log)
        await log.close()
        directory.logs.clear()
        kept = await directory.rename_stray(PartitionName("t", 0))
        assert kept.endswith(f"t-0.{topic_id.hex()}-stray")
        assert not directory.holds("t", 0)
    assert directory.partitions() == []
    assert len([name for name in names(shelf) if name.endswith("-stray")]) == 2
    directory.release()


async def test_a_checkpoint_flushes_sealed_segments_but_not_the_active_one(shelf: Shelf) -> None:
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    for _ in range(60):
        shelf.append(log)
    assert (log.flushed_offset, log.segment_count) == (0, 3)
    shelf.disk.touched.clear()
    await directory.checkpoint()
    assert 0 < log.flushed_offset == log.sealed_offset < 60
    synced = {name for what, name in shelf.disk.touched if what == "sync"}
    assert f"{log.sealed_offset:020}.log" not in synced
    text = (shelf.root / "recovery-point-offset-checkpoint").read_text()
    assert text == f"0\n1\nt 0 {log.sealed_offset}\n"
    directory.release()


@pytest.mark.parametrize("at", range(5))
async def test_a_first_append_may_come_at_any_step_of_the_making_of_files(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    directory = await ready(shelf)
    log = directory.new_log("t", 0, b"i" * 16, SETTINGS, shelf.now)
    steps = iter(range(100))

    def with_an_append_before(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            if next(steps) == at:
                shelf.append(log, 3)
            return call(*given, **named)

        return wrapped

    with monkeypatch.context() as patched:
        for call in ("mkdir", "open"):
            patched.setattr(shelf.disk, call, with_an_append_before(getattr(shelf.disk, call)))
        await directory.make_files([log])
    assert log.has_files
    assert log.end_offset == 3
    assert shelf.disk.size(f"{shelf.directory}/00000000000000000000.log") == log.size > 0
    await directory.close()
    again = await ready(shelf)
    found = await log_in(shelf, again, topic_id=b"i" * 16)
    assert len(await shelf.consume(found)) == 3
    await again.close()


@pytest.mark.parametrize(
    ("by", "replaced"),
    [
        ("its files", False),
        ("its files", True),
        ("its first append", False),
        ("a roll", False),
        ("a roll", True),
    ],
)
async def test_a_directory_that_vanished_is_a_failed_one_and_is_not_made_anew(
    shelf: Shelf, by: str, replaced: bool
) -> None:
    """A device that is gone leaves nothing behind, or its mount point."""
    directory = await ready(shelf)
    other = await log_in(shelf, directory)
    shelf.append(other)
    log = directory.new_log("u", 0, b"i" * 16, SETTINGS, shelf.now)
    shutil.rmtree(shelf.root)
    if replaced:
        shelf.root.mkdir()
    if by == "its files":
        with pytest.raises(KafkaError, match="no longer there"):
            await directory.make_files([log])
    else:
        with pytest.raises(KafkaError, match="No such file"):
            shelf.append_until_refused(log if by == "its first append" else other)
    assert directory.offline
    assert log.failure is not None
    assert other.failure is not None
    assert shelf.root.exists() == replaced
    assert not replaced or not names(shelf)
    directory.release()


class Held:
    """Replacements of files wait until they are let go."""

    def __init__(self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = asyncio.Event()
        self._replace = shelf.disk.write_atomic
        monkeypatch.setattr(shelf.disk, "write_atomic", self.write_atomic)

    async def write_atomic(self, path: str, data: bytes) -> None:
        await self.go.wait()
        await self._replace(path, data)


async def test_a_new_start_that_another_is_just_writing_is_waited_for(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job, say, and a DeleteRecords that is answered once its start is on disk."""
    directory = await ready(shelf)
    log = await log_in(shelf, directory)
    shelf.append(log, 10)
    log.delete_records_to(5)
    held = Held(shelf, monkeypatch)
    both = [asyncio.create_task(directory.checkpoint_starts()) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [each.done() for each in both] == [False, False]
    held.go.set()
    await asyncio.gather(*both)
    path = shelf.root / "log-start-offset-checkpoint"
    assert parse_offsets(path.read_bytes()) == {PartitionName("t", 0): 5}
    path.unlink()
    await directory.checkpoint_starts()
    assert not path.exists(), "what is written is not written again"
    await directory.close()


async def test_a_compacted_segment_waits_for_a_recovery_point_that_another_is_just_writing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await ready(shelf)
    settings = SETTINGS.replace(cleanup_policy=("compact",))
    log = await directory.open_log("t", 0, None, settings, shelf.now)
    for n in range(10):
        append(log, [("k", f"{n}")], shelf.now)
    log.roll(shelf.now)
    append(log, [("a", "v")], shelf.now)
    await log.flush()
    work = at_once(work_on(log, 0, 10, MEANS, bytes(16), shelf.now))
    (rewritten,) = (step for step in clean(shelf.disk, work) if isinstance(step, Rewritten))
    held = Held(shelf, monkeypatch)
    checkpoint = asyncio.create_task(directory.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    taking = asyncio.create_task(
        directory.take_compacted(log, rewritten, log.compaction.generation, shelf.now)
    )
    await asyncio.wait([taking], timeout=0.1)
    assert not shelf.files(".deleted")
    held.go.set()
    await asyncio.gather(checkpoint, taking)
    assert [each.value for each in await shelf.consume(log)] == [b"9", b"v"]
    await directory.close()


async def test_a_log_without_files_is_deleted_without_a_trace(shelf: Shelf) -> None:
    directory = await ready(shelf)
    log = directory.new_log("t", 0, b"i" * 16, SETTINGS, shelf.now)
    assert "t-0" not in names(shelf)
    directory.begin_deletion(log)
    await log.truncation.remove_files()
    assert not [name for name in names(shelf) if name.startswith("t-0")]
    await directory.close()
