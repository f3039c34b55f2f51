"""How fast replicas that are behind may be copied: so many bytes a second, and a little at once.

Time earns an allowance, bytes use it up, and what was sent beyond it is owed: nothing more goes
until that is paid off. So the rate holds over any longer time, whatever single answers weigh. A
rest earns no more than `BURST_MS` of allowance, lest a copy begins with a leap.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

BURST_MS: Final = 200
UNLIMITED: Final = 1 << 62
"""Rates from here on are none."""


class Throttle:
    __slots__ = ("_allowance", "_at_ms", "_rate", "_started")

    def __init__(self, rate: Callable[[], int]) -> None:
        """`rate` tells the bytes a second, which may change at any time."""
        self._rate = rate
        self._allowance = 0.0
        self._at_ms = 0
        self._started = False

    def allowance(self, now_ms: int) -> int:
        """Bytes that may go now; nothing may at 0 or less."""
        rate = self._rate()
        if rate >= UNLIMITED:
            self._started = False
            return UNLIMITED
        if not self._started:
            # What was owed under another rule is forgotten.
            self._started, self._allowance, self._at_ms = True, rate * BURST_MS / 1000, now_ms
        earned = rate * (now_ms - self._at_ms) / 1000
        self._allowance = min(self._allowance + earned, max(rate * BURST_MS / 1000, 1))
        self._at_ms = now_ms
        return int(self._allowance)

    def take(self, size: int, now_ms: int) -> None:
        """So many bytes went."""
        if self.allowance(now_ms) < UNLIMITED:
            self._allowance -= size

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing may go: 0 if something may."""
        left = self.allowance(now_ms)
        if left > 0:
            return 0
        rate = self._rate()
        return max(ceil((1 - self._allowance) * 1000 / rate), 1) if rate > 0 else UNLIMITED
