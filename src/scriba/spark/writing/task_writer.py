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


class _Sealed(NamedTuple):
    data: bytearray
    sequence: int
    rows: int


class _Lane:
    """The records of one partition on their way."""

    __slots__ = ("append", "builder", "claimed", "first", "flying", "queue", "rows", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.builder = implementation.chosen.Builder(HEADER_SIZE)
        self.append = self.builder.append
        self.rows = 0
        """Records in sealed batches."""
        self.queue: deque[_Sealed] = deque()
        self.flying = False
        self.claimed = False
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
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._waiting: set[TopicPartition] = set()
        self._flights: set[asyncio.Task[None]] = set()
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
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = _Lane(where)
        if lane.append(timestamp, key, value, headers) >= self._settings.batch_size:
            self._seal(lane)
            self._link.run(self._pump(_HELD))

    def add_rows(
        self, where: TopicPartition, timestamp: int, keys: Given | None, values: Given, span: range
    ) -> None:
        """Rows of columns, without headers."""
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = _Lane(where)
        limit = self._settings.batch_size
        row, end = span.start, span.stop
        while row < end:
            row = implementation.chosen.append_rows(
                lane.builder, timestamp, keys, values, row, end, limit
            )
            if lane.builder.size >= limit:
                self._seal(lane)
                self._link.run(self._pump(_HELD))

    def finish(self) -> list[Written]:
        """Writes the rest and waits for all of it."""
        for lane in self._lanes.values():
            if lane.builder.count:
                self._seal(lane)
        self._link.run(self._pump(0))
        return [Written(*lane.where, lane.rows, lane.first) for lane in self._lanes.values()]

    def _seal(self, lane: _Lane) -> None:
        count, identity = lane.builder.count, self._identity
        data = build_batch(
            lane.builder,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=lane.rows,
            transactional=identity.transactional_id is not None,
        )
        lane.queue.append(_Sealed(data, lane.rows, count))
        lane.rows += count
        self._held += 1
        self._waiting.add(lane.where)

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
            if self._flights:
                done, _ = await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)
                self._flights -= done
                for flight in done:
                    flight.result()
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
        by_leader: dict[int, list[_Lane]] = {}
        for where in sorted(self._waiting):
            lane = self._lanes[where]
            if lane.flying:
                continue
            self._cluster.want(where.topic)
            leader = self._cluster.leader(where)
            if leader == NO_NODE:
                self._cluster.stale()
                self._trouble = self._without_leader(where)
                continue
            by_leader.setdefault(leader, []).append(lane)
        for leader, lanes in by_leader.items():
            taken: list[_Lane] = []
            size = 0
            for lane in lanes:
                size += len(lane.queue[0].data)
                if taken and size > self._settings.max_request_size:
                    break
                lane.flying = True
                taken.append(lane)
            self._flights.add(asyncio.get_running_loop().create_task(self._fly(leader, taken)))

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

    async def _fly(self, leader: int, lanes: list[_Lane]) -> None:
        """Sends the first batch of each lane, and takes the answer."""
        failed = False
        try:
            connection = await self._cluster.connect(leader)
            await self._claim(connection, lanes)
            answers = await self._send(connection, lanes)
            for lane in lanes:
                failed = not self._settle(lane, *answers[lane.where]) or failed
        except ClientError as failure:
            self._trouble = failure
            if not failure.retriable:
                raise
            failed = True
        finally:
            for lane in lanes:
                lane.flying = False
        if failed:
            await self._rest()

    async def _send(
        self, connection: Connection, lanes: list[_Lane]
    ) -> dict[TopicPartition, tuple[int, str | None, int]]:
        """What the leader says of each partition: error, message, offset."""
        newest = _BY_NAME if self._identity.implicit else _EXPLICIT
        topics: dict[str, TopicProduceData] = {}
        for lane in lanes:
            name, index = lane.where
            topic = topics.setdefault(name, TopicProduceData(name=name))
            records = cast(Records, Payload(lane.queue[0].data))
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

    def _settle(self, lane: _Lane, number: int, message: str | None, offset: int) -> bool:
        """Whether the batch is in the log. Raises when it never will be."""
        code = error_code(number)
        batch = lane.queue[0]
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.queue.popleft()
            if batch.sequence == 0:
                lane.first = offset
            self._held -= 1
            self._backoff.reset()
            self._progress = time.monotonic()
            if not lane.queue:
                self._waiting.discard(lane.where)
            return True
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.rows > 1:
            lane.queue.popleft()
            lane.queue.extendleft(reversed(self._halves(batch)))
            self._held += 1
            return True
        refused = BrokerError(code, message, about=str(lane.where))
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CONCURRENT_TRANSACTIONS):
            refused.retriable = True
        if not refused.retriable:
            raise refused
        self._trouble = refused
        return False

    def _halves(self, batch: _Sealed) -> list[_Sealed]:
        """A batch that is too large for its topic, in two."""
        records = decode_records(batch.data)
        middle = len(records) // 2
        parts: list[tuple[list[Record], int]] = [
            (records[:middle], batch.sequence),
            (records[middle:], batch.sequence + middle),
        ]
        identity = self._identity
        return [
            _Sealed(
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

    async def _claim(self, connection: Connection, lanes: list[_Lane]) -> None:
        """Makes sure that nobody wrote to these partitions under this identity before.

        Spark may run a task again without saying so, after it lost an executor with the input of
        its stage. The leader would take the first batches for repeated ones and acknowledge
        without writing them.
        """
        new = [lane for lane in lanes if not lane.claimed]
        if not new or self._alone:
            return
        topics: dict[str, TopicRequest] = {}
        for lane in new:
            name, index = lane.where
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
        for lane in new:
            lane.claimed = True
