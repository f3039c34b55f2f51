"""Where the last batches of a segment begin: what a reader at the tail asks for."""

from array import array
from typing import Final

_KEPT: Final = 128


class Recent:
    """Batches without a gap between them, up to the end of the segment."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")

    def add(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)
        if len(self.offsets) > 2 * _KEPT:
            del self.offsets[:_KEPT]
            del self.positions[:_KEPT]

    def clear(self) -> None:
        del self.offsets[:]
        del self.positions[:]
