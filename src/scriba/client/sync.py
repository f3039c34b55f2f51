"""The clients for code that has no event loop: every call waits for its result.

    with SyncProducer(bootstrap_servers="localhost:9092") as producer:
        producer.send("orders", b"first")                   # waits until it is written
        delivery = producer.send_nowait("orders", b"second")
        delivery.result()

    with SyncConsumer(bootstrap_servers="localhost:9092") as consumer:
        consumer.assign(consumer.partitions("orders"))
        for record in consumer:
            print(record.value)

These are the same objects as the asynchronous clients, on an event loop of their own: a call runs
the method of the same name there. The loop runs in a thread, so that batches leave, records arrive
and heartbeats go out between calls. Callbacks run in the thread that called.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from scriba.client.admin import Admin
from scriba.client.batches import Batch, Fate
from scriba.client.consumer import Consumer
from scriba.client.errors import BufferFull, ClientError, Closed, RecordError, TimedOut
from scriba.client.group_offsets import Done, Offsets
from scriba.client.model import (
    ConsumerGroupMetadata,
    HeadersLike,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from scriba.client.producer import Producer
from scriba.client.record import ConsumerRecord
from scriba.client.settings import AdminSettings, ConsumerSettings, ProducerSettings
from scriba.client.subscription import Told
from scriba.client.sync_host import Sync, calls, waits
from scriba.client.transactions_run import OffsetsLike, Transaction

Heard = Callable[[Sequence[TopicPartition]], object]
"""A callback of a subscription; it runs in the thread that polls."""

_Record = tuple[str, Any, Any, int | None, int | None, HeadersLike]

_HANDED_OVER: Final = 10_000
"""Records that a producer's caller may be ahead of its event loop."""

_READ_AHEAD: Final = 2_000
"""Records that iterating takes from the event loop at once, when no group waits meanwhile."""


class SyncDelivery(Fate):
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


class SyncProducer(Sync[Producer]):
    """`send_nowait` puts records into their batches itself, and waits only when the buffer is full.

    What it cannot put, because the topic has to be found first, it hands over to the event loop, in
    order; until the loop has put all of that, everything else goes the same way.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._handed: deque[tuple[SyncDelivery, _Record]] = deque()
        self._taking = False
        self._behind = False
        """Whether something was handed over and is not yet put."""
        self._lock = asyncio.Lock()
        super().__init__(partial(Producer, config, **keywords))
        self._client._serve_threads(self, SyncDelivery, self._host.poke)
        self._put = self._client._quick_put

    send = waits(Producer.send)
    flush = waits(Producer.flush)
    partitions = waits(Producer.partitions)
    start = waits(Producer.start)
    init_transactions = waits(Producer.init_transactions)
    begin_transaction = waits(Producer.begin_transaction)
    send_offsets_to_transaction = waits(Producer.send_offsets_to_transaction)
    commit_transaction = waits(Producer.commit_transaction)
    abort_transaction = waits(Producer.abort_transaction)

    @property
    def settings(self) -> ProducerSettings:
        return self._client.settings

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
        if not self._behind:
            delivery: SyncDelivery | None = self._put(
                topic, value, key, partition, timestamp, headers
            )
            if delivery is not None:
                return delivery
        return self._send_prepared((topic, value, key, partition, timestamp, headers))

    def _send_prepared(self, record: _Record) -> SyncDelivery:
        """Begins a batch with it, or hands it over."""
        if self._closed:
            raise Closed("the producer was closed")
        full = False
        if not self._behind:
            try:
                delivery = self._client._put_from_thread(*record)
            except BufferFull:
                full = True
            except ClientError as refused:
                return self._refuse(record[0], refused)
            else:
                if isinstance(delivery, SyncDelivery):
                    return delivery
        handed = self._stand_in(record[0])
        self._handed.append((handed, record))
        self._behind = True  # after that, or the loop might find nothing and set it back
        if not self._taking:
            self._taking = True  # before the loop is told, which sets it back when it is done
            self._host.poke(self._take_over)
        if full or len(self._handed) >= _HANDED_OVER:
            self._call(_nothing)
        return handed

    def _stand_in(self, topic: str) -> SyncDelivery:
        """The handle of a record that is in no batch yet."""
        batch = Batch(TopicPartition(topic, -1), (0,), 0, self, parking=True)
        return SyncDelivery(batch, batch.park(0), -1)

    def _refuse(self, topic: str, error: ClientError) -> SyncDelivery:
        if self._closed:
            raise Closed("the producer was closed")
        refused = self._stand_in(topic)
        refused.batch.fail(error)
        return refused

    enqueue = send_nowait

    def transaction(self) -> SyncTransaction:
        """`with producer.transaction():` commits at its end, aborts when it raises."""
        return SyncTransaction(self)

    def _take_over(self) -> None:
        self._task = asyncio.ensure_future(self._before())

    async def _before(self) -> None:
        """Gives the producer what was handed over, in order, whoever else does the same."""
        async with self._lock:
            while self._handed or self._taking:
                self._taking = False  # from here on, whoever hands over tells again
                while self._handed:
                    handed, record = self._handed.popleft()
                    try:
                        delivery = await self._client._enqueue_prepared(*record)
                    except ClientError as refused:
                        handed.batch.fail(refused)
                    except Exception as wrong:
                        reason = RecordError(f"cannot be sent: {wrong!r}", cause=wrong)
                        handed.batch.fail(reason)
                    except BaseException:
                        handed.batch.fail(Closed("sending it was interrupted"))
                        raise
                    else:
                        handed.timestamp = delivery.timestamp
                        handed.batch.move([(delivery.batch, delivery.index)])
                self._behind = False
                if self._handed:
                    self._behind = True

    def _wait_for(self, waited: SyncDelivery, timeout_ms: int | None) -> None:
        async def work() -> None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await waited.written()
            except TimeoutError:
                raise TimedOut("the record is still on its way") from None
            except ClientError:
                pass  # the caller asks the delivery itself

        self._call(work)


class SyncConsumer(Sync[Consumer]):
    """Iterating reads ahead; every other call first gives back what was not iterated over."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._ahead: deque[ConsumerRecord[Any, Any]] = deque()
        self._committed: deque[Callable[[], object]] = deque()
        super().__init__(partial(Consumer, config, **keywords))

    poll = waits(Consumer.poll)
    assign = calls(Consumer.assign)
    assignment = calls(Consumer.assignment)
    beginning_offsets = waits(Consumer.beginning_offsets)
    commit = waits(Consumer.commit)
    committed = waits(Consumer.committed)
    end_offsets = waits(Consumer.end_offsets)
    group_metadata = calls(Consumer.group_metadata)
    lag = calls(Consumer.lag)
    offsets_for_times = waits(Consumer.offsets_for_times)
    partitions = waits(Consumer.partitions)
    pause = calls(Consumer.pause)
    paused = calls(Consumer.paused)
    position = waits(Consumer.position)
    resume = calls(Consumer.resume)
    seek = calls(Consumer.seek)
    seek_to_beginning = calls(Consumer.seek_to_beginning)
    seek_to_end = calls(Consumer.seek_to_end)
    seek_to_time = calls(Consumer.seek_to_time)
    skip = calls(Consumer.skip)
    subscription = calls(Consumer.subscription)
    unsubscribe = waits(Consumer.unsubscribe)

    @property
    def settings(self) -> ConsumerSettings:
        return self._client.settings

    def close(self, timeout_ms: int = 30_000, *, commit: bool = True) -> None:
        """As `Consumer.close`."""
        self._end(timeout_ms, commit=commit)

    def _leave(self, error: BaseException | None) -> None:
        self._end(commit=error is None)

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_revoked: Heard | None = None,
        on_assigned: Heard | None = None,
        on_lost: Heard | None = None,
    ) -> None:
        """As `Consumer.subscribe`; the callbacks run in the thread that polls."""
        self._call(
            self._client.subscribe,
            topics,
            pattern=pattern,
            on_revoked=self._in_caller(on_revoked),
            on_assigned=self._in_caller(on_assigned),
            on_lost=self._in_caller(on_lost),
        )

    def _in_caller(self, callback: Heard | None) -> Told | None:
        return None if callback is None else partial(self._host.in_caller, callback)

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        done: Done | None = None,
    ) -> None:
        """As `Consumer.commit_nowait`; `done` is called by a later call, in its thread."""

        def later(committed: Offsets, failure: ClientError | None) -> None:
            assert done is not None
            self._committed.append(partial(done, committed, failure))

        self._call(self._client.commit_nowait, offsets, None if done is None else later)

    def _after(self) -> None:
        while self._committed:
            self._committed.popleft()()

    def __iter__(self) -> Iterator[ConsumerRecord[Any, Any]]:
        ahead = self._ahead
        while True:
            while ahead:
                yield ahead.popleft()
            self._read_ahead()

    def __next__(self) -> ConsumerRecord[Any, Any]:
        while not self._ahead:
            self._read_ahead()
        return self._ahead.popleft()

    def _read_ahead(self) -> None:
        """In a group as many as a poll may give: its members have to come back in time."""
        most = self.settings.max_poll_records
        if self.settings.group_id is None:
            most = max(most, _READ_AHEAD)
        self._ahead.extend(self.poll(1000, most))

    async def _before(self) -> None:
        first: dict[tuple[str, int], int] = {}
        for record in self._ahead:
            first.setdefault((record.topic, record.partition), record.offset)
        self._ahead.clear()
        for where, offset in first.items():
            if where in self._client.assignment():
                self._client.seek(where, offset)


class SyncAdmin(Sync[Admin]):
    """Takes settings by Kafka's names, as `Admin` does."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__(partial(Admin, config, **keywords))

    abort_transaction = waits(Admin.abort_transaction)
    alter_configs = waits(Admin.alter_configs)
    alter_group_offsets = waits(Admin.alter_group_offsets)
    create_partitions = waits(Admin.create_partitions)
    create_topics = waits(Admin.create_topics)
    delete_group_offsets = waits(Admin.delete_group_offsets)
    delete_groups = waits(Admin.delete_groups)
    delete_records = waits(Admin.delete_records)
    delete_topics = waits(Admin.delete_topics)
    describe_cluster = waits(Admin.describe_cluster)
    describe_configs = waits(Admin.describe_configs)
    describe_features = waits(Admin.describe_features)
    describe_groups = waits(Admin.describe_groups)
    describe_log_dirs = waits(Admin.describe_log_dirs)
    describe_producers = waits(Admin.describe_producers)
    describe_quorum = waits(Admin.describe_quorum)
    describe_topics = waits(Admin.describe_topics)
    describe_transactions = waits(Admin.describe_transactions)
    fence_producers = waits(Admin.fence_producers)
    incremental_alter_configs = waits(Admin.incremental_alter_configs)
    list_config_resources = waits(Admin.list_config_resources)
    list_group_offsets = waits(Admin.list_group_offsets)
    list_groups = waits(Admin.list_groups)
    list_offsets = waits(Admin.list_offsets)
    list_topics = waits(Admin.list_topics)
    list_transactions = waits(Admin.list_transactions)
    replace_configs = waits(Admin.replace_configs)
    update_features = waits(Admin.update_features)

    @property
    def settings(self) -> AdminSettings:
        return self._client.settings

    def close(self) -> None:
        """As `Admin.close`."""
        self._end()


async def _nothing() -> None:
    pass
