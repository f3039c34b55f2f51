"""Records that were sent before anybody knew the partitions of their topic.

A batch that belongs to no partition stands for them, so that a flush waits for it and memory is
counted; when the topic is found, each record is put into the batch of its partition, in order.
Whoever sent them was told that they are on their way, so one that turns out to be wrong is `lost`
like one that a broker refuses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sized
from typing import Any, Protocol

from scriba.client.cluster import Cluster, Topic
from scriba.client.errors import BufferFull, RecordError
from scriba.client.model import HeadersLike, TopicPartition
from scriba.client.producing.accumulator import Accumulator, log_failed
from scriba.client.producing.batches import Batch, Delivery, RecordOutcome
from scriba.native.intake import RECORD_OVERHEAD
from scriba.peers.errors import ClientError

Parked = tuple[Any, Any, int | None, int, HeadersLike]
"""Value, key, partition, timestamp and headers of a record."""


class Put(Protocol):
    """Puts a parked record into the batch of its partition, into memory reserved for it if any."""

    def __call__(self, topic: Topic, parked: Parked, reserved: int = 0) -> RecordOutcome: ...


class _Waiting:
    """The records of one topic."""

    __slots__ = ("batch", "records", "search")

    def __init__(self, batch: Batch, search: "asyncio.Task[None]") -> None:
        self.batch = batch
        self.records: list[Parked] = []
        self.search = search


class UnresolvedRecords:
    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        max_block_ms: int,
        put: Put,
        room: Callable[[int], Awaitable[None]],
        lost: Callable[[ClientError], ClientError],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._max_block_ms = max_block_ms
        self._put = put
        self._room = room
        self._lost = lost
        self._clock = cluster.ports.clock
        self._topics: dict[str, _Waiting] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def park(self, topic: str, parked: Parked) -> Delivery:
        """Keeps a record until the topic's partitions are known."""
        size = _size(parked)
        if self._accumulator.lacks(size):
            raise BufferFull(f"{self._accumulator.used} bytes are in use", size)
        waiting = self._topics.get(topic)
        if waiting is None:
            self._accumulator.topic(topic).hide()
            batch = self._stand_in(topic)
            self._accumulator.pending[batch] = None
            search = self._cluster.tasks.spawn(self._search(topic), name="scriba-topic")
            waiting = self._topics[topic] = _Waiting(batch, search)
        self._accumulator.intake.spend(size)
        waiting.records.append(parked)
        return Delivery(waiting.batch, waiting.batch.park(size), parked[3])

    def _stand_in(self, topic: str) -> Batch:
        return Batch(TopicPartition(topic, -1), (0,), self._clock.mono_ms(), parking=True)

    async def placed(self, topic: str) -> None:
        """Waits until no record of this topic is parked any more."""
        if topic in self._topics:
            await asyncio.wait([self._topics[topic].search])

    def fail(self, error: ClientError) -> None:
        """Fails all that are parked, and those that their search has found places for: the end of
        their transaction, which its call tells."""
        topics, self._topics = self._topics, {}
        for waiting in topics.values():
            waiting.search.cancel()
            if not waiting.batch.finished:
                self._accumulator.fail(waiting.batch, error, told=True)

    async def _search(self, topic: str) -> None:
        """Finds the partitions of a topic, and then places for all records that wait for it."""
        places: list[tuple[Batch, int]] = []
        failure: ClientError | None = None
        try:
            found = await self._cluster.topic(topic, self._max_block_ms)
            waiting = self._topics[topic]
            while len(places) < len(waiting.records):
                parked = waiting.records[len(places)]
                size = _size(parked)
                waiting.batch.unpark(size)
                self._accumulator.release(size)
                places.append(await self._place(found, parked))
        except ClientError as stopped:
            failure = stopped
        waiting = self._topics.pop(topic)
        if waiting.batch.finished:
            return
        if failure is not None and not places:
            self._accumulator.fail(waiting.batch, self._lost(failure))
            return
        if failure is not None:
            # Those that have their places are on their way, and are told what becomes of them.
            rest = self._stand_in(topic)
            places += [(rest, rest.park(0)) for _ in waiting.records[len(places) :]]
            lost = self._lost(failure)
            log_failed(rest, lost)
            rest.fail(lost)
        del self._accumulator.pending[waiting.batch]
        self._accumulator.release(waiting.batch.charge)
        waiting.batch.move(places)

    async def _place(self, topic: Topic, parked: Parked) -> tuple[Batch, int]:
        """The batch of a parked record, and its index there."""
        try:
            try:
                delivery = self._put(topic, parked)
            except BufferFull as full:
                await self._room(full.size)
                delivery = self._put(topic, parked, full.size)
        except RecordError as refused:
            batch = self._stand_in(topic.name)
            batch.park(0)
            lost = self._lost(refused)
            log_failed(batch, lost)
            batch.fail(lost)
            return batch, 0
        return delivery.batch, delivery.index


def _size(parked: Parked) -> int:
    """The bytes of a record before it is serialized, as far as that can be told."""
    value, key = parked[:2]
    return RECORD_OVERHEAD + _about(key) + _about(value)


def _about(data: object) -> int:
    return len(data) if isinstance(data, Sized) else 0
