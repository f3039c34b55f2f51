"""Sends records: batched per partition, compressed, retried, in order, and not twice.

    async with Producer(bootstrap_servers="localhost:9092", value_serializer="json") as producer:
        where = await producer.send("orders", {"id": 7}, key=b"customer-7")   # written, here

`send` waits for the acknowledgement. To have many records on their way, use `enqueue`, which only
waits for room in the buffer, or `send_nowait`, which waits for nothing; both give a `Delivery` to
await later, or not at all: a failure is logged either way.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from scriba.client.accumulator import RECORD_OVERHEAD, Accumulator, Queue, TopicQueues
from scriba.client.batches import Batch, Delivery, settled
from scriba.client.cluster import Cluster, Topic
from scriba.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    RecordError,
    TimedOut,
    TransactionStateError,
)
from scriba.client.limbo import Limbo, Parked
from scriba.client.model import ConsumerGroupMetadata, HeadersLike, RecordMetadata
from scriba.client.partitioner import Partitioner, RoundRobin, by_key
from scriba.client.ports import Ports, real_ports
from scriba.client.sender import Sender
from scriba.client.serializers import Serializer, not_bytes, read_headers, serializer
from scriba.client.settings import ProducerSettings
from scriba.client.transactions import Transactions
from scriba.client.transactions_run import OffsetsLike, Transaction, TransactionRunner
from scriba.records.batch import Headers
from scriba.records.compression import Codec, codec_named

_NO_HEADERS: Headers = ()
_FAREWELL_MS: Final = 1_000
"""How long a close tries to abort an open transaction, unless it is given a time."""


class Producer:
    """Takes settings by Kafka's names: `Producer({"linger.ms": 20}, acks="all")`.

    Keys and values are bytes unless serializers are given; `None` is Kafka's null. Made and used
    within one event loop.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        ports: Ports | None = None,
        **keywords: Any,
    ) -> None:
        self.settings = settings = ProducerSettings.build(config, keywords)
        self._ports = ports or real_ports()
        self._clock = self._ports.clock
        self._wall_ms = self._clock.wall_ms
        self._max_request_size = settings.max_request_size
        self._ignore_keys = settings.partitioner_ignore_keys
        self._to_key: Serializer | None = serializer(settings.key_serializer)
        self._to_value: Serializer | None = serializer(settings.value_serializer)
        self._partitioner: Partitioner | None = None
        if settings.partitioner_class is not None:
            chosen = settings.partitioner_class
            self._partitioner = RoundRobin() if isinstance(chosen, str) else chosen
        codec = codec_named(settings.compression_type) or Codec.NONE
        self._cluster = Cluster(
            self._ports, settings, auto_create=True, topic_idle_ms=settings.metadata_max_idle_ms
        )
        self._accumulator = Accumulator(settings, self._clock, self._ports.rng)
        name = settings.transactional_id
        self._machine = None if name is None else Transactions(name)
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            settings,
            codec,
            _level(settings, codec),
            self._machine,
        )
        self._limbo = Limbo(
            self._cluster,
            self._accumulator,
            settings.max_block_ms,
            self._put_parked,
            self._wait_for_room,
            self._sender.lost,
        )
        self._runner: TransactionRunner | None = None
        if self._machine is not None:
            self._runner = TransactionRunner(
                self._cluster,
                settings,
                self._machine,
                self._sender,
                self._accumulator,
                self._limbo.fail,
            )
        self._started = False
        self._closed = False

    # -- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = _NO_HEADERS,
    ) -> RecordMetadata:
        """Sends a record and waits until it is written: where it is, or the error."""
        return await (
            await self.enqueue(
                topic, value, key, partition=partition, timestamp=timestamp, headers=headers
            )
        )

    async def enqueue(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = _NO_HEADERS,
    ) -> Delivery:
        """Puts a record on its way, waiting for nothing but room in the buffer.

        Waits for `max.block.ms` at most, also for the topic's metadata when it is the first one.
        """
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo or not self._started:
            found = await self._find(topic)
        if partition is not None and partition not in found.partitions:
            found = await self._look_again(found, partition)
        if self._machine is not None:
            self._check_transaction()
        try:
            delivery = self._put(found, value, key, partition, timestamp, headers)
        except BufferFull as full:
            await self._wait_for_room(full.size)
            found = self._cluster.topics.get(topic, found)
            self._check_transaction(full.size)
            delivery = self._put(found, value, key, partition, timestamp, headers, full.size)
        if delivery.batch.closed:
            await asyncio.sleep(0)  # a full batch: the sender gets its turn
        return delivery

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = _NO_HEADERS,
    ) -> Delivery:
        """Puts a record on its way without waiting; BufferFull when there is no room for it.

        Nothing is sent before the event loop gets its turn: give it one now and then.
        """
        if not self._started:
            self._start()
        if self._machine is not None:
            self._check_transaction()
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo:
            when = self._wall_ms() if timestamp is None else timestamp
            return self._limbo.park(topic, (value, key, partition, when, headers))
        return self._put(found, value, key, partition, timestamp, headers)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Sends everything now and waits until the fate of all records sent before is known.

        Errors are those of the deliveries; here only TimedOut is raised.
        """
        pending = list(self._accumulator.pending)
        self._accumulator.hurry += 1
        try:
            self._sender.ready_all()
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                for batch in pending:
                    await settled(batch)
        except TimeoutError:
            left = sum(batch.count for batch in self._accumulator.pending)
            raise TimedOut(f"{left} records are still on their way") from None
        finally:
            self._accumulator.hurry -= 1

    # -- transactions ----------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Takes over the transactional id: fences whoever had it, ends what they left behind.

        Only for a producer that was not started by `start` or `async with`, which do the same.
        """
        await self._transactional("init_transactions()").initialize()

    async def begin_transaction(self) -> None:
        await self._transactional("begin_transaction()").begin()

    async def send_offsets_to_transaction(
        self, offsets: OffsetsLike, group: ConsumerGroupMetadata | str
    ) -> None:
        """Commits these offsets of a group if and when the transaction is committed.

        The group's members are told apart by `consumer.group_metadata()`, so that one that lost
        its partitions meanwhile cannot commit; a mere name is for a group without members.
        """
        runner = self._transactional("send_offsets_to_transaction()")
        await runner.send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Waits for all records and commits them. After TimedOut, call it again."""
        await self._transactional("commit_transaction()").commit()

    async def abort_transaction(self) -> None:
        """Drops what has not been sent, and has the rest never be seen by read_committed."""
        await self._transactional("abort_transaction()").abort()

    def transaction(self) -> Transaction:
        """`async with producer.transaction():` commits at its end, aborts when it raises."""
        return Transaction(self._transactional("transaction()"))

    def _transactional(self, call: str) -> TransactionRunner:
        if self._runner is None:
            raise TransactionStateError(
                f"{call} needs a transactional producer", fix="give it a transactional_id"
            )
        if not self._started:
            self._start()
        return self._runner

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to learn of the cluster, as the first send does; a transactional producer also
        takes over its transactional id."""
        if not self._started:
            self._start()
            if self._runner is not None:
                await self._runner.initialize()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Sends what is left, fails what is not sent in this time, and ends all connections.

        Without a time, delivery.timeout.ms is the limit. An open transaction is aborted.
        """
        if self._closed:
            return
        self._closed = True
        started, self._started = self._started, False
        try:
            if started and self._runner is not None:
                await self._runner.leave(timeout_ms or _FAREWELL_MS)
            if started and timeout_ms != 0:
                await self.flush(timeout_ms)
        except TimedOut:
            pass
        finally:
            self._sender.fail_all(Closed("the producer was closed before the record was sent"))
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close(0)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # After an error in the block nobody waits long for what it left behind.
        await self.close(None if kind is None else 0)

    async def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return sorted((await self._find(topic)).partitions)

    def _start(self) -> None:
        if self._closed:
            raise Closed("the producer was closed")
        self._cluster.start()
        self._sender.start()
        if self._runner is not None:
            self._runner.start()
        self._started = True

    # -- one record ------------------------------------------------------------------------------

    def _put(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
        reserved: int = 0,
    ) -> Delivery:
        """Puts one record into the batch of its partition: all that is done for every record.

        `reserved` is memory that was taken for it before; BufferFull when that has to be waited
        for.
        """
        accumulator = self._accumulator
        try:
            size = RECORD_OVERHEAD
            if key is not None:
                if self._to_key is not None:
                    key = self._to_key(key)
                size += len(key)
            if value is not None:
                if self._to_value is not None:
                    value = self._to_value(value)
                size += len(value)
            pairs = _NO_HEADERS
            if headers:
                pairs, extra = read_headers(headers)
                size += extra
            if timestamp is None:
                timestamp = self._wall_ms()
            if size > self._max_request_size or timestamp < 0:
                raise self._too_much(size, timestamp)
            if not reserved and accumulator.lacks(size):
                raise BufferFull(f"{accumulator.used} bytes are in use", size)
            queues = accumulator.topics.get(topic.name) or accumulator.topic(topic.name)
            sticky = None
            if partition is None:
                if (key is None or self._ignore_keys) and self._partitioner is None:
                    sticky = queues.sticky
                    partition = sticky.partition
                if partition is None or partition not in topic.partitions:
                    partition = self._choose(topic, queues, key, value)
            elif partition not in topic.partitions:
                raise _no_partition(topic, partition)
            queue = queues.queues.get(partition) or accumulator.queue(queues, topic.name, partition)
            batch = queue.open
            if batch is None or batch.size + size > queues.limit:
                batch = accumulator.new_batch(queue)
            try:
                total = batch.append(timestamp, key, value, pairs)
            except BaseException:
                accumulator.drop_empty(queue, batch)
                raise
        except ClientError:
            accumulator.release(reserved)
            raise
        except Exception as failure:
            accumulator.release(reserved)
            raise self._explain(failure, topic.name, key, value) from failure
        accumulator.used += total - batch.size - reserved
        batch.size = total
        index = batch.count
        batch.count = index + 1
        if total >= queues.limit:
            accumulator.close_batch(queue)
            self._sender.ready(queue)
        if not index:
            self._begin(queue, batch)
        if sticky is not None:
            sticky.bytes += size
            if sticky.bytes >= sticky.batch_size:
                sticky.leave(batch.closed)
        return Delivery(batch, index, timestamp)

    def _check_transaction(self, reserved: int = 0, parked: bool = False) -> None:
        """Raises unless a record may be sent now, and gives back what was reserved for it."""
        if self._machine is not None:
            try:
                self._machine.check_send(parked)
            except ClientError:
                self._accumulator.release(reserved)
                raise

    def _put_parked(self, topic: Topic, parked: Parked, reserved: int = 0) -> Delivery:
        self._check_transaction(reserved, parked=True)
        return self._put(topic, *parked, reserved)

    def _explain(self, failure: Exception, topic: str, key: Any, value: Any) -> RecordError:
        """The failure as the caller should see it."""
        fields = (("key", key, self._to_key), ("value", value, self._to_value))
        for what, data, to_bytes in fields:
            fine = data is None or isinstance(data, bytes | bytearray | memoryview)
            if not fine and to_bytes is None:
                return not_bytes(data, what)
        return RecordError(f"a record for {topic} was refused: {failure!r}", cause=failure)

    def _too_much(self, size: int, timestamp: int) -> RecordError:
        if timestamp < 0:
            return RecordError(f"the timestamp {timestamp} is negative", fix="give milliseconds")
        return RecordError(
            f"the record has {size} bytes, max.request.size is {self._max_request_size}",
            fix="raise max.request.size, and the topic's max.message.bytes",
        )

    def _begin(self, queue: Queue, batch: Batch) -> None:
        """Sees to it that a new batch, and the one it closed, will be sent."""
        self._cluster.want(queue.where.topic)
        linger_ms = self.settings.linger_ms
        if not linger_ms or self._accumulator.hurry or len(queue.waiting) > 1:
            self._sender.ready(queue)
        if linger_ms and not batch.closed:
            asyncio.get_running_loop().call_later(linger_ms / 1000, self._sender.ready, queue)

    def _choose(
        self, topic: Topic, queues: TopicQueues, key: bytes | None, value: bytes | None
    ) -> int:
        count = len(topic.partitions)
        if self._partitioner is not None:
            chosen = self._partitioner(topic.name, key, value, count)
            if chosen not in topic.partitions:
                raise _no_partition(topic, chosen)
            return chosen
        if key is not None and not self._ignore_keys:
            return by_key(bytes(key), count)
        led = [p for p, info in topic.partitions.items() if info.leader >= 0]
        led = led or list(topic.partitions)
        queued: list[int] | None = None
        if self.settings.partitioner_adaptive_partitioning_enable:
            of = queues.queues
            queued = [len(of[p].waiting) if p in of else 0 for p in led]
        return queues.sticky.draw(led, queued)

    # -- topics that are not known yet -----------------------------------------------------------

    async def _find(self, topic: str) -> Topic:
        """The topic, after all records that were parked for it have found their places."""
        if not self._started:
            self._start()
        await self._limbo.placed(topic)
        return await self._cluster.topic(topic, self.settings.max_block_ms)

    async def _look_again(self, topic: Topic, partition: int) -> Topic:
        """A partition that is not in the picture may have been added since it was made."""
        self._cluster.stale()
        await self._cluster.within(
            self._cluster.next_update(), self.settings.max_block_ms, f"metadata of {topic.name}"
        )
        found = self._cluster.topics.get(topic.name, topic)
        if partition not in found.partitions:
            raise _no_partition(found, partition)
        return found

    async def _wait_for_room(self, size: int) -> None:
        waiting = asyncio.ensure_future(self._accumulator.room(size))
        self._sender.ready_all()
        try:
            async with asyncio.timeout(self.settings.max_block_ms / 1000):
                await waiting
        except TimeoutError:
            raise BufferFull(
                f"no room for {size} bytes within max.block.ms={self.settings.max_block_ms}",
                size,
                fix="send less at once, or raise buffer.memory",
            ) from None


def _no_partition(topic: Topic, partition: int) -> RecordError:
    return RecordError(
        f"{topic.name} has no partition {partition}",
        fix=f"choose one below {len(topic.partitions)}, or add partitions",
    )


def _level(settings: ProducerSettings, codec: Codec) -> int | None:
    match codec:
        case Codec.GZIP:
            level = settings.compression_gzip_level
            return None if level == -1 else level
        case Codec.LZ4:
            level = settings.compression_lz4_level
            return None if level == 9 else level  # Kafka's default means the fast compressor
        case Codec.ZSTD:
            return settings.compression_zstd_level
        case _:
            return None
