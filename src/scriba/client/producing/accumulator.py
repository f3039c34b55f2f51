"""Records waiting to be sent: a queue of batches per partition, within `buffer.memory`.

The accumulator decides nothing about time or brokers. It fills batches, tells which queue has
something to send (`ripe`), takes back what has to be sent again, and counts memory: a batch holds
its bytes from the first record until its fate is known.

Nearly all records go into an open batch by `Intake.put`. Any thread may do that, and begin a batch
(`begin`) when there is none: `lock` keeps these from each other, and from the event loop when it
closes one. A new batch is in `arrived` until the loop takes it up (`absorb`); everything else
belongs to the loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Container, Iterator
from typing import Any, Final

from scriba.client.errors import BufferFull
from scriba.client.model import TopicPartition
from scriba.client.producing.batches import Batch, Delivery
from scriba.client.producing.partitioner import Sticky
from scriba.client.producing.sequences import SequenceNumbers
from scriba.client.settings import ProducerSettings
from scriba.native import implementation
from scriba.native.intake import Lock
from scriba.peers.errors import ClientError
from scriba.records.record import Record
from scriba.runtime.clock import SystemClock
from scriba.runtime.loop.threads import new_lock
from scriba.runtime.ports import Clock, Rng

log = logging.getLogger(__name__)

_RATIO_UP: Final = 0.05
_RATIO_DOWN: Final = 0.005
_SAFETY: Final = 1.05


class Queue:
    """The batches of one partition, oldest first."""

    __slots__ = (
        "arrived",
        "blocked_until",
        "in_flight",
        "made",
        "open",
        "sequences",
        "timer",
        "waiting",
        "where",
    )

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.arrived: deque[Batch] = deque()
        """Those that the event loop has not taken up."""
        self.waiting: deque[Batch] = deque()
        """Those that were sent before and have to be sent again come first, in their order."""
        self.open: Batch | None = None
        """The last of all, while it takes records."""
        self.in_flight: list[Batch] = []
        self.blocked_until = 0
        """No sending before this time, after a failure."""
        self.sequences: SequenceNumbers | None = None
        self.made = 0
        self.timer: asyncio.TimerHandle | None = None
        """Of the time that the last batch may wait for more."""

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

    __slots__ = ("_batch_size", "_ratio", "channel", "queues", "sticky")

    def __init__(self, batch_size: int, rng: Rng, lock: Lock) -> None:
        self.queues: dict[int, Queue] = {}
        self.sticky = Sticky(batch_size, rng)
        self.channel = implementation.chosen.Channel(batch_size, lock)
        """Its open batches; `limit` are the bytes before compression at which one is full."""
        self._batch_size = batch_size
        self._ratio = 1.0

    def learn_ratio(self, seen: float) -> None:
        """Guesses what compression makes of a byte here: rises fast and falls slowly."""
        if seen > self._ratio:
            self._ratio = max(self._ratio + _RATIO_UP, seen)
        else:
            self._ratio = max(self._ratio - _RATIO_DOWN, seen)
        self.channel.limit = self._batch_size / (self._ratio * _SAFETY)

    def forget_ratio(self) -> None:
        self._ratio = 1.0
        self.channel.limit = self._batch_size

    def hide(self) -> None:
        """Nothing is put before somebody knows the topic again."""
        self.channel.known = None

    def stuck(self) -> None:
        """Counts what went to the sticky partition by the channel."""
        self.sticky.bytes = 2 * self._batch_size - self.channel.room

    def stick(self, size: int, batch_full: bool) -> None:
        """Counts a record for the sticky partition, which may be left then."""
        sticky, channel = self.sticky, self.channel
        sticky.bytes += size
        sticky.leave(batch_full)
        channel.sticky = -1 if sticky.partition is None else sticky.partition
        channel.room = 2 * self._batch_size - sticky.bytes


def log_failed(batch: Batch, error: ClientError) -> None:
    where = str(batch.where if batch.where.partition >= 0 else batch.where.topic)
    where = where.encode(errors="backslashreplace").decode()  # it may be no name at all
    log.error("%s: %d records were not delivered: %s", where, batch.count, error)


class Accumulator:
    """`known` is what is known of topics, by name."""

    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock,
        rng: Rng,
        known: dict[str, Any],
    ) -> None:
        self.lock = new_lock()
        self.home: object = None
        """Whoever can wait for batches in another thread."""
        self.topics: dict[str, TopicQueues] = {}
        self.pending: dict[Batch, None] = {}
        """Every batch whose fate is not known, oldest first."""
        self.hurry = 0
        """How many want everything sent now: flushes, the end, senders that wait for memory."""
        self.memory = settings.buffer_memory
        self.intake = implementation.chosen.Intake(
            known,
            Delivery,
            clock.wall_ms,
            isinstance(clock, SystemClock),
            self.lock,
            self.memory,
            settings.max_request_size,
            not settings.partitioner_ignore_keys,
        )
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Senders that wait for memory, and how much each."""
        self._batch_size = max(1, settings.batch_size)
        self._linger_ms = settings.linger_ms
        self._clock = clock
        self._rng = rng

    def topic(self, name: str) -> TopicQueues:
        found = self.topics.get(name)
        if found is None:
            with self.lock:
                found = self.topics.get(name) or TopicQueues(self._batch_size, self._rng, self.lock)
                self.topics[name] = found
                self.intake.channels[name] = found.channel
        return found

    def know(self, name: str, topic: object, partitions: Container[int], keyed: int) -> None:
        """The picture of a topic changed. By how many the hash of a key is divided is `keyed`."""
        found = self.topic(name)
        for partition, queue in list(found.queues.items()):
            if partition not in partitions:
                self.close_batch(queue)
        found.channel.partitions = keyed
        found.channel.known = topic

    def queues(self) -> Iterator[Queue]:
        # Another thread may add some meanwhile.
        for topic in list(self.topics.values()):
            yield from list(topic.queues.values())

    @property
    def unsettled(self) -> int:
        """Records whose fate is not known; any thread may ask."""
        arrived = (batch for queue in self.queues() for batch in list(queue.arrived))
        return sum(batch.count for batch in (*list(self.pending), *arrived))

    def hide_all(self) -> None:
        """Nothing is put any more but by those who know the topic."""
        with self.lock:
            for topic in list(self.topics.values()):
                topic.hide()

    # -- memory ----------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of the buffer that are in use."""
        return self.intake.used

    def lacks(self, size: int) -> bool:
        """Whether a record of this size has to wait for memory."""
        return self.intake.used + size > self.memory or bool(self.waiting)

    def _gate(self) -> None:
        """Those who wait for memory come before those who would just take it."""
        self.intake.shut = bool(self.waiting)

    async def room(self, size: int) -> None:
        """Takes memory for a record, after all who have waited longer."""
        if size > self.memory:
            raise BufferFull(
                f"the record has {size} bytes, the whole buffer {self.memory}",
                size,
                fix="raise buffer.memory",
            )
        if not self.lacks(size):
            self.intake.spend(size)
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, given)
        self.waiting.append(waiter)
        self._gate()
        try:
            await given
        except BaseException:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if given.done() and not given.cancelled() and given.exception() is None:
                self.release(size)  # it was given room in the moment it gave up
            else:
                self.release(0)  # those behind it may want less
            raise

    def release(self, size: int) -> None:
        """Gives memory back, and on to those who wait for it."""
        self.intake.spend(-size)
        if not self.waiting and not self.intake.shut:
            return
        while self.waiting:
            wanted, waiter = self.waiting[0]
            if waiter.done():
                self.waiting.popleft()
            elif self.intake.used + wanted <= self.memory:
                self.waiting.popleft()
                self.intake.spend(wanted)
                waiter.set_result(None)
            else:
                break
        self._gate()

    def refuse_waiting(self, error: ClientError) -> None:
        """There will be no memory for those who wait for it."""
        for _, given in self.waiting:
            if not given.done():
                given.set_exception(error)

    # -- filling ---------------------------------------------------------------------------------

    def begin(
        self, topic: TopicQueues, where: TopicPartition, record: Record, reserved: int
    ) -> tuple[Queue, Batch]:
        """Opens a batch at the end of a queue with a first record; the one before is closed.

        Whoever calls holds the lock.
        """
        queue = topic.queues.get(where.partition)
        made = 1 if queue is None else queue.made + 1
        limit = topic.channel.limit
        created = self._clock.mono_ms()
        batch = Batch(where, (made,), created, self.home, expected=int(limit))
        batch.add(record)
        if queue is None:
            queue = topic.queues[where.partition] = Queue(where)
        queue.made = made
        self.intake.spend(batch.charge - reserved)
        self.close_batch(queue)
        if batch.size >= limit:
            batch.closed = True
        else:
            assert batch.builder is not None
            topic.channel.open(where.partition, batch, batch.builder)
            queue.open = batch
        queue.arrived.append(batch)
        return queue, batch

    def close_batch(self, queue: Queue, batch: Batch | None = None) -> None:
        """The open batch, or this one if it is open, takes no more."""
        with self.lock:
            if queue.open is not None and (batch is None or queue.open is batch):
                topic, partition = queue.where
                self.topics[topic].channel.close(partition)
                queue.open.closed = True
                queue.open = None

    def absorb(self, queue: Queue) -> None:
        """Takes up the batches that arrived."""
        while queue.arrived:
            batch = queue.arrived.popleft()
            self.pending[batch] = None
            queue.waiting.append(batch)

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
        if not batch.closed:
            self.close_batch(queue, batch)
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
        *,
        told: bool = False,
    ) -> None:
        """Nobody may await what becomes of its records: so it is logged, unless whoever ended
        them is `told`, by the call that did."""
        if not told:
            log_failed(batch, error)
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
            self.intake.spend(part.charge)
            queue.put_back(part)
        batch.move(places)
        return parts

    def _settled(self, batch: Batch) -> None:
        if not batch.closed:
            topic, partition = batch.where
            self.close_batch(self.topics[topic].queues[partition], batch)
        del self.pending[batch]
        self.release(batch.charge)
