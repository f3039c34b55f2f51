"""The bytes of a commit that repeats: what they take, and what they leave."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.native.implementation import Implementation
from scriba.records.batch import encode_batch
from scriba.records.header import HEADER_SIZE, BatchHeader, check_crc, read_header
from scriba.records.record import Record
from tests.typed import present

pytestmark = pytest.mark.usefixtures("chosen")

NOW = 1_700_000_000_000
START, ID = b"\0\0\0\7", b"who?"
INT64 = st.integers(-(2**63), 2**63 - 1)


def batch(*records: Record, **how: object) -> bytes:
    return bytes(encode_batch(list(records) or [Record(0, NOW, None, b"value", ())], **how))  # type: ignore[arg-type]


COMMIT = START + ID + b"one" + bytes(8) + b"two" + bytes(8) + b"end"
FIRST, SECOND = 11, 22


def stored(count: int = 2) -> bytearray:
    """A batch with a value of sixteen bytes for each commit, and where they are."""
    return bytearray(batch(*(Record(n, 0, b"key", bytes(16), ()) for n in range(count))))


def holes(data: bytearray) -> tuple[tuple[int, int, int], ...]:
    one = data.index(bytes(16), HEADER_SIZE)
    two = data.index(bytes(16), one + 17)
    return (FIRST, one, one + 8), (SECOND, two + 8, two)


def commit(first: int, second: int, id: bytes = ID) -> memoryview:
    frame = bytearray(COMMIT)
    frame[4:8] = id
    struct.pack_into(">q", frame, FIRST, first)
    struct.pack_into(">q", frame, SECOND, second)
    return memoryview(frame)


@given(first=INT64, second=INT64)
def test_a_commit_fills_the_batch_that_stores_it(
    chosen: Implementation, first: int, second: int
) -> None:
    data = stored()
    (_, *one), (_, *two) = places = holes(data)
    repeated = chosen.CommitBytes(COMMIT, data, places)
    offsets, header = present(repeated.take(commit(first, second), NOW))
    assert offsets == (first, second)
    assert [struct.unpack_from(">q", data, at)[0] for at in (*one, *two)] == [
        *(first, NOW),
        *(second, NOW),
    ]
    assert type(header) is BatchHeader
    assert header == read_header(data)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW)
    assert check_crc(memoryview(data), 0, header)


def test_a_commit_that_says_something_else_is_left_alone(chosen: Implementation) -> None:
    data = stored()
    repeated = chosen.CommitBytes(COMMIT, data, holes(data))
    before = bytes(data)
    for wrong in (COMMIT + b"\0", COMMIT[:-1], COMMIT[:8], b""):
        assert repeated.take(memoryview(wrong), NOW) is None
    free = {*range(4, 8), *range(FIRST, FIRST + 8), *range(SECOND, SECOND + 8)}
    for at in set(range(len(COMMIT))) - free:
        other = bytearray(COMMIT)
        other[at] ^= 1
        assert repeated.take(memoryview(other), NOW) is None, at
    assert bytes(data) == before
    assert repeated.take(memoryview(COMMIT), NOW) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        ((7, 70, 80),),
        ((28, 70, 80),),
        ((FIRST, 60, 80),),
        ((FIRST, 70, 10_000),),
        ((FIRST, 70, 80), (18, 70, 80)),
        ((SECOND, 70, 80), (FIRST, 70, 80)),
    ],
)
def test_holes_where_none_can_be_are_refused(
    chosen: Implementation, wrong: tuple[tuple[int, int, int], ...]
) -> None:
    with pytest.raises(ValueError, match="no offset can be there"):
        chosen.CommitBytes(COMMIT, stored(), wrong)


def test_the_batch_of_a_commit_stays_where_it_is(chosen: Implementation) -> None:
    """It is written to without a look: nobody may take its memory away meanwhile."""
    data = stored()
    repeated = chosen.CommitBytes(COMMIT, data, holes(data))
    with pytest.raises(BufferError):
        data.clear()
    assert repeated.take(commit(1, 2), NOW) is not None
