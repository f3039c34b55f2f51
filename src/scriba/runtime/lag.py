"""How late the loop is: a histogram that is always on, and a name for whoever held it too long.

A timer beats forty times a second; how late a beat comes is how long an event that arrived then
had to wait. Beside the loop a thread looks at the beat as often: when it is overdue, the thread
notes what the loop's thread is executing at that moment. The next beat then logs the slice with
that note, so the log names the function, not only the delay. Nothing is added to any callback.
"""

import asyncio
import logging
import sys
import threading
from bisect import bisect_left
from time import perf_counter, sleep
from types import FrameType
from typing import Final

log = logging.getLogger(__name__)

BEAT_S: Final = 0.025
SLICE_S: Final = 0.05
"""Every slice longer than this is logged. A beat falls due at any point of a slice's first
BEAT_S, so what can be told from its lag is the length but for that much."""
STUCK_S: Final = 2.0
"""A slice that lasts this long is logged by the watching thread, as it may never end."""
_FRAMES: Final = 4
_BETWEEN_SLICES: Final = ("selectors", "asyncio.base_events", "asyncio.runners")
"""Modules that are on top of the stack when the loop has finished a slice."""


class LagHistogram:
    """Counts of lag by upper bound in milliseconds; the last count is for all above."""

    BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

    __slots__ = ("counts", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, lag_ms: float) -> None:
        self.counts[bisect_left(self.BOUNDS_MS, lag_ms)] += 1
        self.sum_ms += lag_ms
        if lag_ms > self.max_ms:
            self.max_ms = lag_ms


class LagMonitor:
    """Watches the running loop from `start` to `stop`."""

    def __init__(self, histogram: LagHistogram) -> None:
        self.histogram = histogram
        self._due = 0.0
        self._seen: str | None = None
        self._beat_handle: asyncio.TimerHandle | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        assert self._thread is None, "started twice"
        loop = asyncio.get_running_loop()
        self._due = perf_counter() + BEAT_S
        self._beat_handle = loop.call_later(BEAT_S, self._beat, loop)
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="scriba-lag", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        assert self._beat_handle is not None
        self._beat_handle.cancel()
        self._stopped = True
        self._thread.join()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = perf_counter()
        lag = max(0.0, now - self._due)
        self.histogram.add(lag * 1000)
        if lag > SLICE_S:
            who = self._seen or "no one seen: was the process paused?"
            # On a busy machine that is nobody's fault, and nothing to do about here.
            level = logging.WARNING if self._seen else logging.INFO
            log.log(level, "the event loop was held for about %d ms by %s", lag * 1000, who)
        self._seen = None
        self._due = now + BEAT_S
        self._beat_handle = loop.call_later(BEAT_S, self._beat, loop)

    def _watch(self, loop_thread: int) -> None:
        reported = 0.0
        while not self._stopped:
            sleep(BEAT_S)  # half the price of an Event's timed wait
            due = self._due
            late = perf_counter() - due
            if late < 0:
                continue
            frame = sys._current_frames().get(loop_thread)
            if frame is None or frame.f_globals.get("__name__") in _BETWEEN_SLICES:
                continue
            who = describe(frame)
            if self._due != due:
                continue  # it beat while we looked
            self._seen = who
            if late > STUCK_S and reported != due:
                reported = due
                log.error("the event loop has been held for %.1f s by %s", late, who)


def describe(frame: FrameType | None) -> str:
    """The innermost calls of a stack, innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES:
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(calls)
