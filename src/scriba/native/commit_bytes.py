"""The bytes of an OffsetCommit that repeats an earlier one; `_native` does the same.

They know the good case alone and answer None for everything else: whoever called finds out what is
special, or wrong.
"""

import struct
from itertools import pairwise
from typing import Final

from scriba.records.crc import crc32c
from scriba.records.header import (
    CRC_OFFSET,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
)

_START: Final = 4
"""Bytes of the API's key and version; the correlation id follows."""
_BODY: Final = 8
_WORD: Final = 8
_TIMES_AT: Final = 27

_INT64: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_TIMES: Final = struct.Struct(">qq")

Hole = tuple[int, int, int]
"""Where a commit has an offset: in the request, and in the batch with the time of the commit."""


class CommitBytes:
    """A request, but for correlation id and offsets, and the batch that stores these offsets."""

    __slots__ = ("_batch", "_fixed", "_holes", "_layout")

    def __init__(self, frame: bytes, batch: bytearray, holes: tuple[Hole, ...], /) -> None:
        """Of requests like `frame`, whose offsets are stored by `batch`, which is filled in."""
        if not _fit(holes, len(frame), len(batch)):
            raise ValueError("no offset can be there")
        self._batch = memoryview(batch)
        self._holes = holes
        ends = (*(hole[0] for hole in holes), len(frame))
        parts = [f">{_START}s4x{ends[0] - _BODY}s"]
        parts += (f"q{end - at - _WORD}s" for at, end in pairwise(ends))
        self._layout = struct.Struct("".join(parts))
        fields = self._layout.unpack(frame)
        self._fixed = (fields[0], *fields[1::2])

    def take(self, frame: memoryview, now_ms: int, /) -> tuple[tuple[int, ...], BatchHeader] | None:
        """What such a request commits; its batch is complete, but for its place."""
        if len(frame) != self._layout.size:
            return None
        fields = self._layout.unpack(frame)
        if (fields[0], *fields[1::2]) != self._fixed:
            return None
        offsets = fields[2::2]
        batch = self._batch
        for (_, offset_at, time_at), offset in zip(self._holes, offsets, strict=True):
            _INT64.pack_into(batch, offset_at, offset)
            _INT64.pack_into(batch, time_at, now_ms)
        _TIMES.pack_into(batch, _TIMES_AT, now_ms, now_ms)
        _CRC.pack_into(batch, CRC_OFFSET, crc32c(batch[CRC_START:]))
        return offsets, BatchHeader._make(HEADER.unpack_from(batch))


def _fit(holes: tuple[Hole, ...], frame: int, batch: int) -> bool:
    """Whether the holes lie in the request, in order and apart, and in the records of the batch."""
    least = _BODY
    for at, *stored in holes:
        if not least <= at <= frame - _WORD:
            return False
        if not all(HEADER_SIZE <= each <= batch - _WORD for each in stored):
            return False
        least = at + _WORD
    return frame >= _BODY and batch >= HEADER_SIZE
