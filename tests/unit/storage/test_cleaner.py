"""Compaction of a log: what stays, what goes, and what may never change."""

from typing import Any

import pytest

from scriba.outcome import at_once
from scriba.records.batch import EndTxnMarker, end_txn_batch, read_header, walk
from scriba.records.compression import Codec
from scriba.records.header import DELETE_HORIZON
from scriba.settings import TopicSettings
from scriba.storage.compaction.cleaner import Rewritten, clean
from scriba.storage.compaction.log import work_on
from scriba.storage.compaction.source import Damage
from scriba.storage.log import Log, Slice
from scriba.testing.sim.plays.compacting import MEANS, append, compact, look
from tests.typed import present
from tests.unit.storage.shelf import Shelf

DAY_MS = 86_400_000
COMPACTED = TopicSettings(cleanup_policy=("compact",), segment_bytes=4000, index_interval_bytes=100)

pytestmark = pytest.mark.usefixtures("chosen")


@pytest.fixture
def log(shelf: Shelf) -> Log:
    shelf.settings = COMPACTED
    return shelf.open()


async def pairs(shelf: Shelf, log: Log) -> list[tuple[int, str, str | None]]:
    return [
        (
            each.offset,
            present(each.key).decode(),
            None if each.value is None else each.value.decode(),
        )
        for each in await shelf.consume(log)
    ]


def end_txn(shelf: Shelf, log: Log, producer_id: int, epoch: int, commit: bool) -> None:
    batch = end_txn_batch(producer_id, epoch, EndTxnMarker(commit, 0), shelf.now.wall_ms)
    log.append(memoryview(batch), read_header(batch), 0, shelf.now)


async def test_the_textbook_case_keeps_the_last_value_of_each_key_at_its_offset(
    shelf: Shelf, log: Log
) -> None:
    for key, value in [
        ("K1", "A"),
        ("K2", "B"),
        ("K1", "C"),
        ("K3", "D"),
        ("K2", "E"),
        ("K1", "F"),
    ]:
        append(log, [(key, value)], shelf.now)
    log.roll(shelf.now)
    done = await compact(shelf.disk, log, shelf.now)
    assert await pairs(shelf, log) == [(3, "K3", "D"), (4, "K2", "E"), (5, "K1", "F")]
    assert (done.end_offset, done.keys, done.records_read, done.records_kept) == (6, 3, 6, 3)
    assert (log.start_offset, log.end_offset) == (0, 6)


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_batch_keeps_its_place_its_codec_and_its_timestamps(
    shelf: Shelf, log: Log, codec: Codec
) -> None:
    append(log, [("a", "1"), ("b", "1"), ("a", "2")], shelf.now, codec)
    first_ms = shelf.now.wall_ms
    shelf.later(500)
    append(log, [("c", "1"), ("a", "3")], shelf.now, codec)
    log.roll(shelf.now)
    await compact(shelf.disk, log, shelf.now)
    first, second = await shelf.headers(log, 0)
    assert (first.base_offset, first.last_offset, first.count) == (0, 2, 1)
    assert first.codec == second.codec == codec
    assert [(r.offset, r.timestamp) for r in await shelf.consume(log)] == [
        (1, first_ms),
        (3, first_ms + 500),
        (4, first_ms + 500),
    ]


async def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "old")], shelf.now)
    append(log, [("b", "1"), ("c", "1")], shelf.now, Codec.LZ4, producer_id=7, producer_epoch=1,
           base_sequence=0)  # fmt: skip
    append(log, [("a", "new")], shelf.now)
    log.roll(shelf.now)
    before = await shelf.fetch(log, 1)
    await compact(shelf.disk, log, shelf.now)
    assert await shelf.fetch(log, 0) == before


async def test_a_log_without_anything_to_remove_keeps_its_files(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "1"), ("b", "1")], shelf.now)
    log.roll(shelf.now)
    path = shelf.directory / "00000000000000000000.log"
    before = path.stat()
    done = await compact(shelf.disk, log, shelf.now)
    assert done.records_kept == 2
    after = path.stat()  # not the time at which it was read
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    assert shelf.files(".cleaned") == shelf.files(".deleted") == []


async def test_a_tombstone_outlives_its_key_by_the_retention_and_then_goes(
    shelf: Shelf, log: Log
) -> None:
    append(log, [("a", "1"), ("b", "1")], shelf.now)
    append(log, [("a", None)], shelf.now)
    append(log, [("z", "1")], shelf.now)
    log.roll(shelf.now)
    sent_ms = shelf.now.wall_ms
    shelf.later(1000)
    await compact(shelf.disk, log, shelf.now)
    assert await pairs(shelf, log) == [(1, "b", "1"), (2, "a", None), (3, "z", "1")]
    _, tomb, _ = await shelf.headers(log, 0)
    assert tomb.attributes & DELETE_HORIZON
    assert tomb.base_timestamp == sent_ms + 1000 + DAY_MS
    assert tomb.max_timestamp == sent_ms
    assert [record.timestamp for record in await shelf.consume(log)] == [sent_ms] * 3
    shelf.later(DAY_MS - 1)
    await compact(shelf.disk, log, shelf.now)
    assert (2, "a", None) in await pairs(shelf, log)
    shelf.later(1)
    await compact(shelf.disk, log, shelf.now)
    assert await pairs(shelf, log) == [(1, "b", "1"), (3, "z", "1")]


async def test_a_map_too_small_takes_several_passes_and_loses_nothing(
    shelf: Shelf, log: Log
) -> None:
    small = MEANS._replace(map_bytes=1 << 12)
    for turn in range(3):
        for n in range(0, 400, 8):
            append(log, [(f"k{m}", f"{turn}") for m in range(n, n + 8)], shelf.now)
    log.roll(shelf.now)
    checkpoint, passes = 0, 0
    while checkpoint < log.end_offset:
        done = await compact(shelf.disk, log, shelf.now, checkpoint, small)
        assert done.end_offset > checkpoint
        checkpoint, passes = done.end_offset, passes + 1
    assert passes > 3
    assert sorted(await pairs(shelf, log)) == [(800 + n, f"k{n}", "2") for n in range(400)]


async def test_one_batch_with_more_keys_than_fit_is_compacted_in_parts(
    shelf: Shelf, log: Log
) -> None:
    tiny = MEANS._replace(map_bytes=600)
    append(log, [(f"k{n % 50}", f"{n}") for n in range(150)], shelf.now)
    log.roll(shelf.now)
    checkpoint = 0
    while checkpoint < log.end_offset:
        done = await compact(shelf.disk, log, shelf.now, checkpoint, tiny)
        assert done.end_offset > checkpoint
        checkpoint = done.end_offset
    assert [value for _, _, value in await pairs(shelf, log)] == [f"{n}" for n in range(100, 150)]


async def test_small_neighbours_become_one_segment_up_to_its_size(shelf: Shelf, log: Log) -> None:
    for n in range(12):
        append(log, [(f"k{n % 3}", "x" * 700)], shelf.now)
        log.roll(shelf.now)
    assert log.segment_count == 13
    await compact(shelf.disk, log, shelf.now)
    assert log.segment_count == 4
    assert [offset for offset, *_ in await pairs(shelf, log)] == [9, 10, 11]
    await compact(shelf.disk, log, shelf.now)
    assert log.segment_count == 2
    assert shelf.files(".log") == ["00000000000000000000.log", "00000000000000000012.log"]


async def test_the_active_segment_and_open_transactions_are_out_of_reach(
    shelf: Shelf, log: Log
) -> None:
    append(log, [("a", "1")], shelf.now)
    log.roll(shelf.now)
    append(log, [("a", "2")], shelf.now, producer_id=5, producer_epoch=0, base_sequence=0,
           transactional=True)  # fmt: skip
    log.roll(shelf.now)
    append(log, [("a", "3")], shelf.now)
    assert (await look(log, shelf.now)).first_uncleanable == 1
    await compact(shelf.disk, log, shelf.now)
    assert [value for _, _, value in await pairs(shelf, log)] == ["1", "2", "3"]


async def test_aborted_records_go_and_never_win_over_committed_ones(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "kept")], shelf.now)
    txn: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    append(log, [("a", "aborted")], shelf.now, producer_id=5, base_sequence=0, **txn)
    append(log, [("b", "committed")], shelf.now, producer_id=6, base_sequence=0, **txn)
    end_txn(shelf, log, 5, 0, commit=False)
    end_txn(shelf, log, 6, 0, commit=True)
    append(log, [("c", "1")], shelf.now)
    log.roll(shelf.now)
    at_once(log.producers.expire(shelf.now.wall_ms + 10, 0))
    await compact(shelf.disk, log, shelf.now)
    data = [h for h in await shelf.headers(log, 0) if not h.is_control]
    assert [(h.base_offset, h.count) for h in data] == [(0, 1), (2, 1), (5, 1)]
    [aborted] = log.aborted_transactions(0, 6)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (5, 1, 3)


async def test_markers_go_when_nothing_of_their_transaction_is_left_and_time_has_passed(
    shelf: Shelf, log: Log
) -> None:
    txn: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    append(log, [("a", "aborted")], shelf.now, producer_id=5, base_sequence=0, **txn)
    end_txn(shelf, log, 5, 0, commit=False)
    append(log, [("a", "1")], shelf.now, producer_id=6, base_sequence=0, **txn)
    end_txn(shelf, log, 6, 0, commit=True)
    append(log, [("a", "2")], shelf.now)
    log.roll(shelf.now)
    at_once(log.producers.expire(shelf.now.wall_ms + 10, 0))

    async def markers() -> list[tuple[int, int]]:
        return [
            (h.base_offset, h.attributes & DELETE_HORIZON)
            for h in await shelf.headers(log, 0)
            if h.is_control
        ]

    await compact(shelf.disk, log, shelf.now)
    assert await markers() == [(1, 0), (3, 0)]
    assert [txn.last_offset for txn in log.aborted_transactions(0, 5)] == [1]
    await compact(shelf.disk, log, shelf.now)
    assert await markers() == [(1, DELETE_HORIZON), (3, DELETE_HORIZON)]
    assert log.aborted_transactions(0, 5) == []
    shelf.later(DAY_MS)
    await compact(shelf.disk, log, shelf.now)
    assert await markers() == []
    assert await pairs(shelf, log) == [(4, "a", "2")]


async def test_a_known_producers_last_batch_stays_without_its_records(
    shelf: Shelf, log: Log
) -> None:
    append(log, [("a", "1")], shelf.now, producer_id=9, producer_epoch=2, base_sequence=0)
    append(log, [("a", "2"), ("b", "2")], shelf.now, producer_id=9, producer_epoch=2,
           base_sequence=1)  # fmt: skip
    append(log, [("a", "3"), ("b", "3")], shelf.now)
    log.roll(shelf.now)
    await compact(shelf.disk, log, shelf.now)
    empty, _ = await shelf.headers(log, 0)
    assert (empty.base_offset, empty.last_offset, empty.count) == (1, 2, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.last_sequence) == (9, 2, 2)
    await log.close()
    for name in shelf.files(".snapshot"):
        (shelf.directory / name).unlink()
    log = shelf.open(recovery_point=log.end_offset)
    assert log.failure is None
    append(log, [("c", "1")], shelf.now, producer_id=9, producer_epoch=2, base_sequence=3)
    assert await pairs(shelf, log) == [(3, "a", "3"), (4, "b", "3"), (5, "c", "1")]


async def test_a_segment_reaches_as_far_as_those_it_replaces(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "1")], shelf.now)
    log.roll(shelf.now)
    append(log, [("a", "2")], shelf.now)
    log.roll(shelf.now)
    append(log, [("a", "3")], shelf.now)
    log.roll(shelf.now)
    await compact(shelf.disk, log, shelf.now, bound=2)
    headers = await shelf.headers(log, 0)
    assert [(h.base_offset, h.count) for h in headers] == [(1, 1)]
    append(log, [("a", "4")], shelf.now)
    log.roll(shelf.now)
    await compact(shelf.disk, log, shelf.now)
    assert [(h.base_offset, h.count) for h in await shelf.headers(log, 0)] == [(3, 1)]


async def test_damage_is_found_and_nothing_is_swapped_in(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "1" * 300)], shelf.now)
    append(log, [("a", "2" * 300)], shelf.now)
    log.roll(shelf.now)
    await log.flush()
    path = shelf.directory / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    before = shelf.files()
    with pytest.raises(Damage, match=r"00000000000000000000\.log is damaged at position 0"):
        await compact(shelf.disk, log, shelf.now)
    assert shelf.files() == before


async def test_a_reader_of_a_replaced_segment_finishes(shelf: Shelf, log: Log) -> None:
    append(log, [("a", "1")], shelf.now)
    append(log, [("a", "2")], shelf.now)
    log.roll(shelf.now)
    found = await shelf.read(log, 0)
    assert isinstance(found, Slice)
    await compact(shelf.disk, log, shelf.now)
    view = memoryview(bytearray(found.size))
    assert found.file.pread_into(view, found.position) == found.size
    assert [header.base_offset for _, header in walk(view)] == [0, 1]
    assert shelf.files(".deleted")
    shelf.later(60_000)
    await log.truncation.retention(shelf.now, log.end_offset)
    assert not shelf.files(".deleted")


async def test_indexes_of_a_compacted_segment_find_every_record(shelf: Shelf, log: Log) -> None:
    for n in range(60):
        append(log, [(f"k{n % 40}", f"{n}" * 20)], shelf.now)
        shelf.later(10)
    log.roll(shelf.now)
    await compact(shelf.disk, log, shelf.now)
    await log.close()
    log = shelf.open(recovery_point=log.end_offset, clean=True)
    kept = await pairs(shelf, log)
    assert [offset for offset, *_ in kept] == list(range(20, 60))
    for offset in range(60):
        first = (await shelf.headers(log, offset, max_bytes=1))[0]
        assert first.last_offset >= offset
        assert first.base_offset == max(offset, 20)
    start_ms = shelf.now.wall_ms - 600
    found = await log.offset_for_timestamp(start_ms + 305)
    assert found is not None
    assert found.offset == 31


async def test_age_is_looked_up_only_where_a_rule_asks_and_leaves_few_files_open(
    shelf: Shelf,
) -> None:
    shelf.settings = COMPACTED.replace(max_compaction_lag_ms=5000, min_compaction_lag_ms=10)
    log = shelf.open()
    for n in range(12):
        append(log, [(f"k{n}", "v")], shelf.now)
        log.roll(shelf.now)
    await log.close()
    log = shelf.open(recovery_point=log.end_offset, clean=True)
    assert (await look(log, shelf.now)).first_uncleanable == 0
    shelf.later(5001)
    dirt = await look(log, shelf.now)
    assert (dirt.first_uncleanable, dirt.overdue_ms) == (12, 1)
    opened = [segment for segment in log._segments if segment.file is not None]
    assert len(opened) <= 5


async def test_what_an_abandoned_attempt_left_cannot_undo_a_swap(shelf: Shelf, log: Log) -> None:
    for n in range(8):
        append(log, [(f"k{n % 2}", "x" * 900)], shelf.now)
        log.roll(shelf.now)
    await log.flush()
    left = ["00000000000000000000.txnindex.cleaned", "00000000000000000001.log.cleaned"]
    for name in left:
        (shelf.directory / name).write_bytes(b"of an earlier attempt")
    await compact(shelf.disk, log, shelf.now)
    assert shelf.files(".cleaned") == []
    assert [offset for offset, *_ in await pairs(shelf, log)] == [6, 7]


async def stopped_log(shelf: Shelf, log: Log) -> list[tuple[int, str, str | None]]:
    """Three closed segments, on disk; what they say."""
    for n in range(3):
        append(log, [("a", f"{n}"), (f"k{n}", "v")], shelf.now)
        log.roll(shelf.now)
    said = await pairs(shelf, log)
    await log.close()
    return said


async def test_a_start_gives_the_last_files_of_a_swap_their_names(shelf: Shelf, log: Log) -> None:
    said = await stopped_log(shelf, log)
    for suffix in (".index", ".timeindex"):
        path = shelf.directory / f"00000000000000000000{suffix}"
        path.rename(f"{path}.swap")
    log = shelf.open(recovery_point=6)
    assert await pairs(shelf, log) == said
    assert shelf.files(".swap") == []
    assert len(shelf.files(".timeindex")) == len(shelf.files(".log"))


async def test_a_start_takes_back_a_segment_of_which_parts_are_unfinished(
    shelf: Shelf, log: Log
) -> None:
    said = await stopped_log(shelf, log)
    for name, content in [("2.log.swap", b""), ("2.index.cleaned", b""), ("4.log.cleaned", b"?")]:
        (shelf.directory / name.rjust(19 + len(name), "0")).write_bytes(content)
    assert shelf.files(".swap") == ["00000000000000000002.log.swap"]
    log = shelf.open(recovery_point=6)
    assert await pairs(shelf, log) == said
    assert shelf.files(".swap") == shelf.files(".cleaned") == []


async def test_a_start_puts_a_finished_segment_in_the_place_of_its_sources(
    shelf: Shelf, log: Log
) -> None:
    await stopped_log(shelf, log)
    second = shelf.directory / "00000000000000000002.log"
    swap = shelf.directory / "00000000000000000000.log.swap"
    swap.write_bytes(second.read_bytes())
    log = shelf.open(recovery_point=6)
    assert [offset for offset, *_ in await pairs(shelf, log)] == [2, 3, 4, 5]
    assert len(shelf.files(".log")) == 3
    assert "00000000000000000002.log" not in shelf.files(".log")


@pytest.mark.parametrize("turn", range(1, 4))
async def test_a_search_by_time_beside_a_swap_finds_the_record_and_no_damage(
    shelf: Shelf, turn: int
) -> None:
    """What was looked up of the segment that left says nothing of the one in its place."""
    shelf.settings = COMPACTED.replace(segment_bytes=40_000)
    log = shelf.open()
    for n in range(200):
        append(log, [(f"k{n % 3}", "x" * (50 + n % 40))], shelf.later(10))
    log.roll(shelf.now)
    append(log, [("a", "v")], shelf.later(10_000))
    await log.close()
    log = shelf.open(recovery_point=log.end_offset, clean=True)
    work = at_once(work_on(log, 0, 200, MEANS, bytes(16), shelf.now))
    (rewritten,) = (step for step in clean(shelf.disk, work) if isinstance(step, Rewritten))
    await log.compaction.sync(rewritten)
    turns = shelf.after_offload(
        turn,
        lambda: log.compaction.swap(rewritten, log.compaction.generation, shelf.now.mono_ms),
    )
    found = await log.offset_for_timestamp(shelf.now.wall_ms - 10_500)
    assert len(turns) >= turn
    assert log.failure is None
    assert found is not None
    assert found.offset == 197
