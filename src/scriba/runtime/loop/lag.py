"""How late the loop is: a histogram that is always on, and a name for whoever held it too long.

A timer beats forty times a second; how late a beat comes is how long an event that arrived then
had to wait. Beside the loop a thread looks at the beat as often: when it is overdue, the thread
notes what the loop's thread is executing at that moment. Nothing is added to any callback.

A late beat has one of three causes, and the line that happened to run is to blame for two at most.
So the processor time of the loop's thread is compared with the time that passed: if it computed,
the function that was seen is at fault. If it waited to be run, the machine gave the processor to
others. If neither, a call waited for a device, a lock or another thread.

Whoever reads the log hears of it once a minute, of the longest of all; as a warning from a second
on, below that only where information is logged, too.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from time import perf_counter, sleep
from types import FrameType
from typing import Final, NamedTuple

from scriba.prometheus import Durations

log = logging.getLogger(__name__)

BEAT_S: Final = 0.025
SLICE_S: Final = 0.05
"""What is longer than this is told. A beat falls due at any point of a slice's first BEAT_S, so
what can be told from its lag is the length but for that much."""
STUCK_S: Final = 2.0
"""A slice that lasts this long is logged by the watching thread, as it may never end."""
LOUD_S: Final = 1.0
"""From here on it is a warning: shorter ones hurt no time-out of any client."""
TOLD_EVERY_S: Final = 60.0
_FRAMES: Final = 4
_BETWEEN_SLICES: Final = ("selectors", "asyncio.base_events", "asyncio.runners")
"""Modules that are on top of the stack when the loop has finished a slice."""


class Spent(NamedTuple):
    """What the loop's thread has used so far, in seconds. None where the system does not tell."""

    wall: float
    cpu: float | None
    queued: float | None
    """Ready to run, and not run."""


def judge(before: Spent, after: Spent, who: str | None, unwatched: float = 0.0) -> str:
    """Why a beat was late: what became of the time between two looks.

    `unwatched` is how long the watching thread did not run either.
    """
    wall = after.wall - before.wall
    seen = f" by {who}" if who else ""
    if before.cpu is None or after.cpu is None:
        return f"held{seen}"
    cpu = after.cpu - before.cpu
    used = f"{cpu * 1000:.0f} ms of processor time"
    if cpu >= wall / 2:
        return f"held{seen}: {used}"
    if before.queued is None or after.queued is None:
        return f"not run, or waiting in a call: {used}; last seen{seen or ' nowhere'}"
    queued = after.queued - before.queued
    if queued >= (wall - cpu) / 2:
        return f"not run: the machine gave the processor to others for {queued * 1000:.0f} ms"
    if unwatched >= wall / 2:
        return "not run, and no other thread: the process was paused, or one call held the GIL"
    return f"waiting in a call{seen}: {used}, the rest for a device, a lock or another thread"


class LagMonitor:
    """Watches the running loop from `start` to `stop`."""

    def __init__(self, histogram: Durations) -> None:
        self.histogram = histogram
        self._due = 0.0
        self._seen: str | None = None
        self._beat_handle: asyncio.TimerHandle | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._unwatched = 0.0
        """The longest time between two looks of the thread since the last beat."""
        self._meter: _Meter
        self._spent: Spent
        self._tell_at = 0.0
        self._late = 0
        """Late beats that were not told of yet, and the longest of them."""
        self._worst = 0.0
        self._verdict = ""

    def start(self) -> None:
        assert self._thread is None, "started twice"
        loop = asyncio.get_running_loop()
        self._meter = _Meter()
        self._spent = self._meter.read()
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
        self._meter.close()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = perf_counter()
        lag = max(0.0, now - self._due)
        self.histogram.add(lag * 1000)
        spent = self._meter.read()
        if lag > SLICE_S:
            self._late += 1
            if lag > self._worst:
                self._worst = lag
                self._verdict = judge(self._spent, spent, self._seen, self._unwatched)
        if self._late and now >= self._tell_at:
            self._tell(now)
        self._seen = None
        self._unwatched = 0.0
        self._spent = spent
        self._due = now + BEAT_S
        self._beat_handle = loop.call_later(BEAT_S, self._beat, loop)

    def _tell(self, now: float) -> None:
        level = logging.WARNING if self._worst >= LOUD_S else logging.INFO
        others = f" (the longest of {self._late} since this was last told)" * (self._late > 1)
        log.log(
            level,
            "the event loop was late by %d ms%s: %s",
            self._worst * 1000,
            others,
            self._verdict,
        )
        self._tell_at = now + TOLD_EVERY_S
        self._late, self._worst = 0, 0.0

    def _watch(self, loop_thread: int) -> None:
        reported, looked = -TOLD_EVERY_S, perf_counter()
        while not self._stopped:
            sleep(BEAT_S)  # half the price of an Event's timed wait
            now = perf_counter()
            self._unwatched, looked = max(self._unwatched, now - looked), now
            due = self._due
            late = now - due
            if late < 0:
                continue
            who = _running(loop_thread)
            if who is None:
                continue
            if self._due != due:
                continue  # it beat while we looked
            self._seen = who
            if late > STUCK_S and due >= reported + TOLD_EVERY_S:
                reported = due
                verdict = judge(self._spent, self._meter.read(), who)
                log.error("the event loop is late by %.1f s and still %s", late, verdict)


class _Meter:
    """Reads what the thread that made it has used, from any thread; 2 us a look on Linux."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._stat = -1
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        with suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._stat = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Spent:
        cpu = queued = None
        if self._clock is not None:
            cpu = time.clock_gettime(self._clock)
        if self._stat >= 0:
            with suppress(OSError, ValueError, IndexError):
                queued = int(os.pread(self._stat, 128, 0).split()[1]) / 1e9
        return Spent(perf_counter(), cpu, queued)

    def close(self) -> None:
        if self._stat >= 0:
            os.close(self._stat)
            self._stat = -1


def _running(thread: int) -> str | None:
    """Who runs there, unless it is the loop itself. The frame is kept no longer than this call:
    with it all that its callers had, such as views of a request, would outlive them."""
    frame = sys._current_frames().get(thread)
    if frame is None or frame.f_globals.get("__name__") in _BETWEEN_SLICES:
        return None
    return describe(frame)


def describe(frame: FrameType | None) -> str:
    """The innermost calls of a stack, innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES:
        module = frame.f_globals.get("__name__", "?")
        calls.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(calls)
