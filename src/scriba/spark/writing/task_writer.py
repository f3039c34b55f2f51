"""Writes rows into partitions from inside a task of Spark.

A `TaskWriter` numbers the records of each partition from zero under an identity that is given: in a
transaction all tasks of a batch share one, so no two of them may write to the same partition, and
no task may do so twice. Batches of a partition leave one at a time and in order, whatever has to
be sent again, so numbers never pass each other; batches of several partitions share a request.

The loop runs only when a batch is full (see `link`): while the next one is encoded, the last is on
its way. Rows come as Arrow's columns and go into batches as bytes; only those with headers become
objects on the way.
"""

import asyncio
import time
from collections import Counter, deque
from typing import Any, Final, NamedTuple, cast

from scriba.client import BrokerError, ClientError, TimedOut
from scriba.client.cluster import NO_NODE
from scriba.client.model import TopicPartition
from scriba.client.settings import ProducerSettings
from scriba.errors import ErrorCode, error_code
from scriba.native import implementation
from scriba.native.arrow import Given
from scriba.peers.connection import Connection, Payload
from scriba.peers.ports import Backoff
from scriba.records.batch import HEADER_SIZE, Record, build_batch, decode_records, encode_batch
from scriba.records.compression import Codec, codec_named
from scriba.spark.link import Link
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.txn import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from scriba.wire.schema import Records

_ALL: Final = -1
_EXPLICIT: Final = 11
"""The newest Produce in which the leader does not tell the coordinator of its partition."""
_BY_NAME: Final = 12

_LOOKS: Final = 5
"""How often a topic may be found missing, by brokers that may not have heard of it yet."""

_HELD: Final = 2
"""Full batches that may wait before the task does."""


class TaskRepeated(Exception):
    """A task of a batch runs for the second time: the batch has to begin anew."""


class Identity(NamedTuple):
    """Under which records are written."""

    producer_id: int
    epoch: int
    transactional_id: str | None
    implicit: bool
    """Whether leaders tell the transaction's coordinator themselves."""


class Written(NamedTuple):
    """What a task wrote into one partition."""

    topic: str
    partition: int
    rows: int
    offset: int
    """Of the first row."""


class _ReadyBatch(NamedTuple):
    data: bytearray
    sequence: int
    rows: int


class _PartitionQueue:
    """The records of one partition on their way."""

    __slots__ = ("append", "batches", "builder", "checked", "first", "in_flight", "rows", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.builder = implementation.chosen.Builder(HEADER_SIZE)
        self.append = self.builder.append
        self.rows = 0
        """Records in sealed batches."""
        self.batches: deque[_ReadyBatch] = deque()
        self.in_flight = False
        self.checked = False
        self.first = -1


class TaskWriter:
    def __init__(
        self, link: Link, settings: ProducerSettings, identity: Identity, *, alone: bool = False
    ) -> None:
        """`alone` when nobody else can have written under the identity before."""
        self._link = link
        self._cluster = link.cluster
        self._settings = settings
        self._identity = identity
        self._alone = alone or identity.transactional_id is None
        self._codec = codec_named(settings.compression_type) or Codec.NONE
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._waiting: set[TopicPartition] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self._held = 0
        self._backoff = Backoff(
            self._cluster.ports.rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms
        )
        self._progress = time.monotonic()
        self._trouble: ClientError | None = None
        self._missed: Counter[str] = Counter()

    def add(
        self,
        where: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
    ) -> None:
        queue = self._queues.get(where)
        if queue is None:
            queue = self._queues[where] = _PartitionQueue(where)
        if queue.append(timestamp, key, value, headers) >= self._settings.batch_size:
            self._seal(queue)
            self._link.run(self._pump(_HELD))

    def add_rows(
        self, where: TopicPartition, timestamp: int, keys: Given | None, values: Given, span: range
    ) -> None:
        """Rows of columns, without headers."""
        queue = self._queues.get(where)
        if queue is None:
            queue = self._queues[where] = _PartitionQueue(where)
        limit = self._settings.batch_size
        row, end = span.start, span.stop
        while row < end:
            row = implementation.chosen.append_rows(
                queue.builder, timestamp, keys, values, row, end, limit
            )
            if queue.builder.size >= limit:
                self._seal(queue)
                self._link.run(self._pump(_HELD))

    def finish(self) -> list[Written]:
        """Writes the rest and waits for all of it."""
        for queue in self._queues.values():
            if queue.builder.count:
                self._seal(queue)
        self._link.run(self._pump(0))
        return [Written(*queue.where, queue.rows, queue.first) for queue in self._queues.values()]

    def _seal(self, queue: _PartitionQueue) -> None:
        count, identity = queue.builder.count, self._identity
        data = build_batch(
            queue.builder,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=queue.rows,
            transactional=identity.transactional_id is not None,
        )
        queue.batches.append(_ReadyBatch(data, queue.rows, count))
        queue.rows += count
        self._held += 1
        self._waiting.add(queue.where)

    # -- sending ---------------------------------------------------------------------------------

    async def _pump(self, most: int) -> None:
        """Sends until at most so many batches wait or are on their way."""
        if new := {where.topic for where in self._waiting} - self._cluster.topics.keys():
            for topic in sorted(new):
                self._cluster.want(topic)
            self._cluster.stale()
            limit, what = self._settings.max_block_ms, f"the metadata of topic {min(new)}"
            await self._cluster.within(self._cluster.next_update(), limit, what)
        while True:
            self._launch()
            await asyncio.sleep(0)  # lets what was launched get its request into the socket
            if self._held <= most:
                return
            if self._requests:
                done, _ = await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
                self._requests -= done
                for request in done:
                    request.result()
            elif self._held > most:
                await self._rest()

    async def _rest(self) -> None:
        """A pause after a failure; TimedOut when nothing was written for too long."""
        limit = self._settings.delivery_timeout_ms
        if (time.monotonic() - self._progress) * 1000 > limit:
            raise TimedOut(f"no row was written for {limit} ms: {self._trouble}")
        self._cluster.stale()
        await asyncio.sleep(self._backoff.next_ms() / 1000)

    def _launch(self) -> None:
        """One request for each leader that has none under way."""
        by_leader: dict[int, list[_PartitionQueue]] = {}
        for where in sorted(self._waiting):
            queue = self._queues[where]
            if queue.in_flight:
                continue
            self._cluster.want(where.topic)
            leader = self._cluster.leader(where)
            if leader == NO_NODE:
                self._cluster.stale()
                self._trouble = self._without_leader(where)
                continue
            by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            taken: list[_PartitionQueue] = []
            size = 0
            for queue in queues:
                size += len(queue.batches[0].data)
                if taken and size > self._settings.max_request_size:
                    break
                queue.in_flight = True
                taken.append(queue)
            self._requests.add(
                asyncio.get_running_loop().create_task(self._send_and_settle(leader, taken))
            )

    def _without_leader(self, where: TopicPartition) -> BrokerError:
        """Why a partition has no leader; raises it when waiting for one would be in vain."""
        if self._cluster.errors.get(where.topic) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=str(where))
        self._missed[where.topic] += 1
        gone = BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {where.topic} was deleted while rows were written to it; create it anew",
        )
        gone.retriable = False
        if self._missed[where.topic] >= _LOOKS:
            raise gone
        return gone

    async def _send_and_settle(self, leader: int, queues: list[_PartitionQueue]) -> None:
        """Sends the first batch of each queue, and takes the answer."""
        failed = False
        try:
            connection = await self._cluster.connect(leader)
            await self._check_unused(connection, queues)
            answers = await self._send(connection, queues)
            for queue in queues:
                failed = not self._settle(queue, *answers[queue.where]) or failed
        except ClientError as failure:
            self._trouble = failure
            if not failure.retriable:
                raise
            failed = True
        finally:
            for queue in queues:
                queue.in_flight = False
        if failed:
            await self._rest()

    async def _send(
        self, connection: Connection, queues: list[_PartitionQueue]
    ) -> dict[TopicPartition, tuple[int, str | None, int]]:
        """What the leader says of each partition: error, message, offset."""
        newest = _BY_NAME if self._identity.implicit else _EXPLICIT
        topics: dict[str, TopicProduceData] = {}
        for queue in queues:
            name, index = queue.where
            topic = topics.setdefault(name, TopicProduceData(name=name))
            records = cast(Records, Payload(queue.batches[0].data))
            topic.partition_data.append(PartitionProduceData(index=index, records=records))
        answer = await connection.request(
            ProduceRequest(
                transactional_id=self._identity.transactional_id,
                acks=_ALL,
                timeout_ms=self._settings.request_timeout_ms,
                topic_data=list(topics.values()),
            ),
            ProduceResponse,
            version=connection.version(ProduceRequest, newest),
        )
        return {
            TopicPartition(topic.name, p.index): (p.error_code, p.error_message, p.base_offset)
            for topic in answer.responses
            for p in topic.partition_responses
        }

    def _settle(
        self, queue: _PartitionQueue, number: int, message: str | None, offset: int
    ) -> bool:
        """Whether the batch is in the log. Raises when it never will be."""
        code = error_code(number)
        batch = queue.batches[0]
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.batches.popleft()
            if batch.sequence == 0:
                queue.first = offset
            self._held -= 1
            self._backoff.reset()
            self._progress = time.monotonic()
            if not queue.batches:
                self._waiting.discard(queue.where)
            return True
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.rows > 1:
            queue.batches.popleft()
            queue.batches.extendleft(reversed(self._halves(batch)))
            self._held += 1
            return True
        refused = BrokerError(code, message, about=str(queue.where))
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CONCURRENT_TRANSACTIONS):
            refused.retriable = True
        if not refused.retriable:
            raise refused
        self._trouble = refused
        return False

    def _halves(self, batch: _ReadyBatch) -> list[_ReadyBatch]:
        """A batch that is too large for its topic, in two."""
        records = decode_records(batch.data)
        middle = len(records) // 2
        parts: list[tuple[list[Record], int]] = [
            (records[:middle], batch.sequence),
            (records[middle:], batch.sequence + middle),
        ]
        identity = self._identity
        return [
            _ReadyBatch(
                encode_batch(
                    part,
                    codec=self._codec,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    base_sequence=sequence,
                    transactional=identity.transactional_id is not None,
                ),
                sequence,
                len(part),
            )
            for part, sequence in parts
        ]

    async def _check_unused(self, connection: Connection, queues: list[_PartitionQueue]) -> None:
        """Makes sure that nobody wrote to these partitions under this identity before.

        Spark may run a task again without saying so, after it lost an executor with the input of
        its stage. The leader would take the first batches for repeated ones and acknowledge
        without writing them.
        """
        new = [queue for queue in queues if not queue.checked]
        if not new or self._alone:
            return
        topics: dict[str, TopicRequest] = {}
        for queue in new:
            name, index = queue.where
            topics.setdefault(name, TopicRequest(name=name)).partition_indexes.append(index)
        request = DescribeProducersRequest(topics=list(topics.values()))
        answer = await connection.request(request, DescribeProducersResponse)
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    about = f"the producers of {topic.name}-{p.partition_index}"
                    raise BrokerError(error_code(p.error_code), p.error_message, about=about)
                for state in p.active_producers:
                    mine = (state.producer_id, state.producer_epoch) == self._identity[:2]
                    if mine and state.current_txn_start_offset >= 0:
                        raise TaskRepeated(
                            f"an earlier attempt has written to {topic.name}-{p.partition_index}"
                        )
        for queue in new:
            queue.checked = True
