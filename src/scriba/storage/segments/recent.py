"""Where the last batches of a segment begin: what a reader at the tail asks for."""

from typing import Final

_KEPT: Final = 64
MOST_RECENT: Final = 2 * _KEPT


class Recent:
    """Batches without a gap between them, up to the end of the segment.

    Each append adds to both columns and, beyond MOST_RECENT, has them shortened.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        # Not arrays, which are a fifth of the size: to append to one takes ten times as long.
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def shorten(self) -> None:
        del self.offsets[:_KEPT]
        del self.positions[:_KEPT]

    def clear(self) -> None:
        del self.offsets[:]
        del self.positions[:]
