"""Background tasks under one roof: none runs unwatched, and none fails in silence.

A task that ends with an exception nobody expected is a bug, and the state it left is unknown. The
first such failure is logged and handed to whoever awaits `watch()`, which stops the node.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def cancel_begun(task: "asyncio.Task[Any]") -> None:
    """Cancels a task once it has taken its first step.

    One that is cancelled before never runs at all, and nobody awaits the coroutines that it was
    handed to await: Python says so on stderr, and what they hold is not given back. The first step
    of a task stands in the loop's queue since the task was made, so this comes after it.
    """
    task.get_loop().call_soon(task.cancel)


def seen(task: "asyncio.Future[Any]") -> None:
    """For work that goes on to its end where whoever waited for it has gone: how it failed is then
    no news, and not Python's to tell on stderr."""
    if not task.cancelled():
        task.exception()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to, which goes on where its caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(seen)
    return await asyncio.shield(task)


class Tasks:
    def __init__(self) -> None:
        # A dict keeps the order of their start, so stopping is the same in every run.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._failure: BaseException | None = None
        self._watchers: list[asyncio.Future[None]] = []

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def watch(self) -> None:
        """Waits for the first unexpected failure and raises it."""
        if self._failure is None:
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            try:
                await watcher
            finally:
                self._watchers.remove(watcher)
        assert self._failure is not None
        raise self._failure

    async def stop(self) -> None:
        """Cancels what still runs and waits until it has ended; what it spawns meanwhile, too."""
        me = asyncio.current_task()
        while others := [task for task in self._running if task is not me]:
            for task in others:
                cancel_begun(task)
            await asyncio.wait(others)

    def __len__(self) -> int:
        return len(self._running)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._running[task]
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if self._failure is not None:
            # It waited for what had failed before; one traceback is enough to look at.
            log.info("background task %s failed, too: %s", task.get_name(), failure)
            return
        log.critical("background task %s failed", task.get_name(), exc_info=failure)
        self.fail(failure)

    def fail(self, failure: BaseException) -> None:
        """Ends the watch with a failure that explains itself; the first one counts."""
        if self._failure is None:
            self._failure = failure
            for watcher in self._watchers:
                if not watcher.done():
                    watcher.set_result(None)
