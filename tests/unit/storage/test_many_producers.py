"""Snapshots of many producers: a capture, which the next sync writes in slices."""

import asyncio
import contextlib
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import KafkaError
from scriba.outcome import at_once
from scriba.records.batch import EndTxnMarker, Record, encode_batch, end_txn_batch, read_header
from scriba.storage.log import Log
from scriba.storage.producers import snapshots
from scriba.storage.producers.state import HEAD_SIZE, Producers
from tests.unit.storage.shelf import Shelf

NEVER = 2**62
PRODUCERS = 12

Write = tuple[int, bool]
"""Who writes, and whether a marker."""
writes = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=30)


def apply(state: Producers, written: list[Write], first: int) -> None:
    for offset, (pid, marks) in enumerate(written, first):
        if marks:
            marker = EndTxnMarker(True, 0)
            state.end_txn(read_header(end_txn_batch(pid, 0, marker, offset)), marker, offset, 100)
        else:
            batch = encode_batch(
                [Record(timestamp=offset)],
                producer_id=pid,
                producer_epoch=0,
                base_sequence=offset,
                transactional=pid % 2 == 0,
            )
            state.update(read_header(batch), offset, 100)


@given(writes, st.lists(writes, max_size=6), writes, st.integers(1, 4))
def test_a_capture_stays_as_it_was_taken_whatever_is_written_meanwhile(
    before: list[Write], meanwhile: list[list[Write]], after: list[Write], in_one: int
) -> None:
    state, other = Producers(), Producers()
    apply(state, before, 0)
    apply(other, before, 0)
    expected = state.encode()
    capture = state.capture()
    data = bytearray(HEAD_SIZE)
    offset = 100
    for position, piece in capture.encode(in_one):
        data[position : position + len(piece)] = piece
        if meanwhile:
            written = meanwhile.pop()
            apply(state, written, offset)
            apply(other, written, offset)
            offset += 100
        assert sorted(state.active()) == sorted(other.active())
        assert len(state) == len(other)
    assert bytes(data) == expected
    capture.end()
    apply(state, after, offset)
    apply(other, after, offset)
    assert sorted(state.active()) == sorted(other.active())
    last = at_once(other.last_written(NEVER))
    assert at_once(state.last_written(NEVER)) == last
    assert list(state.open.items()) == list(other.open.items())
    assert at_once(Producers.decode(state.encode(), 0, NEVER).last_written(NEVER)) == last


def test_who_has_written_and_who_is_forgotten_is_found_in_steps_between_which_they_write() -> None:
    state = Producers()
    apply(state, [(pid, False) for pid in range(1, 6)], 0)
    looking = state.last_written(50)
    assert sum(1 for _ in zip(range(2), looking, strict=False)) == 2
    apply(state, [(5, False)], 60)
    assert {pid: last.offset for pid, last in at_once(looking).items()} == {1: 0, 2: 1, 3: 2, 4: 3}
    forgetting = state.expire(NEVER, 1)
    next(forgetting)
    next(forgetting)
    assert len(state) == 4, "one by one"
    state.capture()
    assert at_once(forgetting) == 1
    assert len(state) == 4


def test_a_capture_ends_with_the_next_and_nobody_is_forgotten_while_there_is_one() -> None:
    state = Producers()
    apply(state, [(1, False), (3, False)], 0)
    first = state.capture()
    assert at_once(state.expire(NEVER, 1)) == 0
    second = state.capture()
    assert (first.ended, second.ended) == (True, False)
    first.end()
    assert len(state) == 2
    second.end()
    assert at_once(state.expire(NEVER, 1)) == 2


# ---- through the log ----


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three producers are many, and two of them a slice."""
    monkeypatch.setattr(snapshots, "AT_ONCE", 2)
    monkeypatch.setattr(snapshots, "SLICE", 2)


def write(shelf: Shelf, log: Log, rounds: int, first: int = 0) -> None:
    for sequence in range(first, first + rounds):
        for pid in range(PRODUCERS):
            shelf.append(log, producer_id=pid, producer_epoch=0, base_sequence=sequence)


async def ends(log: Log, shelf: Shelf, recovery_point: int, clean: bool) -> None:
    """Whoever is started here knows the producers as the one before did."""
    known = sorted(log.active_producers())
    again = shelf.open(recovery_point=recovery_point, clean=clean)
    assert sorted(again.active_producers()) == known
    assert again.end_offset == log.end_offset
    await again.close()


@pytest.mark.usefixtures("few")
async def test_a_roll_writes_no_snapshot_of_many_and_the_next_flush_does(shelf: Shelf) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    taken = log.producers.encode()
    assert shelf.files(".snapshot") == []
    shelf.append(log, producer_id=3, producer_epoch=0, base_sequence=1)
    await log.flush(log.sealed_offset)
    assert shelf.files(".snapshot") == [f"{PRODUCERS:020}.snapshot"]
    assert (shelf.directory / f"{PRODUCERS:020}.snapshot").read_bytes() == taken
    await ends(log, shelf, log.sealed_offset, clean=False)


@pytest.mark.usefixtures("few")
async def test_a_snapshot_of_many_is_written_in_slices_between_which_others_append(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    flushing = asyncio.ensure_future(log.flush(log.sealed_offset))
    sequence = 0
    while not flushing.done():
        sequence += 1
        shelf.append(log, producer_id=5, producer_epoch=0, base_sequence=sequence)
        await asyncio.sleep(0)
    await flushing
    assert sequence > PRODUCERS // 2
    await ends(log, shelf, log.flushed_offset, clean=False)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("rolls", [1, 3])
async def test_a_close_leaves_the_snapshot_of_its_end(shelf: Shelf, rolls: int) -> None:
    """Also where one of an earlier point was not written yet."""
    log = shelf.open()
    for turn in range(rolls):
        write(shelf, log, 1, turn)
        log.roll(shelf.now)
    write(shelf, log, 1, rolls)
    await log.close()
    assert f"{log.end_offset:020}.snapshot" in shelf.files(".snapshot")
    shelf.disk.touched.clear()
    again = shelf.open(recovery_point=log.end_offset, clean=True)
    assert not [name for what, name in shelf.disk.touched if name.endswith(".log")]
    assert sorted(again.active_producers()) == sorted(log.active_producers())


@pytest.mark.usefixtures("few")
async def test_rolls_that_come_before_a_snapshot_is_written_have_one_taken_later(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    write(shelf, log, 1, 1)
    log.roll(shelf.now)
    write(shelf, log, 1, 2)
    await log.flush()
    assert shelf.files(".snapshot") == [f"{PRODUCERS:020}.snapshot"]
    shelf.append(log, producer_id=3, producer_epoch=0, base_sequence=3)
    await log.flush()
    assert shelf.files(".snapshot")[-1] == f"{log.end_offset:020}.snapshot"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("to", [6, PRODUCERS, PRODUCERS + 2])
async def test_a_truncation_while_one_is_written(shelf: Shelf, to: int) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    write(shelf, log, 1, 1)
    flushing = asyncio.ensure_future(log.flush(log.sealed_offset))
    while not shelf.files(".snapshot"):  # noqa: ASYNC110
        await asyncio.sleep(0)
    log.truncation.truncate_to(to, shelf.now)
    await flushing
    await log.sync()
    assert all(int(name[:20]) <= to for name in log_snapshots(log))
    await ends(log, shelf, 0, clean=False)


def log_snapshots(log: Log) -> list[str]:
    return [f"{offset:020}" for offset in log._snapshots.offsets]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("at", range(1, PRODUCERS // 2 + 3))
async def test_one_that_a_crash_left_half_written_is_left_aside(shelf: Shelf, at: int) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    flushing = asyncio.ensure_future(log.flush(log.sealed_offset))
    for _ in range(at):
        await asyncio.sleep(0)
    flushing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await flushing
    await ends(log, shelf, 0, clean=False)


@pytest.mark.usefixtures("few")
async def test_a_device_without_room_for_one_costs_the_next_start_more_reading(
    shelf: Shelf,
) -> None:
    told: list[str] = []
    log = shelf.open()
    log.on_refused = told.append
    write(shelf, log, 1)
    log.roll(shelf.now)
    shelf.disk.full = ".snapshot"
    await log.flush(log.sealed_offset)
    assert log.flushed_offset == log.sealed_offset
    assert [text for text in told if "cannot take a snapshot" in text]
    assert shelf.files(".snapshot") == []
    await ends(log, shelf, log.flushed_offset, clean=False)
    shelf.disk.full = ""
    write(shelf, log, 1, 1)
    await log.flush()
    assert f"{PRODUCERS:020}.snapshot" in shelf.files(".snapshot")


@pytest.mark.usefixtures("few")
async def test_a_device_that_does_not_take_one_refuses_the_flush_and_nothing_is_lost(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    shelf.disk.unopened = {".snapshot": errno.EIO}
    with pytest.raises(KafkaError, match="cannot take a snapshot"):
        await log.flush()
    assert log.flushed_offset == 0
    shelf.disk.unopened = {}
    shelf.disk.touched.clear()
    await log.flush()
    assert log.flushed_offset == log.end_offset
    assert ("sync", f"{0:020}.log") in shelf.disk.touched
    assert shelf.files(".snapshot") == [f"{PRODUCERS:020}.snapshot"]


@pytest.mark.usefixtures("few")
async def test_two_who_want_it_written_write_it_once(shelf: Shelf) -> None:
    log = shelf.open()
    write(shelf, log, 1)
    log.roll(shelf.now)
    shelf.disk.calls.clear()
    await asyncio.gather(log._durability.sync_snapshots(), log._durability.sync_snapshots())
    lines = -(-PRODUCERS // 2)
    assert shelf.disk.calls["write"] == lines + 1, "pieces, and the head"
