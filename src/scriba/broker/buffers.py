"""Receive buffers that are used again, so that a large request costs no fresh memory.

Zeroing and faulting in a megabyte costs more than receiving it. A buffer is lent for one request
and comes back when its handler has returned; no view of it may be kept beyond that.
"""

from __future__ import annotations

from typing import Final

SMALLEST: Final = 1 << 16
LARGEST_KEPT: Final = 1 << 22
KEPT_PER_SIZE: Final = 8


class BufferPool:
    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with arbitrary contents."""
        if size > LARGEST_KEPT:
            return bytearray(size)
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(room)
        return free.pop() if free else bytearray(room)

    def give(self, buffer: bytearray) -> None:
        room = len(buffer)
        if room > LARGEST_KEPT:
            return
        free = self._free.setdefault(room, [])
        if len(free) < KEPT_PER_SIZE:
            free.append(buffer)
