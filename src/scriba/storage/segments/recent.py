"""Where the last batches of a segment begin: what a reader at the tail asks for."""

from array import array
from bisect import bisect_right
from typing import Final

_KEPT: Final = 128
MOST_RECENT: Final = 2 * _KEPT


class Recent:
    """Batches without a gap between them, up to the end of the segment.

    Each append adds to both columns and, beyond MOST_RECENT, has them shortened.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")

    def extent(self, start: int, end: int, max_bytes: int, min_one: bool) -> int:
        """How much to send from the batch at `start` on, of what ends at `end`: whole batches.

        One larger than `max_bytes` is sent if the caller insists, and nothing otherwise.
        """
        if end - start <= max_bytes:
            return end - start
        positions = self.positions
        at = bisect_right(positions, start + max_bytes)
        size = positions[at - 1] - start
        if size or not min_one:
            return size
        return (positions[at] if at < len(positions) else end) - start

    def shorten(self) -> None:
        del self.offsets[:_KEPT]
        del self.positions[:_KEPT]

    def clear(self) -> None:
        del self.offsets[:]
        del self.positions[:]
