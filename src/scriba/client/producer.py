"""Sends records: batched per partition, compressed, retried, in order, and not twice.

    async with Producer(bootstrap_servers="localhost:9092", value_serializer="json") as producer:
        where = await producer.send("orders", {"id": 7}, key=b"customer-7")   # written, here

`send` waits for the acknowledgement. To have many records on their way, use `enqueue`, which only
waits for room in the buffer, or `send_nowait`, which waits for nothing; both give a `Delivery` to
await later, or not at all: a failure is logged either way.
"""

import asyncio
from collections.abc import Mapping, Sized
from types import TracebackType
from typing import Any, Self

from scriba.client.accumulator import RECORD_OVERHEAD, Accumulator, Queue, TopicQueues
from scriba.client.batches import Batch, Delivery, settled
from scriba.client.cluster import Cluster, Topic
from scriba.client.errors import BufferFull, ClientError, Closed, RecordError, TimedOut
from scriba.client.model import HeadersLike, RecordMetadata, TopicPartition
from scriba.client.partitioner import Partitioner, RoundRobin, by_key
from scriba.client.ports import Ports, real_ports
from scriba.client.sender import Sender
from scriba.client.serializers import Serializer, not_bytes, serializer
from scriba.client.settings import ProducerSettings
from scriba.records.batch import Headers
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
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo or not self._started:
            found = await self._find(topic)
        if partition is not None and partition not in found.partitions:
            found = await self._look_again(found, partition)
        try:
            delivery = self._put(found, value, key, partition, timestamp, headers)
        except BufferFull as full:
            await self._wait_for_room(full.size)
            found = self._cluster.topics.get(topic, found)
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
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._limbo:
            return self._park(topic, value, key, partition, timestamp, headers)
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
        started, self._started = self._started, False
        try:
            if started and timeout_ms != 0:
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
                pairs, extra = _read_headers(headers)
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

    def _park(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
    ) -> Delivery:
        """Keeps a record until the topic's partitions are known."""
        limbo = self._limbo.get(topic)
        if limbo is None:
            batch = Batch(TopicPartition(topic, -1), (0,), self._clock.mono_ms())
            self._accumulator.pending[batch] = None
            search = self._cluster.tasks.spawn(self._search(topic), name="scriba-topic")
            limbo = self._limbo[topic] = _Limbo(batch, search)
        size = RECORD_OVERHEAD + _about(key) + _about(value)
        if self._accumulator.lacks(size):
            raise BufferFull(f"{self._accumulator.used} bytes are in use", size)
        if timestamp is None:
            timestamp = self._wall_ms()
        self._accumulator.used += size
        limbo.batch.size += size
        limbo.records.append((value, key, partition, timestamp, headers))
        index = limbo.batch.count
        limbo.batch.count = index + 1
        return Delivery(limbo.batch, index, timestamp)

    async def _search(self, topic: str) -> None:
        """Finds the partitions of a topic, and then places for all records that wait for it."""
        limbo: _Limbo | None = None
        try:
            found = await self._cluster.topic(topic, self.settings.max_block_ms)
            limbo = self._limbo[topic]
            places: list[tuple[Batch, int]] = []
            while len(places) < len(limbo.records):
                parked = limbo.records[len(places)]
                size = RECORD_OVERHEAD + _about(parked[0]) + _about(parked[1])
                limbo.batch.size -= size
                self._accumulator.release(size)
                places.append(await self._place(found, parked))
        except ClientError as failure:
            limbo = self._limbo.pop(topic)
            if not limbo.batch.finished:
                self._accumulator.fail(limbo.batch, failure)
            return
        del self._limbo[topic]
        if not limbo.batch.finished:
            del self._accumulator.pending[limbo.batch]
            limbo.batch.move(places)

    async def _place(self, topic: Topic, parked: "_Parked") -> tuple[Batch, int]:
        """The batch of a parked record, and its index there."""
        try:
            try:
                delivery = self._put(topic, *parked)
            except BufferFull as full:
                await self._wait_for_room(full.size)
                delivery = self._put(topic, *parked, full.size)
        except RecordError as refused:
            batch = Batch(TopicPartition(topic.name, -1), (0,), self._clock.mono_ms())
            batch.count = 1
            batch.fail(refused)
            return batch, 0
        return delivery.batch, delivery.index


_Parked = tuple[Any, Any, int | None, int, HeadersLike]
"""Value, key, partition, timestamp and headers of a record that waits for its topic."""


class _Limbo:
    """Records of a topic whose partitions are not known."""

    __slots__ = ("batch", "records", "search")

    def __init__(self, batch: Batch, search: "asyncio.Task[None]") -> None:
        self.batch = batch
        """Stands for them until they are in batches of their own."""
        self.records: list[_Parked] = []
        self.search = search


def _no_partition(topic: Topic, partition: int) -> RecordError:
    return RecordError(
        f"{topic.name} has no partition {partition}",
        fix=f"choose one below {len(topic.partitions)}, or add partitions",
    )


def _about(data: object) -> int:
    """The bytes of a key or value before it is serialized, if that can be told."""
    return len(data) if isinstance(data, Sized) else 0


def _read_headers(given: HeadersLike) -> tuple[Headers, int]:
    """Headers as pairs, and about how many bytes they take."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
    size = 0
    for name, content in pairs:
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise RecordError(f"the header {name!r} is not a str with bytes or None")
        size += 4 + len(name) + (0 if content is None else len(content))
    return pairs, size


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
