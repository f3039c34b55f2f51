"""Long work on the loop, a slice at a time, and one slice in each turn of the loop.

However many works are under way, whoever waits for something else (a request of another
connection, most of all) waits for one slice: the works take turns, in the order in which they came.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, ref

from scriba.runtime.ports import Clock

SLICE_MS: Final = 6
BETWEEN_LOOKS: Final = 32
"""Steps of a work after which the clock is looked at."""

T = TypeVar("T")


class _Turns:
    """Who waits for the next slice of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._waiting: deque[tuple[Callable[[], object], Context]] = deque()
        self._scheduled = False

    def call(self, slice_: Callable[[], object]) -> None:
        self._waiting.append((slice_, copy_context()))
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._scheduled = True
            # Nobody's: one process of a simulated world must not take the turns of the others
            # with it when it dies.
            loop.call_soon(self._give, context=Context())

    def _give(self) -> None:
        self._scheduled = False
        slice_, context = self._waiting.popleft()
        if self._waiting:
            self._schedule()
        asyncio.get_running_loop().call_soon(slice_, context=context)


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()


def call_in_turn(slice_: Callable[[], object]) -> None:
    """Calls it when it is its turn to hold the loop for a while."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns(loop)
    turns.call(slice_)


async def next_turn() -> None:
    """Waits until it is this work's turn to take a slice."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call_in_turn(partial(_wake, turn))
    await turn


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


OLDER_EVERY: Final = 4
_slices = count(1)


async def next_turn_collected() -> None:
    """As `next_turn`, for a work that replaces tables which live long, slice by slice.

    A table of thousands is one young object to the collector, which counts objects and not what
    they hold: by itself it comes when there are many, and then holds the loop for a tenth of a
    second. So it is called while they are few.
    """
    if gc.isenabled():
        older = next(_slices) % OLDER_EVERY == 0
        if older:
            await next_turn()
        gc.collect(1 if older else 0)
    await next_turn()


class Pace:
    """Gives way to the rest of the loop whenever a slice of work has lasted long enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.mono_ms()

    async def __call__(self) -> None:
        if self._clock.mono_ms() - self._started >= SLICE_MS:
            await next_turn()
            self._started = self._clock.mono_ms()


async def in_slices(work: Generator[None, None, T], pace: Pace) -> T:
    """What the work comes to; others have their turn between two of its steps, which are short."""
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        steps += 1
        if steps % BETWEEN_LOOKS == 0:
            await pace()
