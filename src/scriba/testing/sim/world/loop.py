"""An event loop whose time is a number: nothing is waited for, and every run is the same.

When no callback is ready the clock jumps to the next timer. Callbacks run in the order asyncio
promises, timers of one moment in the order they were set. There is no selector: whatever comes
from outside is simulated by timers.

Several simulated processes share the loop. Each runs in a `Life`, carried by the context that
asyncio hands from task to task and from callback to callback. Killing a life stops all of it
between two callbacks: what is queued is dropped, and its coroutines are closed in a world that
has already gone, so that, as after a real SIGKILL, nothing they still do has an effect. A life that
is paused stands where it is, as after SIGSTOP: what is due waits, and comes in its order when the
life is resumed, all late.

The loop's own time is the true one. A life may have a clock that counts otherwise (`Pace`): then
`time` and all its timers go by that clock, and others do not notice.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PASSES_WITHOUT_TIME: Final = 200_000
_SWEEP_FROM: Final = 1024
_LAST_WORDS: Final = 100
"""Waits inside `finally` that a killed coroutine may have, one within the other."""


class SimStuck(Exception):
    """Nothing can happen any more, or time does not pass any more."""


class Pace:
    """How a host's clock runs: since a true moment, from what it said then, at a rate."""

    def __init__(self, uptime: float = 0.0) -> None:
        self.rate = 1.0
        self._since = 0.0
        self._said = uptime

    def local(self, true: float) -> float:
        return self._said + (true - self._since) * self.rate

    def true(self, local: float) -> float:
        return self._since + (local - self._said) / self.rate

    def change(self, rate: float, now: float) -> None:
        self._said, self._since = self.local(now), now
        self.rate = rate


class Life:
    """One simulated process from its start to its end."""

    def __init__(self, name: str, pace: Pace | None = None) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.pace = pace
        self.held: deque[asyncio.Handle] = deque()
        """What came due while it was paused."""
        self.tasks: dict[asyncio.Task[Any], contextvars.Context] = {}
        self._sweep_at = _SWEEP_FROM

    def context(self) -> contextvars.Context:
        """A context whose tasks and callbacks belong to this life."""
        context = contextvars.copy_context()
        context.run(LIFE.set, self)
        return context

    def adopt(self, task: "asyncio.Task[Any]", context: contextvars.Context) -> None:
        if len(self.tasks) >= self._sweep_at:
            self.tasks = {task: ctx for task, ctx in self.tasks.items() if not task.done()}
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self.tasks))
        self.tasks[task] = context


LIFE: contextvars.ContextVar[Life] = contextvars.ContextVar("scriba_sim_life")


def _gone(context: contextvars.Context) -> bool:
    life = context.get(LIFE)
    return life is not None and not life.alive


def _pace() -> Pace | None:
    """The clock of whoever calls, if it is one of its own."""
    life = LIFE.get(None)
    return None if life is None else life.pace


class _Timer(asyncio.TimerHandle):
    """A timer that comes after all that were set before it for the same moment."""

    __slots__ = ("turn",)

    turn: int

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        return (self._when, self.turn) < (other._when, other.turn)

    _when: float


class SimLoop(asyncio.BaseEventLoop):
    _ready: deque[asyncio.Handle]
    _scheduled: list[_Timer]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turn = 0
        self._idle_passes = 0
        self._sweep_timers_at = _SWEEP_FROM
        self._paused = 0
        self.errors: list[BaseException] = []
        """What callbacks raised and nobody caught: a run with any of these has failed."""
        self.unseen: list[BaseException] = []
        """What tasks ended with and nobody looked at. The collector tells, so this may be late."""
        self.set_exception_handler(_note_error)

    def time(self) -> float:
        pace = _pace()
        return self._now if pace is None else pace.local(self._now)

    def true_time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        if _gone(context):
            handle.cancel()
        else:
            self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        pace = _pace()
        due = self._now + (delay if pace is None else delay / pace.rate)
        return self.call_at_true(due, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        pace = _pace()
        due = when if pace is None else pace.true(when)
        return self.call_at_true(due, callback, *args, context=context)

    def call_at_true(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        timer = _Timer(when, callback, args, self, context)
        self._turn += 1
        timer.turn = self._turn
        if _gone(context):
            timer.cancel()
        else:
            if len(self._scheduled) >= self._sweep_timers_at:
                self._sweep_timers()
            heapq.heappush(self._scheduled, timer)
        return timer

    def call_soon_threadsafe(self, *_: object, **__: object) -> asyncio.Handle:
        raise SimStuck("threads have no place in a simulation: use the offload port")

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        context = contextvars.copy_context() if context is None else context
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        life = context.get(LIFE)
        if life is not None:
            life.adopt(task, context)
            if not life.alive:
                _bury(task, context)
        return task

    def kill(self, life: Life) -> None:
        """Ends a life as SIGKILL would. Its world must already ignore what it does."""
        life.alive = False
        for handle in (*self._ready, *self._scheduled, *life.held):
            if _gone(_context_of(handle)):
                handle.cancel()
        self.resume(life)
        for task, context in list(life.tasks.items()):
            _bury(task, context)
        life.tasks.clear()

    def pause(self, life: Life) -> None:
        """Holds a life as SIGSTOP would: nothing of it runs until `resume`."""
        if not life.paused:
            life.paused = True
            self._paused += 1

    def resume(self, life: Life) -> None:
        if life.paused:
            life.paused = False
            self._paused -= 1
            self._ready.extend(life.held)
            life.held.clear()

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if self._ready:
            self._idle_passes += 1
            if self._idle_passes > _PASSES_WITHOUT_TIME:
                raise SimStuck(f"callbacks follow callbacks without end: {self._ready[0]!r}")
        elif timers:
            self._idle_passes = 0
            self._now = max(self._now, timers[0]._when)
        else:
            raise SimStuck("everything waits and nothing is due")
        while timers and timers[0]._when <= self._now:
            self._ready.append(heapq.heappop(timers))
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not (handle.cancelled() or (self._paused and _held_back(handle))):
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave when they come up, or when the heap has doubled."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Its process is gone: nothing of it runs any more. The living close theirs."""

    def _sweep_timers(self) -> None:
        self._scheduled[:] = [timer for timer in self._scheduled if not timer.cancelled()]
        heapq.heapify(self._scheduled)
        self._sweep_timers_at = max(_SWEEP_FROM, 2 * len(self._scheduled))


def _context_of(handle: asyncio.Handle) -> contextvars.Context:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context


def _held_back(handle: asyncio.Handle) -> bool:
    """Whether this belongs to a life that is paused; then it waits there."""
    life = _context_of(handle).get(LIFE)
    if life is None or not life.paused:
        return False
    life.held.append(handle)
    return True


def _bury(task: "asyncio.Task[Any]", context: contextvars.Context) -> None:
    """Closes a task's coroutine where it stands; nobody is told how the task ended."""
    if task.done():
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(_LAST_WORDS):
        try:
            context.run(coroutine.close)
        except RuntimeError:
            continue  # it waits for something in a `finally`: that ends, too
        except Exception:
            return
        else:
            return


def _note_error(loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = details.get("exception") or RuntimeError(details.get("message"))
    (loop.unseen if "future" in details else loop.errors).append(error)
