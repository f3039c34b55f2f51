"""Requests that say what an earlier one said, taken apart in one call: twins of `_native`.

A form knows the good case alone and answers None for everything else: what is special, or what is
wrong, is found out at leisure by whoever called. Where the extension was built a `Form` looks at
every record as well; here it believes the header, as `validate` does.
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
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
)

_START: Final = 4
"""Bytes of the API's key and version; the correlation id follows."""
_BODY: Final = 8
_WORD: Final = 8
_START_BEHIND: Final = 16
_TIMES_AT: Final = 27
_NO_TAGS: Final = b"\0\0\0"
"""How a request ends that has no tagged fields: of the partition, the topic and the request."""

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_TIMES: Final = struct.Struct(">qq")

Hole = tuple[int, int, int]
"""Where a commit has an offset: in the request, and in the batch with the time of the commit."""


class Form:
    """A Produce for one partition that says the same again, but for correlation id and records."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_body",
        "_compact",
        "_hole",
        "_most_bytes",
        "_reply",
        "_start",
        "_starts",
    )

    def __init__(
        self,
        start: bytes,
        body: bytes,
        compact: bool,
        most_bytes: int,
        before_ms: int,
        after_ms: int,
        reply: bytes,
        hole: int,
        starts: bool,
        /,
    ) -> None:
        """Of the frames that begin with `start` and have `body` behind their correlation id.

        `compact` says how the field of the records, which follows, tells its size, and that the
        request ends in tagged fields, of which it has none. A batch may have `most_bytes`, and
        timestamps so much before and after now. `reply` is what answers it, with a hole for the
        offset and, where it `starts`, sixteen bytes behind it one for the start of the log.
        """
        if len(start) != _START or not _BODY <= hole <= len(reply) - (24 if starts else 8):
            raise ValueError("no such form")
        self._start = start
        self._body = body
        self._compact = compact
        self._most_bytes = most_bytes
        self._before_ms = before_ms
        self._after_ms = after_ms
        self._reply = reply
        self._hole = hole
        self._starts = starts

    def take(self, frame: memoryview, now_ms: int, /) -> tuple[memoryview, BatchHeader] | None:
        """The one batch of a request of this form, if it is a good and plain one.

        Plain is what has no codec, transaction or other specialities.
        """
        at = _BODY + len(self._body)
        if frame[:_START] != self._start or frame[_BODY:at] != self._body:
            return None
        view = _last_field(frame, at, self._compact)
        if view is None or not HEADER_SIZE <= len(view) <= self._most_bytes:
            return None
        header = BatchHeader._make(HEADER.unpack_from(view))
        count = header.count
        if (
            header.length + LOG_OVERHEAD != len(view)
            or header.magic != MAGIC
            or header.attributes
            or header.base_offset
            or count <= 0
            or header.last_offset_delta + 1 != count
            or (header.producer_id >= 0 and header.base_sequence < 0)
            or not _timely(header, now_ms - self._before_ms, now_ms + self._after_ms)
            or crc32c(view[CRC_START:]) != header.crc
        ):
            return None
        return view, header

    def answer(self, frame: memoryview, base_offset: int, start_offset: int, /) -> bytearray:
        """What the sender of such a request is told."""
        out = bytearray(self._reply)
        out[_START:_BODY] = frame[_START:_BODY]
        _INT64.pack_into(out, self._hole, base_offset)
        if self._starts:
            _INT64.pack_into(out, self._hole + _START_BEHIND, start_offset)
        return out


def _timely(header: BatchHeader, earliest: int, latest: int) -> bool:
    base, largest = header.base_timestamp, header.max_timestamp
    if largest < base or base < NO_TIMESTAMP:
        return False
    if largest == NO_TIMESTAMP:
        return True
    return earliest <= largest <= latest and (base == NO_TIMESTAMP or base >= earliest)


def _last_field(frame: memoryview, at: int, compact: bool) -> memoryview | None:
    if not compact:
        try:
            (size,) = _INT32.unpack_from(frame, at)
        except struct.error:
            return None
        return frame[at + 4 :] if at + 4 + size == len(frame) else None
    size = shift = 0
    while shift < 35 and at < len(frame):
        byte = frame[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            end = at + size - 1
            return frame[at:end] if size and bytes(frame[end:]) == _NO_TAGS else None
    return None


class CommitForm:
    """An OffsetCommit that says the same again, but for correlation id and offsets."""

    __slots__ = ("_batch", "_fixed", "_holes", "_layout", "_reply")

    def __init__(
        self, frame: bytes, batch: bytearray, holes: tuple[Hole, ...], reply: bytes, /
    ) -> None:
        """Of requests like `frame`, whose offsets are stored by `batch`, which is filled in."""
        if len(reply) < _BODY or not _fit(holes, len(frame), len(batch)):
            raise ValueError("no such form")
        self._batch = memoryview(batch)
        self._holes = holes
        self._reply = reply
        ends = (*(hole[0] for hole in holes), len(frame))
        parts = [f">{_START}s4x{ends[0] - _BODY}s"]
        parts += (f"q{end - at - _WORD}s" for at, end in pairwise(ends))
        self._layout = struct.Struct("".join(parts))
        fields = self._layout.unpack(frame)
        self._fixed = (fields[0], *fields[1::2])

    def take(self, frame: memoryview, now_ms: int, /) -> tuple[tuple[int, ...], BatchHeader] | None:
        """What a request of this form commits; its batch is complete, but for its place."""
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

    def answer(self, frame: memoryview, /) -> bytearray:
        out = bytearray(self._reply)
        out[_START:_BODY] = frame[_START:_BODY]
        return out


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
