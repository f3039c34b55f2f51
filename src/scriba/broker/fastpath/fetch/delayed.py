"""A Fetch that waits: a callback on the watermarks of its partitions, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from scriba.broker.handlers.records.isolation import READ_COMMITTED
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Promise

if TYPE_CHECKING:
    from scriba.broker.fastpath.fetch.answers import FetchAnswers
    from scriba.broker.fastpath.fetch.targets import Reading, Wanted
    from scriba.broker.net.connection import Connection
    from scriba.broker.partitions.fetch_sessions import Session


class Rereading(Protocol):
    """The fast path, as a request that waits needs it."""

    @property
    def answers(self) -> FetchAnswers: ...

    def again(self, delayed: DelayedFetch) -> Reading | None: ...

    def hand_over(
        self, delayed: DelayedFetch, connection: Connection, wait_ms: float
    ) -> Awaitable[Parts | None]: ...


class DelayedFetch(Promise):
    """A Fetch that found too little, until a watermark has moved or its time is up."""

    __slots__ = (
        "_correlation_id",
        "_deadline",
        "_least",
        "_moved",
        "_over",
        "_path",
        "_timer",
        "_wait_ms",
        "committed_only",
        "frame",
        "max_bytes",
        "rack",
        "session",
        "wanted",
    )

    _deadline: float
    _moved: asyncio.Future[None]
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        path: Rereading,
        frame: bytes,
        located: list[int],
        session: Session | None,
        wanted: Wanted,
        rack: str,
    ) -> None:
        super().__init__()
        self._path = path
        self._correlation_id, _, self._wait_ms, self._least, self.max_bytes, isolation = located[:6]
        self.committed_only = isolation == READ_COMMITTED
        self.frame = frame
        self.rack = rack
        self.session = session
        self.wanted = wanted
        self._over = False

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._wait_ms / 1000
        self._deadline = loop.time() + seconds
        self._timer = loop.call_later(seconds, self._out_of_time)
        self._watch()

    def abandon(self) -> None:
        self._over = True
        self._timer.cancel()
        self._moved.cancel()

    def _watch(self) -> None:
        self._moved = moved = asyncio.get_running_loop().create_future()
        moved.add_done_callback(self._look)
        targets, *_ = self.wanted
        for target in targets:
            readable = target.partition.readable(self.committed_only)
            readable.watch(readable.value + 1, moved)

    def _look(self, moved: asyncio.Future[None]) -> None:
        if self._over:
            return
        reading = None if moved.exception() is not None else self._path.again(self)
        if reading is not None and reading[-1] < self._least:
            self._watch()
        else:
            self._timer.cancel()
            self._end(reading)

    def _out_of_time(self) -> None:
        if not self._over:
            self._end(self._path.again(self))
            self._moved.cancel()

    def _end(self, reading: Reading | None) -> None:
        self._over = True
        connection = self.connection
        if reading is None:
            left = self._deadline - asyncio.get_running_loop().time()
            rest = self._path.hand_over(self, connection, max(left * 1000, 0))
            connection.keep(self, Parked(rest))
            return
        try:
            parts = self._path.answers.several(
                self._correlation_id, self.session, self.wanted, reading
            )
        except OSError:
            connection.close()
        else:
            connection.keep(self, parts)
