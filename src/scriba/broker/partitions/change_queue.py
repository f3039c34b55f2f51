"""Changes of the image, carried out one after the other by one task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from scriba.broker.ports import BackgroundTasks, Timekeeping
from scriba.runtime.loop.pace import Pace


class ChangeQueueHost(BackgroundTasks, Timekeeping, Protocol):
    """Whose changes these are."""


class Backlog(Protocol):
    """Work that waits until no change is queued."""

    def has_backlog(self) -> bool: ...

    async def work_off(self) -> None:
        """Does some of it."""


class ChangeQueue:
    def __init__(self, node: ChangeQueueHost, backlog: Backlog) -> None:
        self._node = node
        self._backlog = backlog
        self._queue: deque[Callable[[], Awaitable[None]]] = deque()
        self.worker: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, and nothing is being carried out."""
        return not self._queue and (self.worker is None or self.worker.done())

    def append(self, change: Callable[[], Awaitable[None]]) -> None:
        self._queue.append(change)

    def wake(self) -> None:
        if self._queue and (self.worker is None or self.worker.done()):
            self.worker = self._node.tasks.spawn(self._work(), name="replicas")

    async def _work(self) -> None:
        # Each change has a pace of its own, and may be over before that gives way.
        pace = Pace(self._node.world.clock)
        while True:
            await pace()
            if self._queue:
                await self._queue.popleft()()
            elif self._backlog.has_backlog():
                await self._backlog.work_off()
            else:
                return

    async def settled(self) -> None:
        """Returns when everything queued so far has been carried out, and every log has its files.

        All but those that wait for room on their device.
        """
        worker = self.worker
        if worker is not None and not worker.done():
            await asyncio.shield(worker)

    async def applied(self) -> None:
        """Returns when everything queued so far has been carried out, but for files of new logs."""
        worker = self.worker
        if worker is None or worker.done():
            return
        done = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            if not done.done():
                done.set_result(None)

        self._queue.append(tell)
        await asyncio.wait((worker, done), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            worker.result()
