"""Hands out producer ids from blocks that the controller allocates (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scriba.runtime.loop.tasks import seen

Block = tuple[int, int]
"""First id and how many."""


class ProducerIds:
    """Ids are never given twice, across restarts too: what is left of a block is thrown away."""

    def __init__(self, allocate: Callable[[], Awaitable[Block]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._fetching: asyncio.Future[None] | None = None

    async def next(self) -> int:
        while self._next >= self._end:
            await self._refill()
        taken = self._next
        self._next += 1
        return taken

    async def _refill(self) -> None:
        """One request for everyone who waits."""
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._fetch())
            self._fetching.add_done_callback(seen)
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        # Not in a callback, which runs a turn later: whoever came in between would find a request
        # that is over and no id, and ask without end.
        try:
            first, count = await self._allocate()
            self._next, self._end = first, first + count
        finally:
            self._fetching = None
