"""Forms of requests that repeat: what they take, what they leave, and what they answer."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.native.implementation import Implementation
from scriba.native.templates import Form
from scriba.records.batch import encode_batch
from scriba.records.compression import Codec
from scriba.records.crc import crc32c
from scriba.records.header import CRC_START, HEADER_SIZE, BatchHeader, check_crc, read_header
from scriba.records.record import Record
from tests.typed import present

pytestmark = pytest.mark.usefixtures("chosen")

NOW = 1_700_000_000_000
LARGE = 1 << 30
START, ID, BODY = b"\0\0\0\7", b"who?", b"front"
REPLY = bytes(range(60))
INT64 = st.integers(-(2**63), 2**63 - 1)


def batch(*records: Record, **how: object) -> bytes:
    return bytes(encode_batch(list(records) or [Record(0, NOW, None, b"value", ())], **how))  # type: ignore[arg-type]


def framed(data: bytes, compact: bool) -> memoryview:
    """A request that ends in this field."""
    front = START + ID + BODY
    if not compact:
        return memoryview(bytearray(front + struct.pack(">i", len(data)) + data))
    size, number = len(data) + 1, b""
    while size >= 0x80:
        number += bytes([size & 0x7F | 0x80])
        size >>= 7
    return memoryview(bytearray(front + number + bytes([size]) + data + bytes(3)))


def form(
    chosen: Implementation,
    compact: bool = True,
    most: int = LARGE,
    starts: bool = True,
) -> Form:
    return chosen.Form(START, BODY, compact, most, 10, 10, REPLY, 20, starts)


def taken(
    chosen: Implementation, data: bytes, compact: bool = True, most: int = LARGE
) -> tuple[memoryview, BatchHeader] | None:
    return form(chosen, compact, most).take(framed(data, compact), NOW)


# ---- Produce ----


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("size", [0, 40, 200, 20_000, 3_000_000])
def test_a_plain_batch_is_found_where_it_lies(
    chosen: Implementation, compact: bool, size: int
) -> None:
    data = batch(Record(0, NOW - 10, b"k", bytes(size), ()), Record(1, NOW + 10, None, None, ()))
    view, header = present(taken(chosen, data, compact))
    assert (bytes(view), header) == (data, read_header(data))
    assert type(header) is BatchHeader
    view[0] = 1  # it is the request's own memory
    assert taken(chosen, data, compact, len(data)) is not None
    assert taken(chosen, data, compact, len(data) - 1) is None


@pytest.mark.parametrize("compact", [False, True])
def test_a_field_that_does_not_end_the_request_is_left_alone(
    chosen: Implementation, compact: bool
) -> None:
    good = bytes(framed(batch(), compact))
    produce = form(chosen, compact)
    assert produce.take(memoryview(good), NOW) is not None
    wrongs = (good + b"\0", good[:-1], good[:13], good[:14], b"", good[:-1] + b"\1")
    for wrong in wrongs:
        assert produce.take(memoryview(wrong), NOW) is None


def test_a_request_that_says_something_else_is_left_alone(chosen: Implementation) -> None:
    good = bytes(framed(batch(), True))
    produce = form(chosen)
    for at in range(len(START + ID + BODY)):
        other = bytearray(good)
        other[at] ^= 1
        assert (produce.take(memoryview(other), NOW) is None) == (at not in range(4, 8)), at


def test_every_other_batch_is_left_to_the_ordinary_way(chosen: Implementation) -> None:
    plain = batch()
    assert taken(chosen, plain) is not None
    assert taken(chosen, batch(codec=Codec.LZ4)) is None
    assert taken(chosen, plain + b"\0") is None
    assert taken(chosen, plain[:60]) is None
    assert taken(chosen, batch(Record(0, NOW - 11, None, b"", ()))) is None
    assert taken(chosen, batch(Record(0, NOW + 11, None, b"", ()))) is None
    for at in (0, 8, 16, 17, 21, 22, 23, 30, 57, 60, len(plain) - 1):
        spoilt = bytearray(plain)
        spoilt[at] ^= 1
        assert taken(chosen, bytes(spoilt)) is None, at


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_wrong_checksum_is_found_in_batches_of_every_size(
    chosen: Implementation, size: int
) -> None:
    good = batch(Record(0, NOW, None, bytes(size), ()))
    spoilt = bytearray(good)
    spoilt[-5] ^= 1  # within the value
    assert taken(chosen, good) is not None
    assert taken(chosen, bytes(spoilt)) is None


def test_records_are_looked_at_where_that_costs_nothing(extension: Implementation) -> None:
    lying = bytearray(batch())
    lying[-1] = 2  # a header more than there is
    lying[17:21] = struct.pack(">I", crc32c(memoryview(lying)[CRC_START:]))
    assert taken(extension, bytes(lying)) is None


@given(base=INT64, start=INT64)
def test_an_answer_has_the_number_of_its_request_and_its_offsets(
    chosen: Implementation, base: int, start: int
) -> None:
    frame = framed(batch(), True)
    answer = form(chosen).answer(frame, base, start)
    assert type(answer) is bytearray
    assert answer[4:8] == ID
    assert struct.unpack_from(">q8xq", answer, 20) == (base, start)
    untouched = [*range(4), *range(8, 20), *range(28, 36), *range(44, 60)]
    assert [answer[at] for at in untouched] == untouched
    short = form(chosen, starts=False).answer(frame, base, start)
    assert short[:28] == answer[:28]
    assert short[28:] == REPLY[28:]


@pytest.mark.parametrize(
    ("reply", "hole", "starts"), [(60, 37, True), (60, 53, False), (60, 7, False), (5, 0, False)]
)
def test_a_hole_outside_of_the_answer_is_refused(
    chosen: Implementation, reply: int, hole: int, starts: bool
) -> None:
    with pytest.raises(ValueError, match="no such form"):
        chosen.Form(START, BODY, True, LARGE, 10, 10, bytes(reply), hole, starts)


# ---- OffsetCommit ----

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
    repeated = chosen.CommitForm(COMMIT, data, places, REPLY)
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
    repeated = chosen.CommitForm(COMMIT, data, holes(data), REPLY)
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


def test_an_answered_commit_has_the_number_of_its_request(chosen: Implementation) -> None:
    data = stored()
    repeated = chosen.CommitForm(COMMIT, data, holes(data), REPLY)
    answer = repeated.answer(commit(1, 2, b"5678"))
    assert type(answer) is bytearray
    assert answer == REPLY[:4] + b"5678" + REPLY[8:]


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
    with pytest.raises(ValueError, match="no such form"):
        chosen.CommitForm(COMMIT, stored(), wrong, REPLY)
    with pytest.raises(ValueError, match="no such form"):
        chosen.CommitForm(COMMIT, stored(), (), REPLY[:7])


def test_the_batch_of_a_form_stays_where_it_is(chosen: Implementation) -> None:
    """It is written to without a look: nobody may take its memory away meanwhile."""
    data = stored()
    repeated = chosen.CommitForm(COMMIT, data, holes(data), REPLY)
    with pytest.raises(BufferError):
        data.clear()
    assert repeated.take(commit(1, 2), NOW) is not None
