"""An event loop on which time can be made to pass at once, and the world of a node on it.

The loop's own time and the node's clock share one lead over the real time (`AdjustableClock`).
`advance` makes the lead grow, but never past a timer that is due before: when the loop has nothing
left to run, and no thread or worker has anything under way for it, the lead grows up to the next
timer, and what that timer starts runs to its end before the next step. So an hour passes as it
would have passed, only without the waiting: heartbeats, deadlines and background jobs take place in
their order. A long time goes by in at most `MOST_STEPS` steps, each of which may fire several
timers: what happens every half second then happens less often, as on a busy machine.

All of it rests on what asyncio documents: `time()` of a loop, and a selector that is handed to it.
`select` is called with a time-out that says how long the loop would sleep.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, ParamSpec, TypeVar

from scriba.prometheus import Durations
from scriba.runtime.clock import AdjustableClock
from scriba.runtime.files.unsynced import UnsyncedDisk
from scriba.runtime.memory import available_bytes
from scriba.runtime.net import SocketNet
from scriba.runtime.ports import Clock, Disk, Net, Offload, Rng, Worker, Workers
from scriba.runtime.rng import SystemRng
from scriba.runtime.work.offload import ThreadOffload
from scriba.runtime.work.workers import ChildWorkers

P = ParamSpec("P")
T = TypeVar("T")

MOST_STEPS: Final = 400
_SECOND_NS: Final = 1_000_000_000


class Absent:
    """Counts work that was given away and whose result the loop waits for."""

    def __init__(self) -> None:
        self.count = 0


class CountedOffload(ThreadOffload):
    def __init__(self, absent: Absent) -> None:
        super().__init__()
        self._absent = absent

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._absent.count += 1
        try:
            return await super().run(fn, *args, **kwargs)
        finally:
            self._absent.count -= 1


class CountedWorker:
    def __init__(self, worker: Worker, absent: Absent) -> None:
        self.idle = worker.idle
        self._worker = worker
        self._absent = absent

    async def run(self, task: str, *values: Any) -> AsyncGenerator[Any, None]:
        self._absent.count += 1
        items = self._worker.run(task, *values)
        try:
            async for item in items:
                yield item
        finally:
            try:
                await items.aclose()
            finally:
                self._absent.count -= 1

    async def close(self) -> None:
        await self._worker.close()


class CountedWorkers:
    def __init__(self, absent: Absent) -> None:
        self._workers = ChildWorkers()
        self._absent = absent

    def start(self, idle: bool = False) -> Worker:
        return CountedWorker(self._workers.start(idle), self._absent)


class _Lapse:
    """Time that is to pass."""

    __slots__ = ("done", "least_ns", "left_ns")

    def __init__(self, ns: int, done: "asyncio.Future[None]") -> None:
        self.left_ns = ns
        self.least_ns = ns // MOST_STEPS
        self.done = done


class _Selector(selectors.DefaultSelector):
    """Has the loop say when it would sleep, and for how long."""

    loop: "LapseLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(self.loop.sleep_for(timeout))


class LapseLoop(asyncio.SelectorEventLoop):
    def __init__(self, ahead_ns: int = 0) -> None:
        self.clock = AdjustableClock(ahead_ns)
        self.absent = Absent()
        self._lapses: deque[_Lapse] = deque()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return super().time() + self.clock.ahead_ns / _SECOND_NS

    async def advance(self, ms: int) -> None:
        """Returns when the time has passed and all that was due has been done."""
        if ms < 0:
            raise ValueError(f"time does not go back: {ms} ms")
        lapse = _Lapse(ms * 1_000_000, self.create_future())
        self._lapses.append(lapse)
        try:
            await lapse.done
        finally:
            if lapse in self._lapses:
                self._lapses.remove(lapse)

    def sleep_for(self, timeout: float | None) -> float | None:
        """How long to sleep where the loop wants to for `timeout`; None until something comes."""
        if not self._lapses or timeout == 0 or self.absent.count:
            return timeout
        lapse = self._lapses[0]
        if not lapse.left_ns:
            self._lapses.popleft()
            if not lapse.done.done():
                lapse.done.set_result(None)
            return 0
        step = lapse.left_ns
        if timeout is not None:
            # A little more, since the loop compares its time with the timer's as floats.
            step = min(step, max(int(timeout * _SECOND_NS) + 1000, lapse.least_ns))
        lapse.left_ns -= step
        self.clock.ahead_ns += step
        return 0


class LapseWorld:
    """The machine this process runs on, in the time of `loop`.

    What is written is not synced: it survives the process, and nobody here cuts the power.
    """

    def __init__(self, loop: LapseLoop) -> None:
        self._threads = CountedOffload(loop.absent)
        self._files = UnsyncedDisk(self._threads)
        self.clock: Clock = loop.clock
        self.rng: Rng = SystemRng()
        self.offload: Offload = self._threads
        self.disk: Disk = self._files
        self.net: Net = SocketNet()
        self.lag = Durations()
        self.workers: Workers = CountedWorkers(loop.absent)
        self.memory_bytes = available_bytes()
        self.spoil: Callable[[memoryview], None] | None = None

    def close(self) -> None:
        """Takes back all that a node had open, as the kernel does when a process ends."""
        self._threads.close()
        self._files.close()
