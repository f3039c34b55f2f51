"""Receive buffers that are used again, so that a large request costs no fresh memory.

Faulting in a megabyte costs more than receiving it. A buffer is lent for one request and comes
back when its handler has returned; no view of it may be kept beyond that. New buffers are
anonymous maps: a peer that announces much and sends little takes no memory for what it never sent.
"""

from __future__ import annotations

from mmap import mmap
from typing import Final

SMALLEST: Final = 1 << 16
LARGEST_KEPT: Final = 1 << 22
BYTES_KEPT: Final = 1 << 25


class BufferPool:
    __slots__ = ("_free", "_kept")

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}
        self._kept = 0

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes with arbitrary contents."""
        if size > LARGEST_KEPT:
            return memoryview(mmap(-1, size))
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(room)
        if not free:
            return memoryview(mmap(-1, room))
        self._kept -= room
        return free.pop()

    def give(self, buffer: memoryview) -> None:
        room = len(buffer)
        if room <= LARGEST_KEPT and self._kept + room <= BYTES_KEPT:
            self._kept += room
            self._free.setdefault(room, []).append(buffer)
