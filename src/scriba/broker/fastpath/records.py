"""Puts answers with records together: what is in memory in one piece, the rest as it lies in files.

Few records are read from the page cache into a buffer that all answers share, and copied to their
place between what is told of them. Many, and those that are not in memory, are sent from their
file. Nothing here waits, so an answer has left the shared buffer before the next one comes.
"""

from __future__ import annotations

import struct
from typing import Final

from scriba.broker.net.answers import COPIED_BELOW, Part, Parts, Region
from scriba.storage.results import Slice

SHARED_BYTES: Final = 1 << 20
"""An answer that copies more reads the rest into memory of its own, which is freed as it leaves."""

Piece = bytes | memoryview | bytearray | Region

_HEAD: Final = struct.Struct(">ii")
_shared: Final = memoryview(bytearray(SHARED_BYTES))


class Answer:
    """Pieces of an answer, in their order."""

    __slots__ = ("_apart", "_copied", "_correlation_id", "pieces")

    def __init__(self, correlation_id: int) -> None:
        self._correlation_id = correlation_id
        self._copied = 0
        self._apart: list[int] = []
        self.pieces: list[Piece] = [b""]
        """The first one becomes the length and the correlation id."""

    def add(self, before: bytes, records: Slice, after: bytes) -> None:
        """Adds records, with what is told before and behind them."""
        file, position, size, _ = records
        pieces = self.pieces
        if size < COPIED_BELOW:
            begin = self._copied
            end = begin + size
            if end <= SHARED_BYTES:
                view = _shared[begin:end]
                if file.try_pread_into(view, position) == size:
                    self._copied = end
                    pieces += (before, view, after)
                    return
            else:
                own = bytearray(size)
                if file.try_pread_into(memoryview(own), position) == size:
                    self._apart.append(len(pieces) + 1)
                    pieces += (before, own, after)
                    return
        self._apart.append(len(pieces) + 1)
        pieces += (before, Region(file, position, size), after)

    def parts(self) -> Parts:
        """The answer as it is sent."""
        pieces = self.pieces
        pieces[0] = _HEAD.pack(sum(map(len, pieces)) + 4, self._correlation_id)
        if not self._apart:
            return (b"".join(pieces),)  # type: ignore[arg-type]
        out: list[Part] = []
        begin = 0
        for at in self._apart:
            out += (b"".join(pieces[begin:at]), pieces[at])  # type: ignore[arg-type]
            begin = at + 1
        out.append(b"".join(pieces[begin:]))  # type: ignore[arg-type]
        return out


def around(before: bytes, records: Slice, after: bytes) -> Parts:
    """An answer of one piece of records."""
    file, position, size, _ = records
    if size < COPIED_BELOW:
        view = _shared[:size]
        if file.try_pread_into(view, position) == size:
            return (b"".join((before, view, after)),)
    return before, Region(file, position, size), after
