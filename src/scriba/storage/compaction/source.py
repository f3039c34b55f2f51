"""Reading the segments of a log for compaction: every batch once, and only what is sound.

Compaction writes down what it read, with a new checksum where records go. Damage must not be made
to look sound by that, so a batch that is not what its checksum says ends the work.
"""

from collections.abc import Iterator
from typing import Final

from scriba.records.crc import crc32c
from scriba.records.header import CRC_START, HEADER, HEADER_SIZE, BatchHeader, sane_header
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import LOG, file_name

LEAST_WINDOW: Final = 64 << 10


class Damage(Exception):
    """A log that cannot be compacted as it is."""


class Window:
    """A stretch of a segment that whoever reads it takes batch by batch.

    The view is valid until the next window is asked for.
    """

    __slots__ = ("_path", "_rest", "at", "needed", "next_offset", "position", "view")

    def __init__(self, path: str, view: memoryview, position: int, rest: int, next_offset: int):
        self._path = path
        self.view = view
        self.position = position
        self._rest = rest
        """Bytes of the segment from the view's start on."""
        self.at = 0
        """Where the next batch begins."""
        self.next_offset = next_offset
        self.needed = HEADER_SIZE
        """What the view must hold for the next batch to be whole."""

    @property
    def end(self) -> int:
        """Where the segment ends, counted from the view's start."""
        return self._rest

    def take(self) -> tuple[memoryview, BatchHeader] | None:
        """The next batch; None if it is not all here. Damage if it is not sound."""
        view, at = self.view, self.at
        if len(view) - at < HEADER_SIZE:
            if 0 < self._rest - at < HEADER_SIZE:
                raise self.damage()
            return None
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        size = header.size
        if (
            not sane_header(header)
            or header.base_offset < self.next_offset
            or size > self._rest - at
        ):
            raise self.damage()
        if size > len(view) - at:
            self.needed = size
            return None
        batch = view[at : at + size]
        if crc32c(batch[CRC_START:]) != header.crc:
            raise self.damage()
        self.at = at + size
        self.next_offset = header.next_offset
        return batch, header

    def damage(self) -> Damage:
        return Damage(f"{self._path} is damaged at position {self.position + self.at}")


class Source:
    """Reads segment after segment with one buffer, which grows for a batch that needs it."""

    def __init__(self, disk: Disk, directory: str, buffer_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._buffer = memoryview(bytearray(max(buffer_bytes, LEAST_WINDOW)))

    def windows(self, base_offset: int, size: int) -> Iterator[Window]:
        path = f"{self._directory}/{file_name(base_offset, LOG)}"
        file = self._disk.open(path)
        position, next_offset = 0, base_offset
        try:
            while position < size:
                want = min(len(self._buffer), size - position)
                got = file.pread_into(self._buffer[:want], position)
                window = Window(path, self._buffer[:got], position, size - position, next_offset)
                yield window
                if not window.at:
                    if got < want or window.needed <= want:
                        raise window.damage()
                    self._buffer = memoryview(bytearray(window.needed))
                position += window.at
                next_offset = window.next_offset
        finally:
            file.close()
