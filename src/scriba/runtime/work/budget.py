"""Memory that pieces of work share: each says what it will take, and waits until that is there.

Threads bound how many run at once, not what they take together. First come, first served: large
work is not passed for ever by small.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from scriba.runtime.loop.tasks import seen

P = ParamSpec("P")
T = TypeVar("T")

WORK_BYTES: Final = 64 << 20
"""What all work off the loop may take together. Work that needs more is done alone."""


class Budget:
    def __init__(self, size: int = WORK_BYTES) -> None:
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    async def take(self, need: int) -> int:
        """Waits for its turn; what was taken, to be given back."""
        need = min(need, self._size)
        if not self._waiting and self.held + need <= self._size:
            self.held += need
            return need
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((need, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove((need, turn))
                self._admit()
            else:
                self.give(need)
            raise
        return need

    def give(self, taken: int) -> None:
        self.held -= taken
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.held + self._waiting[0][0] <= self._size:
            need, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.held += need
                turn.set_result(None)


class Offloading(Protocol):
    memory: Budget

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


async def run_within(offload: Offloading, need: int, fn: Callable[..., T], *args: Any) -> T:
    """As `offload.run`, once there is memory for it. It is held until the work has ended, even if
    nobody waits for that any more."""
    memory = offload.memory
    taken = await memory.take(need)
    work = asyncio.ensure_future(offload.run(fn, *args))

    def ended(done: asyncio.Future[T]) -> None:
        memory.give(taken)
        seen(done)

    work.add_done_callback(ended)
    return await asyncio.shield(work)
