"""The function that knows the good case alone: what it takes, and what it leaves."""

import random

import lz4.frame
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scriba.errors import ParseError
from scriba.native.implementation import Implementation
from scriba.records.record import Record
from tests.unit.native.sections import section

pytestmark = pytest.mark.usefixtures("chosen")

ANY_TIME = (-(2**63), 2**63 - 1)
LARGE = 1 << 30

pieces = st.one_of(
    st.binary(max_size=300),
    st.builds(bytes, st.integers(0, 300_000)),
    st.builds(lambda word, times: word * times, st.binary(max_size=40), st.integers(0, 9000)),
    st.builds(
        lambda seed, size: random.Random(seed).randbytes(size),
        st.integers(),
        st.integers(0, 70_000),
    ),
)
values = st.lists(st.lists(pieces, max_size=4).map(b"".join), min_size=1, max_size=4)


def of_values(given: list[bytes]) -> bytes:
    return bytes(section(Record(timestamp=0, value=value) for value in given))


def packed(data: bytes, block: int, **how: bool) -> bytes:
    frame: bytes = lz4.frame.compress(data, block_size=block, block_linked=False, **how)
    return frame


@given(values, st.sampled_from([4, 5, 6, 7]), st.booleans(), st.booleans())
@example([bytes(65_536 * 3)], 7, False, True)
def test_records_are_judged_while_they_are_unpacked(
    chosen: Implementation, given: list[bytes], block: int, checksum: bool, size: bool
) -> None:
    data = of_values(given)
    frame = packed(data, block, content_checksum=checksum, store_size=size)
    rules = (len(given), 0, False, *ANY_TIME)
    assert chosen.check_lz4(frame, len(data), *rules) == (0, -1, -1)
    assert chosen.check_lz4(frame, len(data) - 1, *rules) is None, "it grows to more than it may"


@given(
    values,
    st.sampled_from([4, 7]),
    st.lists(st.tuples(st.integers(0), st.integers(1, 255))),
    st.integers(0, 2**20),
)
def test_no_bytes_lead_it_astray(
    chosen: Implementation,
    given: list[bytes],
    block: int,
    changes: list[tuple[int, int]],
    length: int,
) -> None:
    """What it does accept of a broken frame is what the library reads, or it is no records."""
    data = of_values(given)
    frame = bytearray(packed(data, block)[: length or None])
    for at, flip in changes:
        if frame:
            frame[at % len(frame)] ^= flip
    rules = (len(given), 0, False, *ANY_TIME)
    try:
        found = chosen.check_lz4(bytes(frame), 1 << 22, *rules)
    except ParseError:
        return
    if found is not None:
        reader = lz4.frame.LZ4FrameDecompressor()
        assert chosen.check_records([reader.decompress(frame)], *rules) == found


def test_a_frame_that_is_cut_anywhere_is_refused(chosen: Implementation) -> None:
    frame = packed(of_values([bytes(range(256)) * 700, b"end"]), 4)
    for length in [*range(12), *range(12, len(frame), 97), len(frame) - 1]:
        assert chosen.check_lz4(frame[:length], LARGE, 2, 0, False, *ANY_TIME) is None


def test_what_is_wrong_with_the_records_is_told(chosen: Implementation) -> None:
    frame = packed(of_values([b"one", b"two"]), 4)
    with pytest.raises(ParseError, match="more follows"):
        chosen.check_lz4(frame, LARGE, 1, 0, False, *ANY_TIME)
    with pytest.raises(ParseError, match="record 2"):
        chosen.check_lz4(frame, LARGE, 3, 0, False, *ANY_TIME)
    assert chosen.check_lz4(frame, LARGE, 2, 5, True, 0, 4) == (5, 0, -1)
    assert chosen.check_lz4(frame, LARGE, 2, 5, False, 0, 4) == (5, -1, 0)


def test_frames_that_others_read_are_left_to_them(extension: Implementation) -> None:
    """Linked blocks, and blocks with checksums: Kafka's clients write neither."""
    data = of_values([bytes(200_000)])
    for frame in (
        lz4.frame.compress(data, block_linked=True),
        lz4.frame.compress(data, block_linked=False, block_checksum=True),
    ):
        assert extension.check_lz4(frame, LARGE, 1, 0, False, *ANY_TIME) is None
