"""A node on a simulated host: started, stopped, killed, and watched.

A node ends only when it is told to, and then without an error; anything else is a finding.
"""

import asyncio
import traceback
from collections.abc import Callable
from typing import Final

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimProcess

__all__ = ["START_TIMEOUT_S", "Node", "SimNode", "storage_lost"]

START_TIMEOUT_S: Final = 120


class SimNode:
    def __init__(
        self,
        host: SimHost,
        settings: Callable[[], NodeSettings],
        complain: Callable[[str], None],
    ) -> None:
        self._host = host
        self._settings = settings
        self._complain = complain
        self.process: SimProcess
        self.node: Node | None = None
        """What runs now, to be looked at."""
        self.lives = 0
        self._up: asyncio.Event
        self._asked_to_stop: asyncio.Event

    def boot(self) -> None:
        self._up, self._asked_to_stop = asyncio.Event(), asyncio.Event()
        up, asked = self._up, self._asked_to_stop
        self.node = None
        self.lives += 1

        async def serve(world: ProcessWorld) -> None:
            node = self.node = Node(self._settings(), world)
            await node.start()
            up.set()
            watching = asyncio.ensure_future(node.wait_stopped())
            asking = asyncio.ensure_future(asked.wait())
            await asyncio.wait([watching, asking], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
            watching.cancel()
            await node.stop()

        self.process = self._host.start(serve)

    @property
    def runs(self) -> bool:
        """Whether there is a process, paused or not, however far its start is."""
        return self.lives > 0 and self.process.alive

    @property
    def is_up(self) -> bool:
        return self.runs and self._up.is_set()

    async def start(self) -> None:
        self.boot()
        await self.came_up()

    async def came_up(self) -> None:
        """Waits until the node serves."""
        waiting = asyncio.ensure_future(self._up.wait())
        await asyncio.wait(
            [waiting, self.process.task],
            timeout=START_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        waiting.cancel()
        if not self._up.is_set():
            self.note_failure()
            raise RuntimeError("the node did not come up")

    async def stop(self) -> None:
        """As SIGTERM: in good order, or it is a finding."""
        self._asked_to_stop.set()
        await asyncio.wait([self.process.task], timeout=START_TIMEOUT_S)
        self.note_failure(stopped=True)
        self.process.kill()

    def note_failure(
        self, stopped: bool = False, excused: Callable[[BaseException], bool] | None = None
    ) -> None:
        """What it ended with is a finding, unless that is excused."""
        task = self.process.task
        failure = task.exception() if task.done() and not task.cancelled() else None
        if failure is not None:
            if excused is not None and excused(failure):
                return
            self._complain(f"the node failed: {failure!r}{_where(failure)}")
            raise RuntimeError("the node failed") from failure
        if task.done() != stopped:
            self._complain("the node did not stop" if stopped else "the node just ended")


def storage_lost(failure: BaseException) -> bool:
    """Whether a node ended since its disk does no more what it must."""
    return getattr(failure, "code", None) == ErrorCode.KAFKA_STORAGE_ERROR


def _where(failure: BaseException) -> str:
    """The last calls before it."""
    frames = traceback.extract_tb(failure.__traceback__)[-3:]
    places = (f"{frame.filename.rpartition('scriba/')[2]}:{frame.lineno}" for frame in frames)
    return f" ({', '.join(places)})"
