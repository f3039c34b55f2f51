"""The producer for code that has no event loop: what several threads share of it.

`send_nowait` puts records into their batches itself, and waits only when the buffer is full. What
it cannot put, because the topic has to be found first, it hands over to the event loop, in order;
until the loop has put all of that, every other record of the topic goes the same way. Handing over,
and finding that nothing is left, exclude each other: else a record could pass an earlier one. Each
topic has a queue of its own there: one that nobody ever creates holds up no other.
"""

import asyncio
import atexit
import contextlib
from collections import deque
from collections.abc import Mapping, Sized
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, Unpack
from weakref import WeakSet

from scriba.client.errors import BufferFull, RecordError
from scriba.client.keywords import ProducerKeywords
from scriba.client.model import ConsumerGroupMetadata, HeadersLike, RecordMetadata, TopicPartition
from scriba.client.producing.accumulator import log_failed
from scriba.client.producing.batches import Batch, RecordOutcome
from scriba.client.producing.producer import Producer, tell_unsent
from scriba.client.settings import ProducerSettings
from scriba.client.sync.host import Sync, waits
from scriba.client.transactions.transactions import OffsetsLike, Transaction
from scriba.peers.errors import ClientError, Closed, TimedOut
from scriba.runtime.loop.threads import new_lock

_Record = tuple[str, Any, Any, int | None, int | None, HeadersLike]


class _QueuedRecord(NamedTuple):
    """A record on its way to the loop."""

    told: "SyncDelivery"
    record: _Record
    since: int
    size: int


class _TopicQueue:
    """What was handed over for one topic, and the task that puts it."""

    __slots__ = ("handed", "task")

    def __init__(self) -> None:
        self.handed: deque[_QueuedRecord | asyncio.Future[None]] = deque()
        """Records, and those who wait until all before them are put."""
        self.task: asyncio.Task[None] | None = None


def _size(record: _Record) -> int:
    return sum(len(data) for data in record[1:3] if isinstance(data, Sized))


_HANDED_OVER: Final = 10_000
"""Records that a producer's caller may be ahead of its event loop."""

_TOLD: Final = 1_000
"""Topics of which is remembered what was logged last."""


class SyncDelivery(RecordOutcome):
    """The fate of one record that was sent without waiting."""

    __slots__ = ()

    def result(self, timeout_ms: int | None = None) -> RecordMetadata:
        """Where the record was written; waits for it. Raises why it was not."""
        if not self.done():
            self.batch.home._wait_for(self, timeout_ms)
        return self._metadata()

    def exception(self, timeout_ms: int | None = None) -> ClientError | None:
        """Why the record was not written, None when it was; waits for it."""
        if not self.done():
            self.batch.home._wait_for(self, timeout_ms)
        return self._error()


class SyncTransaction:
    """One transaction as a block: committed at its end, aborted when an exception leaves it."""

    def __init__(self, producer: "SyncProducer") -> None:
        self._producer = producer
        self._inner: Transaction | None = None

    def send_offsets(self, offsets: OffsetsLike, group: ConsumerGroupMetadata | str) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group)

    def __enter__(self) -> Self:
        self._inner = self._producer._call(self._producer._client.transaction)
        self._producer._call(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._inner is not None
        self._producer._call(self._inner.__aexit__, kind, error, at)


_open: "WeakSet[SyncProducer]" = WeakSet()
"""Producers that nobody has closed."""


@atexit.register
def _tell_unsent() -> None:
    """The thread of a producer ends with the program, whatever it still had to send."""
    for producer in list(_open):
        tell_unsent(producer._unsettled, "the program ended")


class SyncProducer(Sync[Producer]):
    """Takes settings by Kafka's names, as `Producer` does. Threads may share it."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerKeywords]
    ) -> None:
        self._behind: dict[str, _TopicQueue] = {}
        """The topics for which something was handed over and is not yet put."""
        self._count = 0
        """How many records are in these queues."""
        self._bytes = 0
        """And of how many bytes."""
        self._told: dict[str, str] = {}
        """The reason of the failure that was logged last, for each topic."""
        self._guard = new_lock()
        super().__init__(partial(Producer, config, **keywords))
        self._client._serve_threads(self, SyncDelivery, self._host.poke)
        self._put = self._client._quick_put
        self._mono_ms = self._client._clock.mono_ms
        _open.add(self)

    @property
    def _unsettled(self) -> int:
        return self._count + self._client._accumulator.unsettled

    start = waits(Producer.start)
    init_transactions = waits(Producer.init_transactions)
    begin_transaction = waits(Producer.begin_transaction)
    send_offsets_to_transaction = waits(Producer.send_offsets_to_transaction)
    commit_transaction = waits(Producer.commit_transaction)
    abort_transaction = waits(Producer.abort_transaction)

    @property
    def settings(self) -> ProducerSettings:
        return self._client.settings

    @property
    def trouble(self) -> ClientError | None:
        """As `Producer.trouble`."""
        return self._client.trouble

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = (),
    ) -> RecordMetadata:
        """As `Producer.send`."""

        async def work() -> RecordMetadata:
            await self._all_of(topic)
            return await self._client.send(
                topic, value, key, partition=partition, timestamp=timestamp, headers=headers
            )

        return self._run(work())

    def partitions(self, topic: str) -> list[int]:
        """As `Producer.partitions`."""
        return self._run(self._client.partitions(topic))

    def flush(self, timeout_ms: int | None = None) -> None:
        """As `Producer.flush`."""

        async def work() -> None:
            await self._client.flush(await self._all_put(timeout_ms))

        self._run(work())

    def close(self, timeout_ms: int | None = None) -> None:
        """As `Producer.close`."""
        self._end(timeout_ms)

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = (),
    ) -> SyncDelivery:
        """As `Producer.enqueue`: puts a record on its way and gives a handle to its fate."""
        client = self._client
        if client._prepares or headers != ():
            try:
                value, key, headers = client._prepare(topic, value, key, headers)
            except ClientError as refused:
                return self._refuse(topic, refused)
        if not self._behind or topic not in self._behind:
            delivery: SyncDelivery | None = self._put(
                topic, value, key, partition, timestamp, headers
            )
            if delivery is not None:
                return delivery
        return self._send_prepared((topic, value, key, partition, timestamp, headers))

    enqueue = send_nowait

    def transaction(self) -> SyncTransaction:
        """`with producer.transaction():` commits at its end, aborts when it raises."""
        return SyncTransaction(self)

    # -- from the caller's thread to the loop ----------------------------------------------------

    def _send_prepared(self, record: _Record) -> SyncDelivery:
        """Begins a batch with it, or hands it over."""
        if self._client._closed:
            raise Closed("the producer was closed")
        full = False
        if record[0] not in self._behind:
            try:
                delivery = self._client._put_from_thread(*record)
            except BufferFull:
                full = True
            except Closed:
                raise
            except ClientError as refused:
                return self._refuse(record[0], refused)
            else:
                if isinstance(delivery, SyncDelivery):
                    return delivery
        else:
            full = self._client._accumulator.intake.shut
        handed = _QueuedRecord(self._stand_in(record[0]), record, self._mono_ms(), _size(record))
        many = self._count >= _HANDED_OVER
        many = many or self._bytes + handed.size > self.settings.buffer_memory
        if many and self._host.here:  # a handler of the client's own log, say
            return self._refuse(record[0], BufferFull("too much waits for its topics", handed.size))
        self._hand_over(handed)
        if (full or many) and not self._host.here:
            self._run(self._all_of(record[0]))
        return handed.told

    def _stand_in(self, topic: str) -> SyncDelivery:
        """The handle of a record that is in no batch yet."""
        batch = Batch(TopicPartition(topic, -1), (0,), 0, self, parking=True)
        return SyncDelivery(batch, batch.park(0), -1)

    def _refuse(self, topic: str, error: ClientError) -> SyncDelivery:
        if self._closed:
            raise Closed("the producer was closed")
        refused = self._stand_in(topic)
        self._fail(refused, error)
        return refused

    def _fail(self, refused: SyncDelivery, error: ClientError) -> None:
        """Logs it, once where many in a row fail for one reason: a topic is not there, say."""
        topic, reason = refused.batch.where.topic, str(error)
        if self._told.get(topic) != reason:
            if len(self._told) >= _TOLD:
                self._told.clear()
            self._told[topic] = reason
            log_failed(refused.batch, error)
        refused.batch.fail(error)

    def _hand_over(self, handed: _QueuedRecord) -> None:
        topic = handed.record[0]
        with self._guard:
            if self._closed:
                raise Closed("the producer was closed")
            queue = self._behind.get(topic)
            if queue is None:
                queue = _TopicQueue()
                self._host.poke(partial(self._take_over, topic, queue))
                self._behind[topic] = queue
            queue.handed.append(handed)
            self._count += 1
            self._bytes += handed.size

    # -- on the loop -----------------------------------------------------------------------------

    def _take_over(self, topic: str, queue: _TopicQueue) -> None:
        queue.task = asyncio.ensure_future(self._put_handed(topic, queue))

    async def _put_handed(self, topic: str, queue: _TopicQueue) -> None:
        """Gives the producer what was handed over for a topic, in order, until nothing is left."""
        while True:
            with self._guard:
                if not queue.handed:
                    del self._behind[topic]
                    return
                first = queue.handed.popleft()
            if isinstance(first, asyncio.Future):
                if not first.done():
                    first.set_result(None)
                continue
            try:
                await self._put_one(first)
            finally:
                with self._guard:
                    self._count -= 1
                    self._bytes -= first.size

    async def _put_one(self, handed: _QueuedRecord) -> None:
        try:
            delivery = await self._enqueue(handed)
        except ClientError as refused:
            self._fail(handed.told, refused)
        except Exception as wrong:
            reason = RecordError(f"cannot be sent: {wrong!r}", cause=wrong)
            self._fail(handed.told, reason)
        except BaseException:
            handed.told.batch.fail(Closed("the producer was closed"))
            raise
        else:
            handed.told.timestamp = delivery.timestamp
            handed.told.batch.move([(delivery.batch, delivery.index)])

    async def _enqueue(self, handed: _QueuedRecord) -> RecordOutcome:
        """Its time to wait began when it was handed over, not when those before it were put."""
        most = self.settings.max_block_ms
        left = max(0, most - (self._mono_ms() - handed.since))
        try:
            return await self._client._enqueue_prepared(*handed.record, within_ms=left)
        except TimedOut as late:
            what = f"the metadata of topic {handed.record[0]} did not come"
            because = f": {late.cause}" if late.cause else ""
            told = f"{what} within max.block.ms={most}{because}"
            raise TimedOut(told, cause=late.cause) from late

    async def _before(self) -> None:
        """Waits until all is put that was handed over before."""
        with self._guard:
            topics = list(self._behind)
        await self._all_of(*topics)

    async def _all_of(self, *topics: str) -> None:
        """The same for some topics: others do not hold it up."""
        loop = asyncio.get_running_loop()
        awaited: list[asyncio.Future[None]] = []
        with self._guard:
            for topic in topics:
                if topic in self._behind:
                    awaited.append(loop.create_future())
                    self._behind[topic].handed.append(awaited[-1])
        for put in awaited:
            await put

    async def _all_put(self, timeout_ms: int | None) -> int | None:
        """The same within a time; what is left of that."""
        if timeout_ms is None:
            await self._before()
            return None
        deadline = self._mono_ms() + timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._before()
        except TimeoutError:
            raise TimedOut(
                f"{self._count} records still wait for their topics, or for memory"
            ) from None
        return max(0, deadline - self._mono_ms())

    async def _finish(self, timeout_ms: int | None = None) -> None:
        with contextlib.suppress(TimedOut):
            timeout_ms = await self._all_put(timeout_ms)
        await self._client.close(timeout_ms)

    def _leave(self, error: BaseException | None) -> None:
        self._end(None if error is None else 0)

    def _after_end(self) -> None:
        _open.discard(self)
        with self._guard:
            for queue in self._behind.values():
                for left in queue.handed:
                    if isinstance(left, _QueuedRecord):
                        left.told.batch.fail(Closed("the producer was closed"))
                queue.handed.clear()

    def _wait_for(self, waited: SyncDelivery, timeout_ms: int | None) -> None:
        async def work() -> None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await waited.written()
            except TimeoutError:
                raise TimedOut("the record is still on its way") from None
            except ClientError:
                pass  # the caller asks the delivery itself

        try:
            self._run(work())
        except Closed:
            if not waited.done():
                raise
