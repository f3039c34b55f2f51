"""Reading the segments of a log for compaction: every batch once, and only what is sound.

Compaction writes down what it read, with a new checksum where records go. Damage must not be made
to look sound by that, so a batch that is not what its checksum says ends the work.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from scriba.records.crc import crc32c
from scriba.records.header import CRC_START, HEADER, HEADER_SIZE, BatchHeader, sane_header
from scriba.runtime.ports import Disk
from scriba.storage.names import LOG, file_name

_LEAST_WINDOW: Final = 64 << 10


class Damage(Exception):
    """A log that cannot be compacted as it is."""


class Window(NamedTuple):
    """A stretch of a segment and the whole batches in it, each with its place in the view.

    The view is valid until the next window is asked for.
    """

    view: memoryview
    batches: list[tuple[int, BatchHeader]]
    position: int

    @property
    def size(self) -> int:
        return len(self.view)


class Source:
    """Reads segment after segment with one buffer, which grows for a batch that needs it."""

    def __init__(self, disk: Disk, directory: str, buffer_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._buffer = memoryview(bytearray(max(buffer_bytes, _LEAST_WINDOW)))

    def windows(self, base_offset: int, size: int) -> Iterator[Window]:
        path = f"{self._directory}/{file_name(base_offset, LOG)}"
        file = self._disk.open(path)
        position, next_offset = 0, base_offset
        try:
            while position < size:
                want = min(len(self._buffer), size - position)
                got = file.pread_into(self._buffer[:want], position)
                batches, end, needed = _parse(self._buffer[:got], next_offset)
                if not batches:
                    if needed > want and needed <= size - position:
                        self._buffer = memoryview(bytearray(needed))
                        continue
                    raise Damage(f"{path} is damaged at position {position + end}")
                yield Window(self._buffer[:end], batches, position)
                next_offset = batches[-1][1].next_offset
                position += end
        finally:
            file.close()


def _parse(view: memoryview, next_offset: int) -> tuple[list[tuple[int, BatchHeader]], int, int]:
    """The sound batches at the start of `view`, where they end, and the size of the next one.

    That size is 0 if no batch follows.
    """
    batches: list[tuple[int, BatchHeader]] = []
    at, end = 0, len(view)
    while end - at >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        if not sane_header(header) or header.base_offset < next_offset:
            return batches, at, 0
        size = header.size
        if size > end - at:
            return batches, at, size
        if crc32c(view[at + CRC_START : at + size]) != header.crc:
            return batches, at, 0
        batches.append((at, header))
        next_offset = header.next_offset
        at += size
    return batches, at, HEADER_SIZE
