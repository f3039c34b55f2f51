"""Who is the active writer: the member of a consumer group that has the one partition of a topic.

The group gives the partition to one living member, and to another when that one dies or leaves:
that is all that is asked of it. It may be late, so that two believe they are the one; fencing by
the transactional id (see `writer`) makes that harmless. The new writer says in the partition where
it is, in a transaction of its own, so that one that was fenced cannot; everyone reads it there.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scriba.client import ClientError, Consumer, TopicPartition
from scriba.pipelines.inventory.follower import Faulty
from scriba.pipelines.inventory.topics import Names
from scriba.pipelines.inventory.writer import Writer

log = logging.getLogger(__name__)

POLL_MS: Final = 200
PAUSE_SECONDS: Final = 0.5
"""Before a writer that failed takes over again: the group may be about to choose another."""


class Lead:
    """Takes part in the choice; `writer` is there while this service is the one."""

    def __init__(
        self,
        client: Mapping[str, Any],
        names: Names,
        url: str,
        session_timeout_ms: int,
        make: Callable[[], Writer],
    ) -> None:
        self.writer: Writer | None = None
        self.takeovers = 0
        self._settings = {
            **client,
            "group.id": names.group,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(1, session_timeout_ms // 4),
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            # One who joins must not take the partition away from the one who has it.
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self._names = names
        self._url = url
        self._make = make
        self._term: asyncio.Task[None] | None = None

    async def run(self) -> None:
        async with Consumer(self._settings) as consumer:
            consumer.subscribe(self._names.writer, on_assigned=self._given, on_revoked=self._taken)
            try:
                while True:
                    await consumer.poll(POLL_MS)
                    if self._term is not None and self._term.done():
                        self._term.result()
            finally:
                await self._taken([])

    async def _given(self, partitions: Sequence[TopicPartition]) -> None:
        if partitions and self._term is None:
            self._term = asyncio.create_task(self._serve())

    async def _taken(self, partitions: Sequence[TopicPartition]) -> None:
        term, self._term = self._term, None
        if term is not None:
            term.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await term

    async def _serve(self) -> None:
        """Is the writer, again and again, until the partition is taken away."""
        while True:
            writer = self._make()
            try:
                said = {"url": self._url, "since": time.time_ns() // 1_000_000}
                await writer.take_over(json.dumps(said).encode())
                self.takeovers += 1
                self.writer = writer
                log.info("this is the active writer now")
                await writer.failed.wait()
            except (ClientError, TimeoutError, Faulty) as failure:
                log.warning("no writer yet: %s", failure)
            finally:
                self.writer = None
                await writer.close()
            await asyncio.sleep(PAUSE_SECONDS)


class Directory:
    """Where the active writer is, as the last one of them has said."""

    def __init__(self, client: Mapping[str, Any], names: Names) -> None:
        self.url: str | None = None
        self._changed = asyncio.Event()
        settings = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._settings = {**client, **settings}
        self._where = TopicPartition(names.writer, 0)

    async def run(self) -> None:
        async with Consumer(self._settings) as consumer:
            consumer.assign([self._where])
            while True:
                for record in await consumer.poll(POLL_MS):
                    self._read(record.value)

    def _read(self, value: bytes | None) -> None:
        try:
            self.url = str(json.loads(value or b"null")["url"])
        except (ValueError, TypeError, KeyError):
            log.warning("%s: not the place of a writer: %r", self._where, value)
        self._changed.set()
        self._changed = asyncio.Event()

    async def left(self, url: str) -> None:
        """Returns once another writer is active than the one at this place."""
        while self.url == url:
            await self._changed.wait()
