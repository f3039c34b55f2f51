"""How many epochs the requests of peers may use up.

An epoch is a number of 32 bits, and a node takes over any that is greater than its own: so whoever
reaches a controller can have the quorum skip some. A million at once is what the longest absence
explains, and they come back by one for each tenth of a second: elections are never as frequent for
long. Without authentication, that leaves an attacker years until the epochs there are have gone.
"""

from typing import Final

MOST_AT_ONCE: Final = 1 << 20
"""How far a request may be ahead of this node's epoch. One that says more than a million elections
went by is mistaken. A node that was away for as long learns the epoch from those whom it asks
itself."""
MS_PER_EPOCH: Final = 100


class EpochAllowance:
    __slots__ = ("_left", "_now_ms")

    def __init__(self, now_ms: int) -> None:
        self._left = MOST_AT_ONCE
        self._now_ms = now_ms

    def take(self, epochs: int, now_ms: int) -> bool:
        """Whether a request may have this node skip so many; then they are used up."""
        earned = max(now_ms - self._now_ms, 0) // MS_PER_EPOCH
        self._now_ms += earned * MS_PER_EPOCH
        self._left = min(self._left + earned, MOST_AT_ONCE)
        if epochs > self._left:
            return False
        self._left -= epochs
        return True
