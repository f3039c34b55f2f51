"""Batches that a leader sent, walked over in one call: taken as far as they are whole and right."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.native.implementation import FALLBACK, Implementation
from scriba.records.batch import Record, encode_batch
from scriba.records.header import BatchHeader, read_header, stamp

pytestmark = pytest.mark.usefixtures("chosen")

Spoilt = list[tuple[int, int]]


def batches(*places: tuple[int, int], size: int = 10) -> bytearray:
    """A batch for each first offset and number of records, one behind the other."""
    found = bytearray()
    for offset, count in places:
        one = bytearray(encode_batch([Record(n, 5, None, bytes(size)) for n in range(count)]))
        stamp(one, 0, offset, 3)
        found += one
    return found


def offsets(found: list[tuple[int, BatchHeader]]) -> list[int]:
    return [header.base_offset for _, header in found]


@pytest.mark.parametrize("size", [0, 10, 3_000])
def test_whole_batches_are_found_with_their_headers(chosen: Implementation, size: int) -> None:
    data = batches((7, 3), (10, 1), (15, 2), size=size)
    found = chosen.checked_batches(memoryview(data), 7)
    assert offsets(found) == [7, 10, 15], "compaction leaves gaps"
    assert all(header == read_header(data, position) for position, header in found)
    position, last = found[-1]
    assert position + last.size == len(data)
    assert chosen.checked_batches(memoryview(b""), 0) == []


def test_part_of_a_batch_at_the_end_is_left_out(chosen: Implementation) -> None:
    data = batches((0, 1), (1, 1))
    half = len(data) // 2
    for end in range(half, len(data)):
        assert offsets(chosen.checked_batches(memoryview(data)[:end], 0)) == [0]


@pytest.mark.parametrize("size", [10, 10_000])
def test_the_walk_ends_at_a_wrong_checksum(chosen: Implementation, size: int) -> None:
    data = batches((0, 1), (1, 1), (2, 1), size=size)
    data[2 * len(data) // 3 - 1] ^= 1
    assert offsets(chosen.checked_batches(memoryview(data), 0)) == [0]


def test_the_walk_ends_at_an_offset_that_does_not_follow(chosen: Implementation) -> None:
    assert chosen.checked_batches(memoryview(batches((4, 1))), 5) == []
    assert offsets(chosen.checked_batches(memoryview(batches((4, 2), (5, 1))), 4)) == [4]
    last = 2**63 - 1
    assert chosen.checked_batches(memoryview(batches((last, 1))), 0) == []
    assert offsets(chosen.checked_batches(memoryview(batches((last - 1, 1))), 0)) == [last - 1]
    assert chosen.checked_batches(memoryview(batches((last - 1, 2))), 0) == []


@given(
    spoilt=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    first=st.integers(-1, 12),
    cut=st.integers(0, 400),
)
def test_both_end_at_the_same_batch(
    extension: Implementation, spoilt: Spoilt, first: int, cut: int
) -> None:
    data = batches((7, 3), (10, 1), (15, 2))
    for at, byte in spoilt:
        data[at % len(data)] = byte
    view = memoryview(data)[: len(data) - cut % len(data)]
    assert extension.checked_batches(view, first) == FALLBACK.checked_batches(view, first)


def test_lengths_that_lead_outside_are_not_followed(chosen: Implementation) -> None:
    for length in (-(2**31), -1, 0, 48, 2**31 - 1):
        data = batches((0, 1))
        struct.pack_into(">i", data, 8, length)
        assert chosen.checked_batches(memoryview(data), 0) == []
