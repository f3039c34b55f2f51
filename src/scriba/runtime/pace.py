"""Long work on the loop, a slice at a time."""

import asyncio
from typing import Final

from scriba.runtime.ports import Clock

SLICE_MS: Final = 8


class Pace:
    """Gives way to the rest of the loop whenever a slice of work has lasted long enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.mono_ms()

    async def __call__(self) -> None:
        if self._clock.mono_ms() - self._started >= SLICE_MS:
            await asyncio.sleep(0)
            self._started = self._clock.mono_ms()
