"""Reading the batches of a segment file in order, as recovery and repair do.

These functions wait for the device: they run at start-up or in the offload, never on the loop.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from scriba.records.crc import crc32c
from scriba.records.header import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    sane_header,
)
from scriba.runtime.ports import File

_WINDOW: Final = 1 << 20
_HEADERS_WINDOW: Final = 1 << 16


class Found(NamedTuple):
    position: int
    header: BatchHeader


def scan(
    file: File, position: int, end: int, first_offset: int, check_from: int | None
) -> Iterator[Found]:
    """The valid batches from `position` on, until `end` or the first bytes that are none.

    A batch is valid if its header makes sense, its offsets follow those before it (the first is
    at least `first_offset`) and it ends by `end`. With `check_from`, checksums of batches that
    reach this offset are verified too. Where the last one ended tells what is left over.
    """
    buffer = memoryview(bytearray(min(_HEADERS_WINDOW if check_from is None else _WINDOW, end)))
    next_offset = first_offset
    while end - position >= HEADER_SIZE:
        got = file.pread_into(buffer[: min(len(buffer), end - position)], position)
        at = 0
        while got - at >= HEADER_SIZE:
            header = BatchHeader._make(HEADER.unpack_from(buffer, at))
            size = header.length + LOG_OVERHEAD
            if (
                not sane_header(header)
                or size > end - position - at
                or header.base_offset < next_offset
            ):
                return
            last_offset = header.base_offset + header.last_offset_delta
            if check_from is not None and last_offset >= check_from:
                if size > got - at:
                    break
                if crc32c(buffer[at + CRC_START : at + size]) != header.crc:
                    return
            yield Found(position + at, header)
            next_offset = last_offset + 1
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
