"""Reads the shop's figures from their beginning, follows them, and keeps the picture.

Two tasks share a consumer and an admin. One takes records as they come. The other asks the cluster
every two seconds: whether it answers, whether topics have come or were made anew, and how far the
queries' groups are behind. A broker that goes away is waited for; the consumer keeps its place.
Topics that were made anew hold another history, so that reading begins again with an empty picture.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from scriba.client import (
    Admin,
    ClientError,
    Consumer,
    ConsumerRecord,
    Isolation,
    OffsetSpec,
    TopicPartition,
)
from scriba.client.admin.model import TopicListing
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.dashboard.picture import READ, Picture, Reading
from scriba.pipelines.shop.topics import Names

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 2.0
ANSWER_MS: Final = 2_500
PAUSE_SECONDS: Final = 1.0
POLL_MS: Final = 1_000
AT_ONCE: Final = 5_000
LETTERS_MS: Final = 60 * 60 * 1000
"""How far back dead letters are read: only the newest are shown, and there may be many."""


class Bell:
    """Wakes all who wait, each time something is new; who was busy meanwhile does not wait."""

    def __init__(self) -> None:
        self.rung = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        self.rung += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, heard: int, seconds: float) -> None:
        if heard == self.rung:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)


class _MadeAnew(Exception):
    """Topics are not those that were read."""


class Follower:
    def __init__(self, config: Mapping[str, Any], names: Names) -> None:
        self._config = dict(config)
        self._names = names
        self.picture = Picture()
        self.reading = Reading()
        self.bell = Bell()

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except* _MadeAnew:
                log.warning("topics were made anew; reading begins again")
            except* ClientError as failed:
                self._tell(str(failed.exceptions[0]))
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        common = {"default.api.timeout.ms": ANSWER_MS, **self._config}
        reader = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
        }
        async with Admin(common) as admin, Consumer(common | reader) as consumer:
            found = await self._find(admin)
            self.picture = Picture()
            self.reading = Reading()
            await self._assign(consumer, found, {})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(consumer))
                tasks.create_task(self._watch(admin, consumer, found))

    # -- records ---------------------------------------------------------------------------------

    async def _read(self, consumer: Consumer) -> None:
        while True:
            if not consumer.assignment():
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            records = await consumer.poll(timeout_ms=POLL_MS, max_records=AT_ONCE)
            for record in records:
                self._take(record)
            if not self.reading.caught_up:
                lags = [consumer.lag(where) for where in consumer.assignment()]
                self.reading.caught_up = not any(lag is None or lag > 0 for lag in lags)
                self.bell.ring()
            if records:
                self.bell.ring()

    def _take(self, record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        topic = self._names.plain(record.topic)
        try:
            key = (record.key or b"").decode()
            if record.value is None:
                self.picture.drop(topic, key)
            else:
                self.picture.take(topic, key, json.loads(record.value), record.timestamp)
        except ValueError as wrong:
            log.warning("left out: %s (offset %d)", wrong, record.offset)

    # -- the cluster -----------------------------------------------------------------------------

    async def _watch(
        self, admin: Admin, consumer: Consumer, known: dict[str, TopicListing]
    ) -> None:
        while True:
            try:
                found = await self._find(admin)
                if any(known[name].id != found[name].id for name in known if name in found):
                    raise _MadeAnew
                await self._assign(consumer, found, known)
                known |= found
                self.reading.lags = await self._lags(admin)
                self._tell("")
            except ClientError as failed:
                self._tell(str(failed))
            await asyncio.sleep(CHECK_SECONDS)

    async def _find(self, admin: Admin) -> dict[str, TopicListing]:
        """The topics to read that exist, by their plain names."""
        listed = {topic.name: topic for topic in await admin.list_topics()}
        found = {plain: listed[name] for plain in READ if (name := self._names(plain)) in listed}
        self.reading.missing = tuple(sorted(set(READ) - set(found)))
        return found

    async def _assign(
        self, consumer: Consumer, found: dict[str, TopicListing], known: dict[str, TopicListing]
    ) -> None:
        """Also the partitions that have come since; those being read go on where they are."""
        places = {
            plain: [TopicPartition(topic.name, n) for n in range(topic.partitions)]
            for plain, topic in found.items()
        }
        wanted = [where for each in places.values() for where in each]
        if sorted(wanted) == consumer.assignment():
            return
        consumer.assign(wanted)
        if topics.DEAD_LETTERS in found and topics.DEAD_LETTERS not in known:
            begin = round(time.time() * 1000) - LETTERS_MS
            consumer.seek_to_time(begin, *places[topics.DEAD_LETTERS])

    async def _lags(self, admin: Admin) -> dict[str, int]:
        """Records of the inputs that each query has before it, where its group says so."""
        lags: dict[str, int] = {}
        for query in self.picture.queries():
            offsets = await admin.list_group_offsets(f"{self._names('shop')}-{query}")
            if not offsets:
                continue
            latest: dict[tuple[str, int], int] = dict.fromkeys(offsets, OffsetSpec.LATEST)
            ends = await admin.list_offsets(latest, isolation=Isolation.READ_COMMITTED)
            lags[query] = sum(
                max(0, end.offset - offsets[where].offset)
                for where, end in ends.items()
                if end is not None
            )
        return lags

    def _tell(self, trouble: str) -> None:
        if trouble and not self.reading.trouble:
            log.warning("cannot read: %s", trouble)
        self.reading.trouble = trouble
        self.reading.connected = not trouble
        self.bell.ring()
