"""Where a test's broker runs: on a thread of the test's process, or in a process of its own.

Both are one broker's life from start to end, asked by the names of `Inside`'s methods.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from scriba.runtime.loop.collector import without_collections
from scriba.runtime.loop.hosting import ChildProcess, LoopThread
from scriba.runtime.loop.lapse import LapseLoop

PATIENCE_S: Final = 60
"""A call that takes longer hangs, and is told as such."""

CHILD: Final = "scriba.testing.child"

Addresses = list[tuple[str, int]]


class Host(Protocol):
    pid: int | None
    """Of a broker that has a process of its own."""

    def start(self, settings: Mapping[str, str], ahead_ns: int) -> Addresses: ...

    def call(self, name: str, *values: Any) -> Any: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def stop(self) -> None:
        """Cleanly: what was acknowledged is flushed, groups and partitions are handed back."""
        ...

    def kill(self) -> None: ...


class ThreadHost:
    """The thread has an event loop of its own, so a loop of the test never waits for it."""

    pid: int | None = None

    def start(self, settings: Mapping[str, str], ahead_ns: int) -> Addresses:
        # Only the process that runs the broker loads it.
        with without_collections():
            from scriba.testing.inside import Inside

        self._thread = LoopThread(LapseLoop(ahead_ns), "scriba-broker")

        async def begin() -> Addresses:
            self._inside = Inside(settings, self._thread.loop)
            return await self._inside.start()

        try:
            return self._thread.call(begin(), PATIENCE_S)
        except BaseException:
            self._thread.end()
            raise

    def call(self, name: str, *values: Any) -> Any:
        return self._thread.call(self._inside.call(name, *values), PATIENCE_S)

    def hold(self) -> None:
        self._thread.hold()

    def release(self) -> None:
        self._thread.release()

    def stop(self) -> None:
        self._end(self._inside.stop)

    def kill(self) -> None:
        self._end(self._inside.halt)

    def _end(self, how: Any) -> None:
        self._thread.release()
        try:
            self._thread.call(how(), PATIENCE_S)
        finally:
            self._thread.end()


class ProcessHost:
    """The process ends with the test's, however that ends."""

    pid: int | None = None

    def start(self, settings: Mapping[str, str], ahead_ns: int) -> Addresses:
        self._child = ChildProcess(CHILD)
        self.pid = self._child.pid
        try:
            addresses: Addresses = self._child.call(("start", dict(settings), ahead_ns), PATIENCE_S)
        except BaseException:
            self._child.kill()
            raise
        return addresses

    def call(self, name: str, *values: Any) -> Any:
        return self._child.call((name, *values), PATIENCE_S)

    def hold(self) -> None:
        self._child.hold()

    def release(self) -> None:
        self._child.release()

    def stop(self) -> None:
        self._child.release()
        try:
            self._child.call(("stop",), PATIENCE_S)
        finally:
            self._child.end()

    def kill(self) -> None:
        """SIGKILL, also for a process that stands still."""
        self._child.kill()
