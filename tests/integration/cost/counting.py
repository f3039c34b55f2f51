"""A node whose calls can be counted."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from scriba.broker.node import Node
from scriba.runtime.loop.loop import loop_factory
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings

REQUESTS = 500


Request = Callable[[], None]


class Counting:
    """A node on a loop in a thread of its own, whose calls can be counted."""

    def __init__(self, data: Path) -> None:
        self.calls: Counter[str] = Counter()
        self.port = 0
        self._data = data
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(300)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings = NodeSettings.parse(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(self._data)},
            machine="localhost",
        )
        node = Node(settings, RealWorld())
        await node.start()
        self.port = node.listeners[0].port
        self._ready.set()
        await self._stop.wait()
        await node.stop()

    def count(self, request: Request) -> dict[str, float]:
        """The calls that the loop's thread makes for a request.

        The median of many: on a slow machine the node's timers run between requests again and
        again, but never with most of them.
        """
        self._in_loop(lambda: sys.setprofile(self._note))
        seen: dict[str, list[int]] = {"call": [], "c_call": []}
        for _ in range(REQUESTS):
            request()
            for event, counts in seen.items():
                counts.append(self.calls[event])
        self._in_loop(lambda: sys.setprofile(None))
        self.calls = Counter()
        return {
            event: median(after - before for before, after in pairwise(counts))
            for event, counts in seen.items()
        }

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        self.calls[event] += 1

    def _in_loop(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(300)
