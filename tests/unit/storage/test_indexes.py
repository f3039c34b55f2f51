"""Offset, time and transaction indexes: Kafka's bytes, and what is kept of them in memory."""

import struct
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.storage.producers.state import AbortedTxn
from scriba.storage.segments.aborted import AbortedTxns
from scriba.storage.segments.index import OffsetIndex, TimeIndex

BASE = 1000
SIZE = 10**9

batches = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(1, 500)), min_size=1, max_size=60
)


def laid_out(steps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(first offset, last offset, position) of batches with these gaps, lengths and sizes."""
    offset, position, found = BASE, 0, []
    for gap, more, size in steps:
        offset += gap
        found.append((offset, offset + more, position))
        offset += more + 1
        position += size
    return found


@given(batches, st.integers(1, 4), st.data())
def test_an_offset_is_looked_for_at_or_before_its_batch(
    steps: list[tuple[int, int, int]], every: int, data: st.DataObject
) -> None:
    all_batches = laid_out(steps)
    index = OffsetIndex(BASE)
    for batch in all_batches[1::every]:
        index.append(*batch)
    restarted = data.draw(st.booleans())
    if restarted:
        stored = index.fresh()
        index = OffsetIndex(BASE, len(stored) // 8)
        assert index.load(stored, SIZE)
    target = data.draw(st.integers(BASE, all_batches[-1][1]))
    position, named, exact = index.locate(target)
    wanted = next(at for first, last, at in all_batches if last >= target)
    assert position <= wanted
    if exact:
        assert position == wanted
    elif named >= 0:
        assert (named, position) in [(last, at) for _, last, at in all_batches]
    entries = [(at, last) for _, last, at in all_batches[1::every]]
    limit = data.draw(st.integers(0, 30_000))
    below = bisect_right(entries, limit, key=lambda entry: entry[0])
    assert index.floor(limit) == (entries[below - 1] if below else (0, -1))


@given(batches, st.data())
def test_entries_are_the_same_whether_in_memory_or_in_the_file(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    entries = laid_out(steps)[1:]
    index = OffsetIndex(BASE)
    file = bytearray()
    for entry in entries:
        index.append(*entry)
        match data.draw(st.sampled_from(["nothing", "write", "forget", "load"])):
            case "write":
                file += index.fresh()
                index.written = len(index)
            case "forget":
                index.forget(data.draw(st.integers(0, 3)))
            case "load":
                assert index.load(bytes(file), SIZE)
    file += index.fresh()
    index.written = len(index)
    assert len(index) == len(entries)
    expected = b"".join(struct.pack(">ii", last - BASE, at) for _, last, at in entries)
    assert bytes(file) == expected
    index.load(bytes(file), SIZE)
    for _, last, at in entries:
        assert index.locate(last)[:2] == (at, last)


def test_zeros_at_the_end_and_entries_past_the_log_are_left_out() -> None:
    entries = struct.pack(">iiiiii", 5, 100, 9, 256, 12, 700)
    index = OffsetIndex(BASE, 10)
    assert index.load(entries + bytes(56), log_size=700)
    assert len(index) == 2
    assert index.last() == (BASE + 9, 256)
    assert index.shrunk


@pytest.mark.parametrize(
    "entries", [(5, 100, 5, 200), (5, 100, 6, 100), (5, 0), (9, 300, 7, 400), (7, 400, 9, 300)]
)
def test_entries_that_do_not_rise_are_damage(entries: tuple[int, ...]) -> None:
    index = OffsetIndex(BASE, len(entries) // 2)
    assert not index.load(struct.pack(f">{len(entries)}i", *entries), SIZE)
    assert index.skipped == len(entries) // 2


def test_a_repaired_index_goes_on_with_what_was_never_in_the_file() -> None:
    index = OffsetIndex(BASE, 2)
    assert index.load(struct.pack(">iiii", 15, 1234, 25, 2222), SIZE)
    index.append(BASE + 80, BASE + 89, 8000)
    index.append(BASE + 90, BASE + 99, 9000)
    rebuilt = OffsetIndex(BASE)
    for at in range(1, 9):
        rebuilt.append(BASE + 10 * at, BASE + 10 * at + 9, 1000 * at)
    index.replace(rebuilt)
    assert [index.locate(BASE + 10 * at)[0] for at in range(1, 10)] == [
        1000 * i for i in range(1, 10)
    ]
    assert (len(index), index.unwritten) == (9, 9)


def test_a_repaired_time_index_goes_on_too() -> None:
    index = TimeIndex(BASE, 1)
    assert index.load(struct.pack(">qi", 9, 3), 2**40)
    index.append(20, BASE + 40)
    index.append(30, BASE + 50)
    rebuilt = TimeIndex(BASE)
    rebuilt.append(10, BASE + 5)
    rebuilt.append(20, BASE + 40)
    index.replace(rebuilt)
    assert index.fresh() == struct.pack(">qiqiqi", 10, 5, 20, 40, 30, 50)
    assert index.last == (30, BASE + 50)


stamps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=50)


@given(stamps, st.integers(-1, 60))
def test_records_before_the_found_offset_are_all_older(
    steps: list[tuple[int, int]], target: int
) -> None:
    index = TimeIndex(BASE)
    offset, latest, seen = BASE, (-1, BASE), []
    for stamp, more in steps:
        offset += more + 1
        if stamp > latest[0]:
            latest = (stamp, offset)
        seen.append((offset, stamp))
        index.append(*latest)
    stored = index.fresh()
    again = TimeIndex(BASE, len(stored) // 12)
    assert again.load(stored, 2**40)
    for each in (index, again):
        found = each.locate(target)
        assert all(stamp <= target for at, stamp in seen if at < found)
        assert each.last == latest


def test_time_entries_of_a_lost_tail_are_left_out() -> None:
    index = TimeIndex(BASE, 3)
    assert index.load(struct.pack(">qiqiqi", 10, 1, 20, 5, 30, 9), end_offset=BASE + 9)
    assert (len(index), index.last) == (2, (20, BASE + 5))
    index.truncate(BASE + 5)
    assert (len(index), index.last) == (1, (10, BASE + 1))


def test_damage_in_a_time_index_is_noticed() -> None:
    for entries in ((10, 5, 10, 6), (10, 5, 20, 4), (-5, 1, 7, 2)):
        assert not TimeIndex(BASE, 2).load(struct.pack(">qiqi", *entries), 2**40)


def loaded_one_by_one(entries: list[tuple[int, int]], end_offset: int) -> int | None:
    """How many entries of a file are taken; None if it is damaged."""
    before, taken = (-1, -1), 0
    for timestamp, relative in entries:
        if timestamp <= before[0] or relative < max(before[1], 0):
            return None
        before = (timestamp, relative)
        taken += BASE + relative < end_offset
    return taken


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 0, -1, 2**32, 2**62, -(2**63)]),
            st.sampled_from([0, 1, 2, 5, -3, 2**30]),
        ),
        max_size=9,
    ),
    st.integers(0, 12),
)
def test_a_time_index_is_taken_as_if_its_entries_were_looked_at_one_by_one(
    steps: list[tuple[int, int]], past: int
) -> None:
    entries, timestamp, relative = list[tuple[int, int]](), 0, 0
    for later, further in steps:
        timestamp = max(min(timestamp + later, 2**63 - 1), -(2**63))
        relative = max(min(relative + further, 2**31 - 1), -(2**31))
        entries.append((timestamp, relative))
    index = TimeIndex(BASE, len(entries))
    good = index.load(b"".join(struct.pack(">qi", *each) for each in entries), BASE + past)
    taken = loaded_one_by_one(entries, BASE + past)
    assert good == (taken is not None)
    assert not good or len(index) == taken


def test_the_last_entry_alone_is_enough_to_go_on() -> None:
    index = TimeIndex(BASE, 2)
    assert index.read_last(struct.pack(">qi", 20, 5))
    index.append(15, BASE + 9)
    index.append(25, BASE + 12)
    assert (len(index), index.fresh()) == (3, struct.pack(">qi", 25, 12))
    assert not index.read_last(bytes(12))
    assert not index.read_last(b"\xff" * 12)


def test_aborted_transactions_are_found_by_what_a_reader_reads() -> None:
    index = AbortedTxns()
    lines = [AbortedTxn(1, 10, 19, 15), AbortedTxn(2, 15, 29, 30), AbortedTxn(1, 40, 49, 50)]
    data = b"".join(index.append(line) for line in lines)
    assert len(data) == 3 * 34
    for each in (index, AbortedTxns(data + b"torn")):
        assert each.sound(0)
        found: list[AbortedTxn] = []
        assert not each.collect(20, 100, found)
        assert found == lines[1:]
        found.clear()
        assert each.collect(0, 12, found)
        assert found == lines[:1]
        assert each.truncate(29)
        assert each.encode() == data[:34]
        assert not each.truncate(20)
    assert not AbortedTxns(b"\1" * 34).sound(0)
