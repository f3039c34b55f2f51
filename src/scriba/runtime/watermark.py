"""An offset that only rises, and those who wait for it to pass a point.

It is a heap of (offset, turn, future): advancing wakes exactly those whose point is reached, in
the order of their offsets and then of their arrival. Nobody is called back and nothing is polled.
A waiter that gave up stays in the heap as a finished future; it leaves when its offset is passed
or when the heap has doubled since the last sweep, whichever comes first. So the heap holds at most
about twice the live waiters, and an advance costs O(log n) for each waiter it wakes.
"""

import asyncio
from heapq import heapify, heappop, heappush
from typing import Protocol

_SWEEP_FROM = 64


class Waiter(Protocol):
    """Who waits: a future, or what is told in its place, in the middle of the step that moved the
    watermark. It must not do more there than to take note."""

    def done(self) -> bool:
        """Whether it waits no longer."""

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, failure: BaseException, /) -> None: ...


class Watermark:
    __slots__ = ("_failure", "_sweep_at", "_turn", "value", "waits")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.waits: list[tuple[int, int, Waiter]] = []
        """Those who wait. While it is empty, a larger `value` may be set as it is: an append moves
        three watermarks, and most often nobody waits for any of them."""
        self._turn = 0
        self._sweep_at = _SWEEP_FROM
        self._failure: BaseException | None = None

    def advance(self, value: int) -> None:
        """Moves up to `value` and wakes those who waited for it; lower values change nothing."""
        if value <= self.value:
            return
        self.value = value
        heap = self.waits
        while heap and heap[0][0] <= value:
            waiter = heappop(heap)[2]
            if not waiter.done():
                waiter.set_result(None)

    def reach(self, offset: int) -> "asyncio.Future[None]":
        """Done once the value is at least `offset`: already so when it has been passed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watch(offset, waiter)
        return waiter

    def watch(self, offset: int, waiter: Waiter) -> None:
        """Completes the caller's own waiter at `offset`.

        One future may be watched for on many watermarks, as a fetch over many partitions does;
        the first to get there completes it.
        """
        if waiter.done():
            return
        if self.value >= offset:
            waiter.set_result(None)
        elif self._failure is not None:
            _break(waiter, self._failure)
        else:
            if len(self.waits) >= self._sweep_at:
                self._sweep()
            self._turn += 1
            heappush(self.waits, (offset, self._turn, waiter))

    def fail(self, failure: BaseException) -> None:
        """Ends every wait, now and later, that the value does not already satisfy."""
        self._failure = failure
        self.interrupt(failure)

    def interrupt(self, failure: BaseException) -> None:
        """Ends every wait of this moment; whoever comes later waits as before."""
        heap, self.waits = self.waits, []
        for _, _, waiter in sorted(heap, key=lambda entry: entry[:2]):
            if not waiter.done():
                _break(waiter, failure)

    def waiting(self) -> int:
        """Waiters that have not given up."""
        return sum(not waiter.done() for _, _, waiter in self.waits)

    def _sweep(self) -> None:
        self.waits = [entry for entry in self.waits if not entry[2].done()]
        heapify(self.waits)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self.waits))


def _break(waiter: Waiter, failure: BaseException) -> None:
    # Without the frames of those who were told before, which would be more each time.
    waiter.set_exception(failure.with_traceback(None))
    if isinstance(waiter, asyncio.Future):
        waiter.exception()  # marks it as seen: a waiter that has gone must not log at collection
