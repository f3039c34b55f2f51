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


def read_small(records: Slice, at: int) -> memoryview | bytearray | Region:
    """Records in the shared buffer, from `at` on, or else apart from it."""
    file, position, size, _ = records
    if size < COPIED_BELOW:
        end = at + size
        if end <= SHARED_BYTES:
            view = _shared[at:end]
            if file.try_pread_into(view, position) == size:
                return view
        else:
            own = bytearray(size)
            if file.try_pread_into(memoryview(own), position) == size:
                return own
    return Region(file, position, size)


def parts(pieces: list[Piece], correlation_id: int) -> Parts:
    """An answer as it is sent. Its first piece becomes its length and this id."""
    total = 4
    apart: list[int] = []
    for at, piece in enumerate(pieces):
        if type(piece) is Region:
            total += piece.size
            apart.append(at)
        else:
            total += len(piece)  # type: ignore[arg-type]
            if type(piece) is bytearray:
                apart.append(at)
    pieces[0] = _HEAD.pack(total, correlation_id)
    if not apart:
        return (b"".join(pieces),)  # type: ignore[arg-type]
    out: list[Part] = []
    begin = 0
    for at in apart:
        out += (b"".join(pieces[begin:at]), pieces[at])  # type: ignore[arg-type]
        begin = at + 1
    out.append(b"".join(pieces[begin:]))  # type: ignore[arg-type]
    return out
