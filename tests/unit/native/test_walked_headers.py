"""Walks over a file's headers, by descriptor in C and by calls in Python: both end alike."""

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.native import headers
from scriba.native.implementation import NATIVE
from scriba.records.batch import Record, encode_batch
from scriba.records.header import HEADER_SIZE, PLACE

MOST = 50


def read(fd: int, view: memoryview, position: int) -> int:
    return os.preadv(fd, [view], position)


def both(fd: int, *numbers: Any) -> tuple[int, int]:
    """How both walks end: in the same way, but that the one in C does not tell what is wrong."""
    assert NATIVE is not None
    told = headers.walk(partial(read, fd), *numbers)
    how, here = told
    assert NATIVE.walk_headers(fd, *numbers) == (here if how == headers.ASCENDING else None)
    return told


def segment(chance: random.Random) -> tuple[bytearray, list[tuple[int, int, int]]]:
    """Batches of any size, with gaps here and there; position, first and last offset of each."""
    data = bytearray()
    offset = chance.randrange(100)
    places = []
    for _ in range(chance.randrange(1, 40)):
        count = chance.choice((1, 1, 2, 30))
        size = chance.choice((0, 10, 100, 3000))
        batch = encode_batch([Record(timestamp=1, value=b"v" * size)] * count)
        PLACE.pack_into(batch, 0, offset, len(batch) - 12, 0)
        places.append((len(data), offset, offset + count - 1))
        data += batch
        offset += count + chance.choice((0, 0, 0, 3))
    return data, places


@given(seed=st.integers(0, 2**32), flips=st.integers(0, 3))
def test_both_walks_end_alike(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int
) -> None:
    chance = random.Random(seed)
    data, places = segment(chance)
    for _ in range(flips):
        position = chance.choice(places)[0]
        data[min(position + chance.randrange(HEADER_SIZE), len(data) - 1)] ^= 1 << chance.randrange(
            8
        )
    path = tmp_path_factory.getbasetemp() / "walked"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(20):
            begin, first, last = chance.choice(places)
            start, asked, _ = chance.choice([each for each in places if each[0] >= begin])
            stop = chance.choice(
                (start, start + 1, len(data), chance.randrange(start, len(data) + 1))
            )
            end = chance.choice((len(data), len(data), len(data) - 7, len(data) + 100))
            upper = chance.choice((places[-1][2] + 1, places[-1][2], 2**63 - 1))
            known = chance.choice((-1, last, last + 1))
            least = chance.choice((0, first, first + 1))
            most, one = chance.choice((MOST, 3, 0)), chance.random() < 0.5
            both(fd, begin, start, stop, end, least, known, asked, upper, most, one)
    finally:
        os.close(fd)


def test_a_sound_file_is_walked_to_its_end(tmp_path: Path) -> None:
    data, places = segment(random.Random(1))
    path = tmp_path / "walked"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    upper = places[-1][2] + 1
    size = len(data)
    (second, *_), (third, *_) = places[1:3]

    def walked(stop: int, end: int = size, above: int = upper, most: int = MOST) -> tuple[int, int]:
        return both(fd, 0, 0, stop, end, 0, -1, 0, above, most, False)

    assert walked(size) == (headers.ASCENDING, size)
    assert walked(second) == walked(third - 1) == (headers.ASCENDING, second)
    assert walked(third) == (headers.ASCENDING, third)
    assert walked(1) == walked(0) == walked(-1) == walked(-(1 << 31)) == (headers.ASCENDING, 0)
    assert both(fd, 0, 0, 1, size, 0, -1, 0, upper, 0, True) == (headers.ASCENDING, second)
    assert both(fd, 0, third, 1, size, 0, -1, 0, upper, 0, False) == (headers.ASCENDING, third)
    assert both(fd, 0, third - 1, 1, size, 0, -1, 0, upper, 0, False) == (headers.DAMAGED, second)
    assert walked(size, above=upper - 1) == (headers.DAMAGED, places[-1][0])
    assert walked(size, most=5) == (headers.ASCENDING, places[5][0])
    assert walked(size + 1, end=size + 1) == (headers.NOT_READ, size)
    os.close(fd)


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="below 0"):
        NATIVE.walk_headers(0, -1, 0, 0, 0, 0, 0, 0, 0, 0, False)
    assert NATIVE.walk_headers(-1, 0, 0, 1, 1, 0, -1, 0, 1, 1, False) is None
    with pytest.raises(TypeError):
        NATIVE.walk_headers(0, 0)  # type: ignore[call-arg]
