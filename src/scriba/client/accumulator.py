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
from scriba.runtime.ports import Clock, Rng

RECORD_OVERHEAD: Final = 10
"""Length, attributes, deltas and lengths of key, value and headers of an ordinary record."""

_RATIO_UP: Final = 0.05
_RATIO_DOWN: Final = 0.005
_SAFETY: Final = 1.05


class Queue:
    """The batches of one partition, oldest first."""

    __slots__ = ("blocked_until", "in_flight", "made", "numbering", "open", "waiting", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.waiting: deque[Batch] = deque()
        """Those that were sent before and have to be sent again come first, in their order."""
        self.open: Batch | None = None
        """The last of them, while it takes records."""
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

    __slots__ = ("_batch_size", "_ratio", "limit", "queues", "sticky")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self.queues: dict[int, Queue] = {}
        self.sticky = Sticky(batch_size, rng)
        self.limit: float = batch_size
        """Bytes before compression at which a batch is full."""
        self._batch_size = batch_size
        self._ratio = 1.0

    def learn_ratio(self, seen: float) -> None:
        """Guesses what compression makes of a byte here: rises fast and falls slowly."""
        if seen > self._ratio:
            self._ratio = max(self._ratio + _RATIO_UP, seen)
        else:
            self._ratio = max(self._ratio - _RATIO_DOWN, seen)
        self.limit = self._batch_size / (self._ratio * _SAFETY)

    def forget_ratio(self) -> None:
        self._ratio = 1.0
        self.limit = self._batch_size


class Accumulator:
    def __init__(self, settings: ProducerSettings, clock: Clock, rng: Rng) -> None:
        self.topics: dict[str, TopicQueues] = {}
        self.pending: dict[Batch, None] = {}
        """Every batch whose fate is not known, oldest first."""
        self.hurry = 0
        """How many want everything sent now: flushes, the end, senders that wait for memory."""
        self.used = 0
        """Bytes of the buffer that are in use."""
        self.memory = settings.buffer_memory
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Senders that wait for memory, and how much each."""
        self._batch_size = max(1, settings.batch_size)
        self._linger_ms = settings.linger_ms
        self._clock = clock
        self._rng = rng

    def topic(self, name: str) -> TopicQueues:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicQueues(self._batch_size, self._rng)
        return found

    def queue(self, topic: TopicQueues, name: str, partition: int) -> Queue:
        """A new queue for a partition that has none."""
        queue = topic.queues[partition] = Queue(TopicPartition(name, partition))
        return queue

    def queues(self) -> Iterator[Queue]:
        for topic in self.topics.values():
            yield from topic.queues.values()

    # -- memory ----------------------------------------------------------------------------------

    def lacks(self, size: int) -> bool:
        """Whether a record of this size has to wait for memory."""
        return self.used + size > self.memory or bool(self.waiting)

    async def room(self, size: int) -> None:
        """Takes memory for a record, after all who have waited longer."""
        if size > self.memory:
            raise BufferFull(
                f"the record has {size} bytes, the whole buffer {self.memory}",
                size,
                fix="raise buffer.memory",
            )
        if not self.lacks(size):
            self.used += size
            return
        waiter = (size, asyncio.get_running_loop().create_future())
        self.waiting.append(waiter)
        self.hurry += 1
        try:
            await waiter[1]
        except BaseException:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            elif not waiter[1].cancelled():
                self.release(size)  # it was given room in the moment it gave up
            raise
        finally:
            self.hurry -= 1

    def release(self, size: int) -> None:
        self.used -= size
        while self.waiting:
            wanted, waiter = self.waiting[0]
            if waiter.done():
                self.waiting.popleft()
            elif self.used + wanted <= self.memory:
                self.waiting.popleft()
                self.used += wanted
                waiter.set_result(None)
            else:
                return

    # -- filling ---------------------------------------------------------------------------------

    def new_batch(self, queue: Queue) -> Batch:
        """Opens a batch at the end of a queue; the one before takes no more."""
        if queue.open is not None:
            queue.open.closed = True
        queue.made += 1
        batch = Batch(queue.where, (queue.made,), self._clock.mono_ms())
        self.pending[batch] = None
        queue.waiting.append(batch)
        queue.open = batch
        return batch

    def close_batch(self, queue: Queue) -> None:
        """The last batch is full."""
        if queue.open is not None:
            queue.open.closed = True
            queue.open = None

    def drop_empty(self, queue: Queue, batch: Batch) -> None:
        """Takes back a new batch whose first record turned out to be none."""
        if not batch.count and queue.open is batch:
            queue.open = None
            queue.waiting.remove(batch)
            del self.pending[batch]

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
        if batch is queue.open:
            self.close_batch(queue)
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

    def split(self, queue: Queue, batch: Batch) -> list[Batch]:
        """Replaces a batch that was too large by smaller ones, which are sent in its place.

        Each has at most half of its records, so that splitting again comes to an end.
        """
        self.topics[queue.where.topic].forget_ratio()
        records = batch.records()
        parts: list[Batch] = []
        places: list[tuple[Batch, int]] = []
        for record in records:
            part = parts[-1] if parts else None
            if part is None or part.size > self._batch_size or 2 * part.count >= len(records):
                part = Batch(batch.where, (*batch.ordinal, len(parts)), batch.created)
                part.closed = True
                parts.append(part)
            places.append((part, part.add(record)))
        self._settled(batch)
        for part in parts:
            self.pending[part] = None
            self.used += part.charge
            queue.put_back(part)
        batch.move(places)
        return parts

    def _settled(self, batch: Batch) -> None:
        del self.pending[batch]
        self.release(batch.charge)
