"""Walks over the headers of a file's batches: whether their offsets ascend.

`walk` has the rule, and tells what is wrong. `walk_headers` of the extension follows it, too: it
reads by a descriptor, and leaves whatever is not right to `walk`.
"""

import struct
from collections.abc import Callable
from typing import Final

from scriba.records.header import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_LENGTH

ASCENDING: Final = 0
NOT_READ: Final = 1
"""What lies there was not read: it is not in the page cache, or the file has ended."""
DAMAGED: Final = 2

_LOOK: Final = struct.Struct(">qi4xb6xi")
"""Of a header: base offset, length, magic, last offset delta."""
_WINDOW: Final = 16 << 10
_SPARSE: Final = 2 << 10
"""From this size of batches on, their headers are read one by one."""


def walk_headers(*_: object) -> None:
    """In Python `walk` does all of it."""


def walk(
    read: Callable[[memoryview, int], int],
    position: int,
    start: int,
    stop: int,
    end: int,
    next_offset: int,
    last_offset: int,
    offset: int,
    upper: int,
    most: int,
    min_one: bool,
    /,
) -> tuple[int, int]:
    """Walks from the batch at `position` to `start`, and from there past all that end by `stop`;
    how that went, and where it ended, at a batch that is right as well.

    Each batch begins with the offset after the last one before it, or a later one, the first with
    `next_offset` or a later one. All are below `upper` and end by `end`. The first one's last
    offset is `last_offset`, unless that is negative; that of the batch at `start` is `offset` or
    more, and none lies across `start`. At most `most` are passed, with `min_one` that at `start`
    in any case.
    """
    buffer = memoryview(bytearray(_WINDOW))
    # Little is read whole at first; of much it is not known how large its batches are.
    wanted = HEADER_SIZE + (stop - position if 0 < stop - position <= _SPARSE else 0)
    while position < end:
        got = min(read(buffer[:wanted], position), end - position)
        if got < HEADER_SIZE:
            return NOT_READ, position
        at = passed = 0
        while got - at >= HEADER_SIZE:
            base_offset, length, magic, delta = _LOOK.unpack_from(buffer, at)
            here, last = position + at, base_offset + delta
            if (
                magic != MAGIC
                or length < MIN_LENGTH
                or length + LOG_OVERHEAD > end - here
                or delta < 0
                or base_offset < next_offset
                or last >= upper
                or (last_offset >= 0 and last != last_offset)
                or (here == start and last < offset)
                or here < start < here + length + LOG_OVERHEAD
            ):
                return DAMAGED, here
            size = length + LOG_OVERHEAD
            if (
                here >= start
                and (here + size > stop or most <= 0)
                and not (min_one and here == start)
            ):
                return ASCENDING, here
            next_offset, last_offset = last + 1, -1
            at += size
            passed += 1
            most -= 1
        wanted = HEADER_SIZE if at >= _SPARSE * passed else _WINDOW
        position += at
    return ASCENDING, position
