"""Keeps a store up to date with the topics, and knows how far it is.

It reads with read_committed: what it shows was decided and committed. Every second it asks where
the topics end; having come there, what it shows is verified as of the moment of asking. Damage (see
`store`) ends it: `fault` says what is wrong, and nothing is verified from then on.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from scriba.client import ClientError, Consumer, OffsetError, TopicPartition
from scriba.pipelines.inventory.store import BooksDamaged, Entry, Store

log = logging.getLogger(__name__)

POLL_MS: Final = 100
MOST: Final = 5000
VERIFY_SECONDS: Final = 1.0
ASK_SECONDS: Final = 5.0


class Faulty(Exception):
    """The follower ended; nothing it has may be believed."""


class Follower:
    def __init__(
        self,
        client: Mapping[str, Any],
        store: Store,
        partitions: list[TopicPartition],
        complete: str,
    ) -> None:
        """`complete` is the topic of which no record may be missing."""
        self.positions: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        """Up to where the store has read."""
        self.fault: str | None = None
        self.caught_up = asyncio.Event()
        """Set once it has been at the end."""
        self.ends: dict[TopicPartition, int] = {}
        self.records = 0
        self._verified: float | None = None
        self._client = client
        self._store = store
        self._complete = complete
        self._consumer: Consumer | None = None
        self._moved = asyncio.Condition()
        self._thread = ThreadPoolExecutor(1, "inventory-store")

    async def run(self) -> None:
        """Until it is cancelled, or the books turn out to be damaged."""
        settings = {"isolation.level": "read_committed", "auto.offset.reset": "none"}
        async with Consumer({**self._client, **settings}) as consumer:
            try:
                await self._begin(consumer)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow(consumer))
                    tasks.create_task(self._verify())
            except* (BooksDamaged, OffsetError) as damage:
                self.fault = str(damage.exceptions[0])
                log.error("the books cannot be trusted: %s", self.fault)
                await self._wake()
            finally:
                self._consumer = None
                self._thread.shutdown()

    async def _begin(self, consumer: Consumer) -> None:
        """Where the store ends, or at the beginning, which must still be there."""
        stored = self._store.positions()
        consumer.assign(self.positions)
        begins = await consumer.beginning_offsets(self.positions)
        for where in self.positions:
            begin = begins[where]
            if where not in stored and begin > 0 and where.topic == self._complete:
                raise BooksDamaged(f"{where} begins at offset {begin}: its records were deleted")
            self.positions[where] = stored.get(where, begin)
            consumer.seek(where, self.positions[where])
        self._consumer = consumer

    async def _follow(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            records = await consumer.poll(POLL_MS, MOST)
            positions = {where: await consumer.position(where) for where in self.positions}
            if positions == self.positions:
                continue
            entries = [Entry(r.topic, r.partition, r.offset, r.key, r.value) for r in records]
            await loop.run_in_executor(self._thread, self._store.apply, entries, positions)
            self.positions = positions
            self.records += len(entries)
            await self._wake()

    async def _verify(self) -> None:
        while True:
            asked = time.monotonic()
            try:
                self.ends = await self._ask_ends(ASK_SECONDS)
            except ClientError as failure:
                log.warning("where the topics end is not known: %s", failure)
            else:
                await self.reached(self.ends)
                self._verified = asked
                self.caught_up.set()
            await asyncio.sleep(VERIFY_SECONDS)

    async def _ask_ends(self, seconds: float) -> dict[TopicPartition, int]:
        if self._consumer is None:
            raise Faulty(self.fault or "nothing was read yet")
        return await self._consumer.end_offsets(self.positions, round(seconds * 1000))

    # -- how far it is ---------------------------------------------------------------------------

    async def reached(self, ends: Mapping[TopicPartition, int]) -> None:
        """Returns once the store has all records before these offsets."""
        async with self._moved:
            while any(self.positions[where] < end for where, end in ends.items()):
                if self.fault is not None:
                    raise Faulty(self.fault)
                await self._moved.wait()

    async def catch_up(self, seconds: float) -> None:
        """Returns once the store has all that was committed when this was called."""
        async with asyncio.timeout(seconds):
            await self.reached(await self._ask_ends(seconds))

    def verified_ago(self) -> float | None:
        """Seconds since what the store has was known to be all there is; None: never."""
        if self._verified is None or self.fault is not None:
            return None
        return time.monotonic() - self._verified

    def lag(self) -> int:
        """Records between the store and the ends, as they were last told."""
        return sum(max(0, end - self.positions[where]) for where, end in self.ends.items())

    async def _wake(self) -> None:
        async with self._moved:
            self._moved.notify_all()
