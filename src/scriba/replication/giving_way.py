"""The rate at which a broker copies replicas that are being moved, where nobody has set one: it
gives way to clients.

What clients wait for is the event loop, whatever they ask of it. So the loop's lateness is looked
at four times a second. While clients move bytes and the loop is late, the rate is halved, down to a
floor; else it grows by half, up to a rate from which on there is none. A copy begins slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scriba.replication.throttle import UNLIMITED

START: Final = 16 << 20
CEILING: Final = 256 << 20
"""Bytes a second from which on nothing is held back."""
GROWTH: Final = 1.5
LATE_MS: Final = 10.0
"""Lateness of the loop, on average, from which on clients wait."""
LOOK_MS: Final = 250
FORGOTTEN_MS: Final = 2_000
"""After such a pause a copy begins anew."""


class Busy(NamedTuple):
    """Sums since the node began."""

    client_bytes: int
    """Records that clients wrote and read."""
    late_ms: float
    """By how much the loop was late, at all beats together."""
    beats: int


class GivingWay:
    __slots__ = ("_busy", "_floor", "_last", "_looked_ms", "_rate")

    def __init__(self, busy: Callable[[], Busy], floor: Callable[[], int]) -> None:
        self._busy = busy
        self._floor = floor
        self._last = Busy(0, 0.0, 0)
        self._looked_ms: int | None = None
        self._rate = float(START)

    def rate(self, now_ms: int) -> int:
        """Bytes a second, now."""
        floor = self._floor()
        since = None if self._looked_ms is None else now_ms - self._looked_ms
        if since is None or since > FORGOTTEN_MS:
            self._looked_ms, self._last, self._rate = now_ms, self._busy(), START
        elif since >= LOOK_MS:
            self._look(now_ms)
        self._rate = max(self._rate, floor)
        return int(self._rate) if self._rate < CEILING else UNLIMITED

    def _look(self, now_ms: int) -> None:
        before, now = self._last, self._busy()
        self._looked_ms, self._last = now_ms, now
        beats = now.beats - before.beats
        late = beats > 0 and (now.late_ms - before.late_ms) / beats >= LATE_MS
        if late and now.client_bytes > before.client_bytes:
            self._rate = min(self._rate, CEILING) / 2
        else:
            self._rate = min(self._rate * GROWTH, CEILING)
