"""A test's broker in a process of its own: `python -m scriba.testing.child FD`.

FD is a socket to the test. What comes over it is carried out; when the test's process has ended,
the broker stops.
"""

import asyncio
import sys
from typing import Any

from scriba.runtime.loop.hosting import serve_calls
from scriba.runtime.loop.lapse import LapseLoop
from scriba.testing.inside import Inside


class Child:
    def __init__(self, loop: LapseLoop) -> None:
        self._loop = loop
        self._inside: Inside | None = None

    async def answer(self, asked: tuple[Any, ...]) -> Any:
        name, *values = asked
        if name == "start":
            settings, self._loop.clock.ahead_ns = values
            inside = Inside(settings, self._loop)
            addresses = await inside.start()
            self._inside = inside
            return addresses
        assert self._inside is not None
        if name == "stop":
            await self.stop()
            return None
        return await self._inside.call(name, *values)

    async def stop(self) -> None:
        if self._inside is not None:
            inside, self._inside = self._inside, None
            await inside.stop()


async def serve(fd: int, loop: LapseLoop) -> None:
    child = Child(loop)
    try:
        await serve_calls(fd, child.answer)
    finally:
        await child.stop()


if __name__ == "__main__":
    own = LapseLoop()
    with asyncio.Runner(loop_factory=lambda: own) as runner:
        runner.run(serve(int(sys.argv[1]), own))
