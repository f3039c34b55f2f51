"""Whether the offsets of a segment's batches ascend, looked at once before they are read.

A batch's base offset, its length and its leader epoch lie outside its checksum. A byte that flips
in a base offset would send good records out under wrong offsets. Within a segment they ascend,
though: so before a stretch of a file is handed out that this process did not write, its headers are
walked, the one behind it included, and each must begin where the one before has ended, or later.

What was looked at is remembered as spans of the file for as long as the segment is open, and what
was appended here, or read by recovery, needs no look. So a fetch pays for headers once, and one at
the end of the log pays nothing. A gap between two batches is no fault: compaction leaves them. What
flips within such a gap cannot be told.
"""

import struct
from typing import TYPE_CHECKING, Final

from scriba.records.header import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_LENGTH
from scriba.storage.segments.not_resident import NotResident

if TYPE_CHECKING:
    from scriba.storage.segments.segment import Segment

MOST_HEADERS: Final = 2048
"""Looked at for one read: some milliseconds. A read of more batches gets fewer of them."""
MOST_SPANS: Final = 16
_LOOK: Final = struct.Struct(">qi4xb6xi")
"""Of a header: base offset, length, magic, last offset delta."""
_WINDOW: Final = 16 << 10
_SPARSE: Final = 2 << 10
"""From this size of batches on, their headers are read one by one."""


class Ascent:
    __slots__ = ("_spans", "known_from")

    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        """Position from which this process has written, or recovery has read, all batches."""
        self._spans: list[tuple[int, int, int]] = []
        """Start, end, and the offset that the batch at the end may have at the least."""

    def clear(self) -> None:
        self._spans.clear()

    def check(
        self, segment: "Segment", start: int, size: int, offset: int, upper: int
    ) -> int | NotResident:
        """How many of `size` bytes from `start` on, where the batch with `offset` is, may be read.

        All offsets must be below `upper`. Raises `Damaged` where they do not ascend.
        """
        end = start + size
        span = next((each for each in self._spans if each[0] <= start <= each[1]), None)
        if span is not None and end <= span[1]:
            return size
        low = span[0] if span is not None else start
        position, next_offset = span[1:] if span is not None else (start, segment.base_offset)
        stop, segment_end = min(end, self.known_from), segment.size
        read, unpack = segment.open_file().try_pread_into, _LOOK.unpack_from
        buffer, wanted, looked = memoryview(bytearray(_WINDOW)), _WINDOW, 0
        # One header more than asked for: that the last one is not too high, it alone can tell.
        while position < segment_end:
            got = min(read(buffer[:wanted], position), segment_end - position)
            if got < HEADER_SIZE:
                return _cold(segment, position, min(end + HEADER_SIZE, segment_end))
            at, before = 0, looked
            while got - at >= HEADER_SIZE:
                base_offset, length, magic, delta = unpack(buffer, at)
                here, last = position + at, base_offset + delta
                if (
                    magic != MAGIC
                    or length < MIN_LENGTH
                    or length + LOG_OVERHEAD > segment_end - here
                    or delta < 0
                    or base_offset < next_offset
                    or last >= upper
                    or (here == start and last < offset)
                ):
                    return segment.mistrust(here)
                if here >= stop or looked >= MOST_HEADERS:
                    self._remember(span, low, here, next_offset)
                    return size if here >= stop else here - start
                next_offset = last + 1
                at += length + LOG_OVERHEAD
                looked += 1
            wanted = HEADER_SIZE if at > _SPARSE * (looked - before) else _WINDOW
            position += at
        self._remember(span, low, position, next_offset)
        return size

    def _remember(
        self, span: tuple[int, int, int] | None, low: int, end: int, next_offset: int
    ) -> None:
        if span is not None:
            self._spans.remove(span)
        self._spans.append((low, end, next_offset))
        if len(self._spans) > MOST_SPANS:
            del self._spans[0]


def _cold(segment: "Segment", position: int, end: int) -> NotResident:
    """What is to be read is to be sent, too: it is loaded in one piece, not header by header."""
    found = segment.try_read(position, HEADER_SIZE)
    if isinstance(found, NotResident) and not found.size:
        return found  # the file is shorter than it was: the index is built anew
    return segment.not_resident(position, max(end - position, HEADER_SIZE))
