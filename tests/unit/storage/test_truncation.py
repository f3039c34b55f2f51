# ruff: noqa: ASYNC110
"""Retention, deletion of records, truncation, and the end of a partition."""

import asyncio
import errno
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import FAR_MS, PAUSE_MS, ClockWatch, Instant
from scriba.outcome import at_once
from scriba.records.header import stamp
from scriba.settings import TopicSettings
from scriba.storage.compaction.cleaner import Rewritten, clean
from scriba.storage.compaction.log import work_on
from scriba.storage.log import EMPTY, Log, Slice
from scriba.storage.retention import (
    Reason,
    SegmentFacts,
    before_start,
    over_size,
)
from scriba.testing.sim.plays.compacting import MEANS, append
from tests.unit.storage.shelf import Shelf

HOUR = 3_600_000


def segments(shelf: Shelf, count: int = 5, **settings: Any) -> Log:
    """A log of `count` segments of ten records, an hour apart, and one record more."""
    log = shelf.open(settings=TopicSettings(**settings))
    for _ in range(count):
        shelf.append(log, 10)
        log.roll(shelf.later(HOUR))
    shelf.append(log)
    return log


async def test_old_segments_go_by_the_age_of_their_newest_record(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=3 * HOUR + 60_000)
    gone = await log.truncation.retention(shelf.now, high_watermark=51)
    assert gone == [(0, Reason.AGE), (10, Reason.AGE)]
    assert log.start_offset == 20
    assert len(shelf.files(".log")) == 4
    assert "00000000000000000000.log.deleted" in shelf.files()
    await log.truncation.retention(shelf.later(59_999), 51)
    assert shelf.files(".deleted")
    await log.truncation.retention(shelf.later(1), 51)
    assert not shelf.files(".deleted")
    assert [r.offset for r in await shelf.consume(log)] == list(range(20, 51))


async def test_nothing_at_or_above_the_high_watermark_goes(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=1)
    shelf.later(HOUR)
    assert [base for base, _ in await log.truncation.retention(shelf.now, high_watermark=25)] == [
        0,
        10,
    ]
    assert log.start_offset == 20


async def test_even_the_active_segment_goes_when_all_of_it_is_too_old(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=HOUR)
    await log.truncation.retention(shelf.later(2 * HOUR), high_watermark=51)
    assert (log.start_offset, log.end_offset, log.segment_count) == (51, 51, 1)
    assert log.read(51, 100, 51) is EMPTY
    assert shelf.append(log).base_offset == 51
    await log.close()
    assert shelf.open(recovery_point=52, clean=True).start_offset == 51


async def test_segments_over_the_size_limit_go(shelf: Shelf) -> None:
    log = segments(shelf, retention_bytes=2500)
    sizes = [segment.size for segment in log._segments]
    await log.truncation.retention(shelf.now, high_watermark=51)
    assert log.size >= 2500
    assert log.size - sizes[0] < 2500


@pytest.mark.parametrize(("by_age", "by_size"), [(HOUR, -1), (-1, 10)])
async def test_an_empty_segment_at_the_start_keeps_no_other(
    shelf: Shelf, by_age: int, by_size: int
) -> None:
    """Where the log of which this is a copy had a gap at its start."""
    limits = TopicSettings(segment_bytes=4000, retention_ms=by_age, retention_bytes=by_size)
    log = shelf.open(settings=limits)
    log.skip_to(5, shelf.now)
    for _ in range(100):
        shelf.append(log)
    shelf.later(2 * HOUR)
    gone = await log.truncation.retention(shelf.now, log.end_offset)
    assert [base for base, _ in gone][:2] == [0, 5]
    assert log.start_offset > 50
    shelf.append(log)
    last = log.segment_count
    await log.truncation.retention(shelf.now, log.end_offset)
    assert log.segment_count == last


async def test_without_the_delete_policy_only_records_before_the_start_go(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=1, retention_bytes=1, cleanup_policy=("compact",))
    assert await log.truncation.retention(shelf.later(HOUR), 51) == []
    log.delete_records_to(33)
    assert [why for _, why in await log.truncation.retention(shelf.now, 51)] == [Reason.START] * 3
    assert log.start_offset == 33


async def test_a_restarted_log_knows_the_age_of_its_segments(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=3 * HOUR)
    await log.close()
    log = shelf.open(recovery_point=51, clean=True, settings=log.settings)
    shelf.disk.touched.clear()
    await log.truncation.retention(shelf.now, high_watermark=51)
    assert log.start_offset == 20
    read = {name for what, name in shelf.disk.touched if what == "read"}
    looked_at = {int(name[:20]) for name in read}
    assert looked_at == {0, 10, 20}, "nothing is read of segments after one that stays"
    assert f"{20:020}.log" not in read, "only what is to be deleted is confirmed"


@pytest.mark.parametrize("turn", range(1, 5))
async def test_retention_beside_a_compaction_deletes_nothing_that_is_young(
    shelf: Shelf, turn: int
) -> None:
    """Three old segments become one while their age is looked up: what was the third is young."""
    policy = TopicSettings(
        cleanup_policy=("compact", "delete"),
        segment_bytes=4000,
        index_interval_bytes=100,
        retention_ms=24 * HOUR,
    )
    log = shelf.open(settings=policy)
    for number in range(3):
        append(log, [("k", f"old{number}")], shelf.now)
        log.roll(shelf.now)
    shelf.later(48 * HOUR)
    for number in range(2):
        append(log, [(f"young{number}", "v")], shelf.now)
        log.roll(shelf.now)
    append(log, [("active", "v")], shelf.now)
    await log.close()
    log = shelf.open(settings=policy, recovery_point=6, clean=True)  # which knows no timestamps
    work = at_once(work_on(log, 0, 3, MEANS, bytes(16), shelf.now))
    (rewritten,) = (step for step in clean(shelf.disk, work) if isinstance(step, Rewritten))
    assert rewritten.replaced == (0, 1, 2)
    await log.compaction.sync(rewritten)
    turns = shelf.after_offload(
        turn,
        lambda: log.compaction.swap(rewritten, log.compaction.generation, shelf.now.mono_ms),
    )
    await log.truncation.retention(shelf.now, log.end_offset)
    assert len(turns) >= turn
    assert [r.key for r in await shelf.consume(log)] == [b"young0", b"young1", b"active"]


@pytest.mark.parametrize("turn", range(1, 6))
async def test_retention_leaves_a_log_alone_that_begins_anew_meanwhile(
    shelf: Shelf, turn: int
) -> None:
    """A follower is told where its leader's log begins now while its own is looked at."""
    log = segments(shelf, retention_ms=HOUR)
    await log.close()
    log = shelf.open(settings=log.settings, recovery_point=51, clean=True)
    shelf.later(2 * HOUR)
    turns = shelf.after_offload(turn, lambda: log.truncation.truncate_fully(1000, shelf.now))
    await log.truncation.retention(shelf.now, 51)
    assert len(turns) >= turn
    assert (log.start_offset, log.segment_count, log.failure) == (1000, 1, None)
    shelf.append(log)
    await log.flush()
    assert [r.offset for r in await shelf.consume(log)] == [1000]


async def test_age_is_left_alone_while_the_clock_is_in_doubt(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=HOUR)
    assert await log.truncation.retention(shelf.later(100 * HOUR), 51, by_age=False) == []


async def test_readers_of_a_deleted_segment_finish(shelf: Shelf) -> None:
    log = segments(shelf, retention_ms=HOUR)
    found = log.read(0, 1 << 20, 51)
    assert isinstance(found, Slice)
    await log.truncation.retention(shelf.later(50 * HOUR), 51)
    view = memoryview(bytearray(found.size))
    assert found.file.pread_into(view, found.position) == found.size
    with pytest.raises(KafkaError) as refused:
        log.read(0, 100, 51)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_deleting_records_moves_the_start_and_whole_segments_follow(shelf: Shelf) -> None:
    log = segments(shelf)
    assert log.delete_records_to(25) == 25
    assert log.delete_records_to(7) == 25
    with pytest.raises(KafkaError):
        log.read(24, 100, 51)
    assert (await shelf.consume(log))[0].offset == 25
    assert [base for base, _ in await log.truncation.retention(shelf.now, 51)] == [0, 10]
    assert log.first_segment_offset == 20
    assert log.epoch_of(25) == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(-1, 300), st.data())
def test_size_retention_keeps_at_least_what_it_promises(
    sizes: list[int], limit: int, data: st.DataObject
) -> None:
    facts = [SegmentFacts(10 * (i + 1), size) for i, size in enumerate(sizes)]
    mark = data.draw(st.integers(0, 10 * len(sizes)))
    count = over_size(facts, limit, mark)
    if limit < 0:
        assert count == 0
    kept = sum(sizes[count:])
    assert count == 0 or kept >= limit
    assert all(each.end_offset <= mark for each in facts[:count])
    if limit >= 0 and count < len(sizes) and facts[count].end_offset <= mark:
        assert kept - sizes[count] < limit


def test_the_active_segment_is_never_before_the_start() -> None:
    facts = [SegmentFacts(10, 1), SegmentFacts(20, 1), SegmentFacts(30, 1)]
    assert [before_start(facts, at) for at in (0, 9, 10, 25, 30)] == [0, 0, 1, 2, 2]


def test_a_clock_that_jumps_ahead_is_not_believed_for_a_day() -> None:
    watch = ClockWatch(Instant(0, 0))
    assert watch.believes(Instant(10_000, 10_000 + FAR_MS))
    assert not watch.believes(Instant(20_000, 20_000 + FAR_MS + 1))
    assert watch.jump_ms == FAR_MS + 1
    assert not watch.believes(Instant(19_999 + PAUSE_MS, 20_000 + PAUSE_MS + 2 * FAR_MS))
    assert watch.believes(Instant(20_000 + PAUSE_MS, 20_000 + PAUSE_MS + 2 * FAR_MS))
    assert watch.jump_ms == 0


def test_a_clock_that_comes_back_is_believed_at_once() -> None:
    watch = ClockWatch(Instant(0, 10 * FAR_MS))
    assert not watch.believes(Instant(1000, 20 * FAR_MS))
    assert watch.believes(Instant(2000, 10 * FAR_MS + 2000))
    assert watch.believes(Instant(3000, 0)), "backwards only keeps more"
    assert watch.believes(Instant(4000, 10 * FAR_MS + 4000))


# ---- truncation ----


@pytest.mark.parametrize("reopened", [False, True])
async def test_truncation_leaves_a_prefix_of_whole_batches(shelf: Shelf, reopened: bool) -> None:
    log = shelf.open()
    for i in range(60):
        shelf.append(log, 2, epoch=i // 20, producer_id=1, producer_epoch=0, base_sequence=2 * i)
    before = await shelf.consume(log)
    await log.flush()
    for offset in (119, 90, 61, 7, 0):
        if reopened:
            await log.close()
            log = shelf.open(recovery_point=log.end_offset, clean=True)
        assert log.truncation.truncate_to(offset, shelf.now)
        end = offset // 2 * 2
        assert (log.end_offset, log.flushed_offset) == (end, end)
        assert await shelf.consume(log) == before[:end]
        assert all(start < max(end, 1) for _, start in log.epochs.entries())
        if end:
            assert next(log.active_producers()).last_sequence == end - 1
        sequence = end
        again = shelf.append(log, 2, producer_id=1, producer_epoch=0, base_sequence=sequence)
        assert again.base_offset == end
        assert (await shelf.headers(log, end))[0].base_offset == end


async def test_a_log_that_is_truncated_to_a_gap_is_read_on_from_there(shelf: Shelf) -> None:
    """What compaction has left is shorter, and a leader that lost the rest goes on within the gap:
    that is no damage."""
    log = shelf.open()
    for base_offset, count in ((0, 10), (20, 5)):
        follow(shelf, log, base_offset, count)
    log.truncation.truncate_to(15, shelf.now)
    assert log.end_offset == 15
    follow(shelf, log, 15, 3)
    bases = {offset: (await shelf.headers(log, offset))[0].base_offset for offset in range(18)}
    assert bases == {offset: 0 if offset < 10 else 15 for offset in range(18)}


def follow(shelf: Shelf, log: Log, base_offset: int, count: int) -> None:
    batch = shelf.batch(count)
    stamp(batch, 0, base_offset, 0)
    log.append_follower(memoryview(batch), shelf.now)


async def test_truncating_beyond_the_end_only_forgets_an_epoch_without_records(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    shelf.append(log, 3, epoch=1)
    log.begin_epoch(2)
    assert log.epochs.entries() == [(1, 0), (2, 3)]
    assert not log.truncation.truncate_to(3, shelf.now)
    assert log.epochs.entries() == [(1, 0)]


async def test_a_log_can_be_emptied_and_go_on_elsewhere(shelf: Shelf) -> None:
    log = segments(shelf)
    log.truncation.truncate_fully(1000, shelf.now)
    assert (log.start_offset, log.end_offset, log.segment_count) == (1000, 1000, 1)
    assert shelf.append(log).base_offset == 1000
    await log.flush()
    assert log.flushed_offset == 1001
    await log.truncation.retention(shelf.later(60_000), 1001)
    assert shelf.files(".log") == [f"{1000:020}.log"]
    log.truncation.truncate_to(5, shelf.now)
    assert (log.start_offset, log.end_offset) == (5, 5)


async def test_the_last_stable_offset_is_never_before_the_start(shelf: Shelf) -> None:
    log = shelf.open()
    data = shelf.batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    shelf.append_batch(log, data)
    shelf.append(log, 4)
    assert log.last_stable_offset(5) == 0
    log.delete_records_to(2)
    assert log.last_stable_offset(5) == 2
    assert log.last_stable_offset(1) == 1, "a follower's high watermark may lag behind its start"


async def test_a_log_that_begins_anew_has_no_transaction_of_before(shelf: Shelf) -> None:
    """Its leader's retention took the records of that one, so that no marker comes to end it."""
    log = shelf.open()
    data = shelf.batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    shelf.append_batch(log, data)
    await log.close()
    log = shelf.open(recovery_point=1, clean=True)
    assert log.last_stable_offset(1) == 0
    log.truncation.truncate_fully(1000, shelf.now)
    shelf.append(log)
    assert log.last_stable_offset(1001) == 1001
    assert list(log.active_producers()) == []
    assert shelf.files(".snapshot") == []
    await log.close()
    log = shelf.open(recovery_point=1001, clean=True)
    assert log.last_stable_offset(1001) == 1001


async def test_producers_that_were_found_off_the_loop_are_not_looked_for_on_it(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    for _ in range(100):
        shelf.append(log)  # by no producer that has an id
    producers = await log.truncation.producers_at(90, shelf.now)
    assert producers is not None
    log.truncation.shorten(90, shelf.now, producers)
    assert log.producers is producers


async def test_a_flush_that_began_before_a_truncation_promises_nothing(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 10)
    shelf.append(log, 10)
    shelf.disk.gate = asyncio.Event()
    flush = asyncio.create_task(log.flush())
    while not shelf.disk.calls["sync"]:
        await asyncio.sleep(0)
    log.truncation.truncate_to(10, shelf.now)
    shelf.append(log, 10, size=50)
    gate, shelf.disk.gate = shelf.disk.gate, None
    syncs = shelf.disk.calls["sync"]
    gate.set()
    await flush
    assert log.flushed_offset == 20
    assert shelf.disk.calls["sync"] > syncs


# ---- the end of a partition ----


async def test_a_deleted_partition_gets_another_name_at_once_and_goes_later(shelf: Shelf) -> None:
    log = shelf.open(topic_id=b"i" * 16)
    shelf.append(log)
    log.truncation.begin_delete()
    names = [path.name for path in shelf.root.iterdir()]
    assert names == [f"t-0.{(b'i' * 16).hex()}-delete"]
    with pytest.raises(KafkaError) as refused:
        shelf.append(log)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = shelf.open(topic_id=b"j" * 16)
    assert again.end_offset == 0
    await log.truncation.remove_files()
    assert [path.name for path in shelf.root.iterdir()] == ["t-0"]


async def test_senders_finish_although_their_partition_is_deleted(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    found = log.read(0, 1000, 1)
    assert isinstance(found, Slice)
    log.truncation.begin_delete(b"u" * 16)
    view = memoryview(bytearray(found.size))
    assert found.file.pread_into(view, found.position) == found.size
    await log.truncation.remove_files()
    with pytest.raises(OSError, match="descriptor"):
        found.file.pread_into(view, found.position)


async def test_deleting_a_partition_while_it_is_flushed_harms_neither_device_nor_successor(
    shelf: Shelf,
) -> None:
    told: list[str] = []
    log = shelf.open(on_failure=lambda log, failure: told.append(failure))
    for _ in range(60):
        shelf.append(log, epoch=3)
    shelf.disk.gate = asyncio.Event()
    flush = asyncio.create_task(log.flush())
    while not shelf.disk.calls["sync"]:
        await asyncio.sleep(0)
    log.truncation.begin_delete(b"u" * 16)
    successor = shelf.open()
    shelf.append(successor, epoch=9)
    shelf.disk.gate.set()
    await asyncio.wait([flush])
    assert told == []
    await successor.flush()
    assert (shelf.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n9 0\n"
    assert shelf.files(".index") == [f"{0:020}.index"]
    assert len(await shelf.consume(successor)) == 1


async def test_readers_of_many_segments_leave_few_files_open(shelf: Shelf) -> None:
    log = segments(shelf, count=40, retention_ms=-1)
    await log.flush()
    await shelf.consume(log)
    await log.offset_for_timestamp(0)
    await log.max_timestamp_offset()
    for _ in range(3):
        await log.truncation.retention(shelf.later(1000), 401)
    open_files = [segment for segment in log._segments if segment.file is not None]
    assert len(open_files) <= 5
    assert len(await shelf.consume(log)) == 401


async def test_retention_on_a_full_device_drops_what_it_can_and_the_rest_later(
    shelf: Shelf,
) -> None:
    log = segments(shelf, retention_ms=HOUR)
    shelf.later(5 * HOUR)
    shelf.disk.full = "index"
    told: list[str] = []
    log.on_refused = told.append
    await log.truncation.retention(shelf.now, 51)
    assert ["t-0 cannot begin a segment" in each for each in told] == [True]
    # All but the last segment are gone: that is what makes the room.
    assert (log.segment_count, log.failure) == (1, None)
    assert 0 < log.start_offset < 51
    shelf.disk.full = ""
    await log.truncation.retention(shelf.now, 51)
    assert (log.start_offset, log.failure) == (51, None)


def no_longer_names(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device so full that a directory takes no entry more."""

    def rename(old: str, new: str) -> Never:
        raise OSError(errno.ENOSPC, "no space left", new)

    monkeypatch.setattr(shelf.disk, "rename", rename)


async def test_segments_go_at_once_where_not_even_another_name_fits(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = segments(shelf, retention_ms=HOUR)
    shelf.later(5 * HOUR)
    before = log.segment_count
    no_longer_names(shelf, monkeypatch)
    await log.truncation.retention(shelf.now, 51)
    assert (log.start_offset, log.segment_count) == (51, 1) != (0, before)
    assert len(shelf.files(".log")) == 1


async def test_a_topic_is_deleted_where_not_even_another_name_fits(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = segments(shelf)
    no_longer_names(shelf, monkeypatch)
    log.truncation.begin_delete()
    assert not (shelf.root / "t-0").exists()
    await log.truncation.remove_files()
