"""Finds the place of single records: the partition, the batch, and when that has to be sent.

Most records never come here: `Intake.put` does for them what it takes. The others begin a batch,
need a partition drawn or a topic looked at, or cannot be sent at all.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from scriba.client.cluster import Cluster, Topic
from scriba.client.errors import BufferFull, RecordError
from scriba.client.model import HeadersLike, TopicPartition
from scriba.client.producing.accumulator import Accumulator, Queue, TopicQueues
from scriba.client.producing.batches import Delivery
from scriba.client.producing.partitioner import Partitioner, RoundRobin, by_key
from scriba.client.producing.sender import Sender
from scriba.client.serializers import (
    Serializer,
    not_bytes,
    plain_bytes,
    read_headers,
    serializer,
)
from scriba.client.settings import ProducerSettings
from scriba.native.intake import RECORD_OVERHEAD
from scriba.peers.errors import ClientError
from scriba.records.record import Record


class RecordRouter:
    """`hidden` tells of topics whose records may not be put but by `put`: others come first."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        sender: Sender,
        hidden: Callable[[str], bool],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._sender = sender
        self._hidden = hidden
        self._clock = cluster.ports.clock
        self._wall_ms = self._clock.wall_ms
        self._max_request_size = settings.max_request_size
        self._ignore_keys = settings.partitioner_ignore_keys
        self._to_key: Serializer | None = serializer(settings.key_serializer)
        self._to_value: Serializer | None = serializer(settings.value_serializer)
        self._partitioner: Partitioner | None = None
        if settings.partitioner_class is not None:
            chosen = settings.partitioner_class
            self._partitioner = RoundRobin() if isinstance(chosen, str) else chosen
        self.announce: Callable[[Queue], object] = self.look_after
        """Has the event loop look after a batch that has just begun."""

    @property
    def serializes(self) -> bool:
        return self._to_key is not None or self._to_value is not None

    def serialized(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """Value and key as they are sent; RecordError when a serializer refuses them."""
        what = "key"
        try:
            if self._to_key is not None and key is not None:
                key = self._to_key(key)
            what = "value"
            if self._to_value is not None and value is not None:
                value = self._to_value(value)
        except Exception as failure:
            told = f"the {what} of a record for {topic} cannot be serialized: {failure!r}"
            raise RecordError(told, cause=failure) from failure
        return value, key

    def put(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
        reserved: int = 0,
    ) -> Delivery:
        """Puts a record of bytes into its batch, from any thread.

        `reserved` is memory that was taken for it before; BufferFull when that has to be waited
        for.
        """
        accumulator = self._accumulator
        try:
            size = RECORD_OVERHEAD
            if key is not None:
                key = plain_bytes(key)
                size += len(key)
            if value is not None:
                value = plain_bytes(value)
                size += len(value)
            pairs, extra = read_headers(headers)
            when = self._wall_ms() if timestamp is None else timestamp
            if size + extra > self._max_request_size or when < 0:
                raise self._too_much(size + extra, when)
            with accumulator.lock:
                if not reserved and accumulator.lacks(size + extra):
                    raise BufferFull(f"{accumulator.used} bytes are in use", size + extra)
                record = Record(0, when, key, value, pairs)
                return self._put_record(topic, record, partition, size + extra, reserved)
        except ClientError:
            if reserved:
                accumulator.release(reserved)
            raise
        except Exception as failure:
            if reserved:
                accumulator.release(reserved)
            raise self._explain(failure, topic.name, key, value) from failure

    def _put_record(
        self, topic: Topic, record: Record, partition: int | None, size: int, reserved: int
    ) -> Delivery:
        """Puts a record into the batch of its partition, or begins one with it."""
        accumulator, name = self._accumulator, topic.name
        queues = accumulator.topic(name)
        if queues.channel.known is not topic:
            count = len(topic.partitions) if self._partitioner is None else 0
            accumulator.know(name, topic, topic.partitions, count)
        _, when, key, value, headers = record
        sticky = False
        if partition is None:
            sticky = self._partitioner is None and (key is None or self._ignore_keys)
            partition = self._choose(topic, queues, key, value)
        elif partition not in topic.partitions:
            raise no_partition(topic, partition)
        intake = accumulator.intake
        delivery: Delivery | None = intake.put(name, value, key, partition, when, headers, reserved)
        if delivery is None:
            where = TopicPartition(name, partition)
            queue, batch = accumulator.begin(queues, where, record, reserved)
            self.announce(queue)
            delivery = intake.ticket(batch, 0, when)
        elif delivery.batch.size >= queues.channel.limit:
            queue = queues.queues[partition]
            accumulator.close_batch(queue, delivery.batch)
            self.announce(queue)
        if sticky:
            queues.stick(size, delivery.batch.closed)
        if self._hidden(name):
            queues.hide()
        return delivery

    def _choose(
        self, topic: Topic, queues: TopicQueues, key: bytes | None, value: bytes | None
    ) -> int:
        count = len(topic.partitions)
        if self._partitioner is not None:
            try:
                mine = self._partitioner(topic.name, key, value, count)
            except Exception as failure:
                told = f"the partitioner failed on a record for {topic.name}: {failure!r}"
                raise RecordError(told, cause=failure) from failure
            if mine not in topic.partitions:
                raise no_partition(topic, mine)
            return mine
        if key is not None and not self._ignore_keys:
            return by_key(key, count)
        queues.stuck()
        chosen = queues.sticky.partition
        if chosen is not None and chosen in topic.partitions:
            return chosen
        led = [p for p, info in topic.partitions.items() if info.leader >= 0]
        led = led or list(topic.partitions)
        queued: list[int] | None = None
        if self._settings.partitioner_adaptive_partitioning_enable:
            of = queues.queues
            queued = [len(of[p].waiting) if p in of else 0 for p in led]
        return queues.sticky.draw(led, queued)

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

    def look_after(self, queue: Queue) -> None:
        """Sees to it that a new batch, and the one it closed, will be sent; on the event loop."""
        self._accumulator.absorb(queue)
        if not queue.waiting:
            return
        self._cluster.want(queue.where.topic)
        linger_ms = self._settings.linger_ms
        if not linger_ms or self._accumulator.hurry or queue.waiting[0].closed:
            self._sender.ready(queue)
        if linger_ms and queue.timer is None and not queue.waiting[-1].closed:
            loop = asyncio.get_running_loop()
            queue.timer = loop.call_later(linger_ms / 1000, self._lingered, queue)

    def _lingered(self, queue: Queue) -> None:
        """The last batch waited for more, or the one that was the last before it did."""
        queue.timer = None
        if not queue.waiting:
            return
        if queue.waiting[-1].closed:
            self._sender.ready(queue)  # whoever closed it need not have told
            return
        age = self._clock.mono_ms() - queue.waiting[-1].created
        left = self._settings.linger_ms - age
        if left <= 0:
            self._sender.ready(queue)
        else:
            loop = asyncio.get_running_loop()
            queue.timer = loop.call_later(left / 1000, self._lingered, queue)


def no_partition(topic: Topic, partition: int) -> RecordError:
    return RecordError(
        f"{topic.name} has no partition {partition!r}",
        fix=f"choose one below {len(topic.partitions)}, or add partitions",
    )
