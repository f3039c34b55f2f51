"""Records waiting to be sent: a queue of batches per partition, within `buffer.memory`.

The accumulator decides nothing about time or brokers. It fills batches, tells which queue has
something to send (`ripe`), takes back what has to be sent again, and counts memory: a batch holds
its bytes from the first record until its fate is known.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from scriba.client.batches import Batch
from scriba.client.errors import BufferFull, ClientError
from scriba.client.model import TopicPartition
from scriba.client.numbering import Numbering
from scriba.client.partitioner import Sticky
from scriba.client.settings import ProducerSettings
from scriba.records.batch import Headers, Record
from scriba.records.compression import Codec
from scriba.runtime.ports import Clock, Rng

RECORD_OVERHEAD: Final = 10
"""Length, attributes, deltas and lengths of key, value and headers of an ordinary record."""

_RATIO_UP: Final = 0.05
_RATIO_DOWN: Final = 0.005


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About how many bytes the record takes in a batch that is not compressed."""
    size = RECORD_OVERHEAD
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 4 + len(name) + (0 if content is None else len(content))
    return size


class Queue:
    """The batches of one partition, oldest first."""

    __slots__ = ("blocked_until", "in_flight", "made", "numbering", "waiting", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.waiting: deque[Batch] = deque()
        """Those that were sent before and have to be sent again come first, in their order."""
        self.in_flight: list[Batch] = []
        self.blocked_until = 0
        """No sending before this time, after a failure."""
        self.numbering: Numbering | None = None
        self.made = 0

    def put_back(self, batch: Batch) -> None:
        """Puts a batch where it was, before all that were made after it."""
        after: list[Batch] = []
        while self.waiting and self.waiting[0].ordinal < batch.ordinal:
            after.append(self.waiting.popleft())
        self.waiting.appendleft(batch)
        self.waiting.extendleft(reversed(after))

    def batches(self) -> Iterator[Batch]:
        yield from self.in_flight
        yield from self.waiting


class TopicQueues:
    """The queues of one topic and what its partitioner remembers."""

    __slots__ = ("queues", "ratio", "sticky")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self.queues: dict[int, Queue] = {}
        self.sticky = Sticky(batch_size, rng)
        self.ratio = 1.0
        """What compression makes of a byte here: a guess that rises fast and falls slowly."""

    def learn_ratio(self, seen: float) -> None:
        if seen > self.ratio:
            self.ratio = max(self.ratio + _RATIO_UP, seen)
        else:
            self.ratio = max(self.ratio - _RATIO_DOWN, seen)


class Accumulator:
    def __init__(self, settings: ProducerSettings, codec: Codec, clock: Clock, rng: Rng) -> None:
        self.topics: dict[str, TopicQueues] = {}
        self.pending: dict[Batch, None] = {}
        """Every batch whose fate is not known, oldest first."""
        self.hurry = 0
        """How many want everything sent now: flushes, the end, senders that wait for memory."""
        self._batch_size = max(1, settings.batch_size)
        self._linger_ms = settings.linger_ms
        self._memory = settings.buffer_memory
        self._codec = codec
        self._clock = clock
        self._rng = rng
        self._used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def topic(self, name: str) -> TopicQueues:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicQueues(self._batch_size, self._rng)
        return found

    def queue(self, topic: TopicQueues, where: TopicPartition) -> Queue:
        found = topic.queues.get(where.partition)
        if found is None:
            found = topic.queues[where.partition] = Queue(where)
        return found

    def queues(self) -> Iterator[Queue]:
        for topic in self.topics.values():
            yield from topic.queues.values()

    # -- memory ----------------------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Takes memory for a record; BufferFull when there is not enough."""
        if self._used + size > self._memory or self._waiters:
            raise BufferFull(f"{self._used} of {self._memory} bytes are in use")
        self._used += size

    async def room(self, size: int) -> None:
        """Takes memory for a record, after all who have waited longer."""
        if size > self._memory:
            raise BufferFull(
                f"the record has {size} bytes, the whole buffer {self._memory}",
                fix="raise buffer.memory",
            )
        if self._used + size <= self._memory and not self._waiters:
            self._used += size
            return
        waiter = (size, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self.hurry += 1
        try:
            await waiter[1]
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter[1].cancelled():
                self.release(size)  # it was given room in the moment it gave up
            raise
        finally:
            self.hurry -= 1

    def release(self, size: int) -> None:
        self._used -= size
        while self._waiters:
            wanted, waiter = self._waiters[0]
            if waiter.done():
                self._waiters.popleft()
            elif self._used + wanted <= self._memory:
                self._waiters.popleft()
                self._used += wanted
                waiter.set_result(None)
            else:
                return

    @property
    def starved(self) -> bool:
        """Whether senders wait for memory, so that lingering only makes them wait longer."""
        return bool(self._waiters)

    # -- filling ---------------------------------------------------------------------------------

    def append(self, topic: TopicQueues, queue: Queue, record: Record, size: int) -> Batch:
        """Adds a record, whose memory is reserved, to the last batch of a queue or a new one.

        A batch that cannot take more is closed. Of the batch returned, a count of 1 tells that it
        is new, `closed` that it is full.
        """
        waiting = queue.waiting
        batch = waiting[-1] if waiting else None
        limit = self._batch_size if self._codec == Codec.NONE else self._limit(topic)
        if batch is None or batch.closed or batch.size + size > limit:
            if batch is not None:
                batch.closed = True
            batch = self.new_batch(queue)
            waiting.append(batch)
        batch.add(record, size)
        batch.charge += size
        if batch.size >= limit:
            batch.closed = True
        return batch

    def new_batch(self, queue: Queue) -> Batch:
        queue.made += 1
        batch = Batch(queue.where, (queue.made,), self._clock.mono_ms())
        self.pending[batch] = None
        return batch

    def _limit(self, topic: TopicQueues) -> float:
        return self._batch_size / (topic.ratio * 1.05)

    # -- sending ---------------------------------------------------------------------------------

    def ripe(self, queue: Queue, now: int) -> Batch | None:
        """The batch that should be sent next; None while the queue may wait."""
        if not queue.waiting or queue.blocked_until > now:
            return None
        batch = queue.waiting[0]
        if batch.closed or self.hurry or now - batch.created >= self._linger_ms:
            return batch
        return None

    def take(self, queue: Queue) -> Batch:
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    def succeed(self, batch: Batch, base_offset: int, append_time: int) -> None:
        self._settled(batch)
        batch.succeed(base_offset, append_time)

    def fail(
        self,
        batch: Batch,
        error: ClientError,
        record_errors: dict[int, str | None] | None = None,
    ) -> None:
        self._settled(batch)
        batch.fail(error, record_errors)

    def split(self, queue: Queue, batch: Batch) -> None:
        """Replaces a batch that was too large by smaller ones, which are sent in its place.

        Each has at most half of its records, so that splitting again comes to an end.
        """
        topic = self.topics[queue.where.topic]
        topic.ratio = 1.0
        records = batch.take_records()
        parts: list[Batch] = []
        places: list[tuple[Batch, int]] = []
        for record in records:
            size = record_size(record.key, record.value, record.headers)
            part = parts[-1] if parts else None
            full = part is not None and part.size + size > self._batch_size
            if part is None or full or 2 * part.count >= len(records):
                part = Batch(batch.where, (*batch.ordinal, len(parts)), batch.created)
                part.closed = True
                parts.append(part)
            places.append((part, part.add(record, size)))
            part.charge += size
        del self.pending[batch]
        self.pending.update(dict.fromkeys(parts))
        batch.move(places)
        for part in parts:
            queue.put_back(part)

    def _settled(self, batch: Batch) -> None:
        del self.pending[batch]
        self.release(batch.charge)
