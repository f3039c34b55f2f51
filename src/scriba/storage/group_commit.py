"""One sync at a time, shared by all who wait for the next one."""

import asyncio
from collections.abc import Awaitable, Callable

from scriba.runtime.loop.tasks import seen


class GroupCommit:
    """`join` returns after a sync that began after the call; an error reaches all who shared it.

    Whoever joins while one is under way waits for the one after it: what they wrote may have come
    too late for the first. A waiter that is cancelled does not take the sync with it.
    """

    __slots__ = ("_current", "_next", "_sync")

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def join(self) -> None:
        if self._current is None:
            task = self._current = self._begin(None)
        elif self._next is None:
            task = self._next = self._begin(self._current)
        else:
            task = self._next
        await asyncio.shield(task)

    def _begin(self, before: "asyncio.Task[None] | None") -> "asyncio.Task[None]":
        task = asyncio.ensure_future(self._run(before))
        task.add_done_callback(seen)  # the sync itself tells of an error
        return task

    async def _run(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
            self._current, self._next = self._next, None
        try:
            await self._sync()
        finally:
            if self._next is None:
                self._current = None
