"""Reading the batches of a segment file in order, as recovery and repair do.

These functions wait for the device: they run at start-up or in the offload, never on the loop.
"""

from collections.abc import Iterator
from typing import Final

from scriba.records.crc import crc32c
from scriba.records.header import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MIN_LENGTH,
    BatchHeader,
)
from scriba.runtime.ports import File
from scriba.storage.segments.index import MAX_RELATIVE_OFFSET

_NEVER: Final = 2**63 - 1
_WINDOW: Final = 1 << 20
_HEADERS_WINDOW: Final = 1 << 16


def scan(
    file: File, position: int, end: int, segment_offset: int, check_from: int | None
) -> Iterator[tuple[int, BatchHeader]]:
    """The valid batches from `position` on, until `end` or the first bytes that are none.

    A batch is valid if its header makes sense, its offsets follow those before it and can lie in
    a segment that begins at `segment_offset`, and it ends by `end`. With `check_from`, checksums
    of batches that reach this offset are verified too. Where the last one ended tells what is
    left over.
    """
    buffer = memoryview(bytearray(min(_HEADERS_WINDOW if check_from is None else _WINDOW, end)))
    unpack, make = HEADER.unpack_from, BatchHeader._make
    check_from = _NEVER if check_from is None else check_from
    next_offset, max_offset = segment_offset, segment_offset + MAX_RELATIVE_OFFSET
    size = 0
    while end - position >= HEADER_SIZE:
        got = file.pread_into(buffer[: min(len(buffer), end - position)], position)
        at = 0
        while got - at >= HEADER_SIZE:
            fields = unpack(buffer, at)
            base_offset, length, _, magic, crc, _, delta = fields[:7]
            size = length + LOG_OVERHEAD
            if (
                magic != MAGIC
                or length < MIN_LENGTH
                or delta < 0
                or base_offset < next_offset
                or base_offset + delta > max_offset
                or size > end - position - at
            ):
                return
            if base_offset + delta >= check_from:
                if size > got - at:
                    break
                if crc32c(buffer[at + CRC_START : at + size]) != crc:
                    return
            yield position + at, make(fields)
            next_offset = base_offset + delta + 1
            at += size
        if at == 0:
            if got < len(buffer):
                return  # the file is shorter than its owner thought
            buffer = memoryview(bytearray(min(max(2 * len(buffer), size), end - position)))
        position += at


def read_batch(file: File, position: int, size: int) -> memoryview:
    """The bytes of one batch; fewer of them if the file ends before."""
    view = memoryview(bytearray(size))
    return view[: file.pread_into(view, position)]
