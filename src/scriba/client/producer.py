"""Sends records: batched per partition, compressed, retried, in order, and not twice.

    async with Producer(bootstrap_servers="localhost:9092", value_serializer="json") as producer:
        where = await producer.send("orders", {"id": 7}, key=b"customer-7")   # written, here

`send` waits for the acknowledgement. To have many records on their way, use `enqueue`, which only
waits for room in the buffer, or `send_nowait`, which waits for nothing; both give a `Delivery` to
await later, or not at all: a failure is logged either way.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from scriba.client.accumulator import Accumulator, Queue, TopicQueues, record_size
from scriba.client.batches import Batch, Delivery, settled
from scriba.client.cluster import Cluster, Partition, Topic
from scriba.client.errors import BufferFull, ClientError, Closed, RecordError, TimedOut
from scriba.client.model import HeadersLike, RecordMetadata, TopicPartition
from scriba.client.partitioner import Partitioner, RoundRobin, by_key
from scriba.client.ports import Ports, real_ports
from scriba.client.sender import Sender
from scriba.client.serializers import Serializer, as_bytes, serializer
from scriba.client.settings import ProducerSettings
from scriba.records.batch import Headers, Record
from scriba.records.compression import Codec, codec_named

_NO_HEADERS: Headers = ()


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
        self._accumulator = Accumulator(settings, codec, self._clock, self._ports.rng)
        self._sender = Sender(
            self._cluster, self._accumulator, settings, codec, _level(settings, codec)
        )
        self._limbo: dict[str, _Limbo] = {}
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
        started = self._clock.mono_ms()
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo or not self._started:
            found = await self._find(topic)
        if partition is not None and partition not in found.partitions:
            found = await self._look_again(found, partition)
        record = self._record(topic, value, key, timestamp, headers)
        size = self._measure(record)
        try:
            self._accumulator.reserve(size)
        except BufferFull:
            await self._wait_for_room(size, started)
            found = self._cluster.topics.get(topic) or await self._find(topic)
        delivery = self._accept(found, record, size, partition)
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
        record = self._record(topic, value, key, timestamp, headers)
        size = self._measure(record)
        self._accumulator.reserve(size)
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo:
            return self._park(topic, record, size, partition)
        try:
            return self._accept(found, record, size, partition)
        except RecordError:
            self._accumulator.release(size)
            raise

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

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to learn of the cluster. The first send does the same."""
        if not self._started:
            self._start()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Sends what is left, fails what is not sent in this time, and ends all connections.

        Without a time, delivery.timeout.ms is the limit.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._started and timeout_ms != 0:
                await self.flush(timeout_ms)
        except TimedOut:
            pass
        finally:
            self._sender.fail_all(Closed("the producer was closed before the record was sent"))
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
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
        self._started = True

    # -- one record ------------------------------------------------------------------------------

    def _record(
        self, topic: str, value: Any, key: Any, timestamp: int | None, headers: HeadersLike
    ) -> Record:
        if self._closed:
            raise Closed("the producer was closed")
        try:
            if key is not None:
                if self._to_key is not None:
                    key = self._to_key(key)
                if type(key) is not bytes:
                    key = as_bytes(key, "key")
            if value is not None:
                if self._to_value is not None:
                    value = self._to_value(value)
                if type(value) is not bytes:
                    value = as_bytes(value, "value")
        except RecordError:
            raise
        except Exception as failure:
            raise RecordError(
                f"a serializer refused a record for {topic}: {failure!r}", cause=failure
            ) from failure
        if timestamp is None:
            timestamp = self._clock.wall_ms()
        elif timestamp < 0:
            raise RecordError(f"the timestamp {timestamp} is negative", fix="give milliseconds")
        return Record(0, timestamp, key, value, _headers(headers) if headers else _NO_HEADERS)

    def _measure(self, record: Record) -> int:
        size = record_size(record.key, record.value, record.headers)
        limit = self.settings.max_request_size
        if size > limit:
            raise RecordError(
                f"the record has {size} bytes, max.request.size is {limit}",
                fix="raise max.request.size, and the topic's max.message.bytes",
            )
        return size

    def _accept(self, topic: Topic, record: Record, size: int, partition: int | None) -> Delivery:
        """Puts a record, whose memory is reserved, into the batch of its partition."""
        name = topic.name
        queues = self._accumulator.topics.get(name)
        if queues is None:
            queues = self._accumulator.topic(name)
        sticky = False
        if partition is None:
            partition, sticky = self._choose(topic, queues, record)
        elif partition not in topic.partitions:
            raise _no_partition(topic, partition)
        queue = queues.queues.get(partition)
        if queue is None:
            queue = self._accumulator.queue(queues, TopicPartition(name, partition))
        batch = self._accumulator.append(queues, queue, record, size)
        if sticky:
            queues.sticky.appended(size, batch.closed)
        if batch.count == 1:
            self._cluster.want(name)
            self._begin(queue, batch)
        elif batch.closed:
            self._sender.ready(queue)
        return Delivery(batch, batch.count - 1, record.timestamp)

    def _begin(self, queue: Queue, batch: Batch) -> None:
        """Sees to it that a new batch, and the one it closed, will be sent."""
        linger_ms = self.settings.linger_ms
        if batch.closed or not linger_ms or self._accumulator.hurry or len(queue.waiting) > 1:
            self._sender.ready(queue)
        if linger_ms and not batch.closed:
            asyncio.get_running_loop().call_later(linger_ms / 1000, self._sender.ready, queue)

    def _choose(self, topic: Topic, queues: TopicQueues, record: Record) -> tuple[int, bool]:
        """The partition, and whether it is the one that records without a key stick to."""
        count = len(topic.partitions)
        key = record.key
        if self._partitioner is not None:
            chosen = self._partitioner(topic.name, key, record.value, count)
            if chosen not in topic.partitions:
                raise _no_partition(topic, chosen)
            return chosen, False
        if key is not None and not self.settings.partitioner_ignore_keys:
            return by_key(key, count), False
        sticky = queues.sticky
        if sticky.partition is not None and sticky.partition in topic.partitions:
            return sticky.partition, True
        led = _led(topic.partitions)
        queued: list[int] | None = None
        if self.settings.partitioner_adaptive_partitioning_enable:
            of = queues.queues
            queued = [len(of[p].waiting) if p in of else 0 for p in led]
        return sticky.draw(led, queued), True

    # -- topics that are not known yet -----------------------------------------------------------

    async def _find(self, topic: str) -> Topic:
        """The topic, after all records that were parked for it have found their places."""
        if not self._started:
            self._start()
        limbo = self._limbo.get(topic)
        if limbo is not None:
            await asyncio.shield(limbo.search)
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

    async def _wait_for_room(self, size: int, started: int) -> None:
        left = started + self.settings.max_block_ms - self._clock.mono_ms()
        waiting = asyncio.ensure_future(self._accumulator.room(size))
        self._sender.ready_all()
        try:
            async with asyncio.timeout(max(0, left) / 1000):
                await waiting
        except TimeoutError:
            raise BufferFull(
                f"no room for {size} bytes within max.block.ms={self.settings.max_block_ms}",
                fix="send less at once, or raise buffer.memory",
            ) from None

    def _park(self, topic: str, record: Record, size: int, partition: int | None) -> Delivery:
        """Keeps a record until the topic's partitions are known."""
        limbo = self._limbo.get(topic)
        if limbo is None:
            batch = Batch(TopicPartition(topic, -1), (0,), self._clock.mono_ms())
            self._accumulator.pending[batch] = None
            search = self._cluster.tasks.spawn(self._search(topic), name="scriba-topic")
            limbo = self._limbo[topic] = _Limbo(batch, search)
        limbo.partitions.append(partition)
        index = limbo.batch.add(record, size)
        limbo.batch.charge += size
        return Delivery(limbo.batch, index, record.timestamp)

    async def _search(self, topic: str) -> None:
        try:
            found = await self._cluster.topic(topic, self.settings.max_block_ms)
        except ClientError as failure:
            limbo = self._limbo.pop(topic)
            if not limbo.batch.finished:
                self._accumulator.fail(limbo.batch, failure)
            return
        limbo = self._limbo.pop(topic)
        del self._accumulator.pending[limbo.batch]
        places: list[tuple[Batch, int]] = []
        for record, partition in zip(limbo.batch.records, limbo.partitions, strict=True):
            size = record_size(record.key, record.value, record.headers)
            try:
                delivery = self._accept(found, record, size, partition)
                places.append((delivery.batch, delivery.index))
            except RecordError as refused:
                places.append((self._refuse(topic, size, refused), 0))
        limbo.batch.move(places)

    def _refuse(self, topic: str, size: int, why: ClientError) -> Batch:
        """A batch that stands for one record that was never put into any."""
        batch = Batch(TopicPartition(topic, -1), (0,), self._clock.mono_ms())
        batch.count = 1
        batch.fail(why)
        self._accumulator.release(size)
        return batch


class _Limbo:
    """Records of a topic whose partitions are not known, with the partitions asked for."""

    __slots__ = ("batch", "partitions", "search")

    def __init__(self, batch: Batch, search: "asyncio.Task[None]") -> None:
        self.batch = batch
        self.partitions: list[int | None] = []
        self.search = search


def _led(partitions: Mapping[int, Partition]) -> Sequence[int]:
    """The partitions that have a leader, or all when none has."""
    return [p for p, info in partitions.items() if info.leader >= 0] or list(partitions)


def _no_partition(topic: Topic, partition: int) -> RecordError:
    return RecordError(
        f"{topic.name} has no partition {partition}",
        fix=f"choose one below {len(topic.partitions)}, or add partitions",
    )


def _headers(given: HeadersLike) -> Headers:
    pairs = tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
    for name, content in pairs:
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise RecordError(f"the header {name!r} is not a str with bytes or None")
    return pairs


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
