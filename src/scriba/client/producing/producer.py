"""Sends records: batched per partition, compressed, retried, in order, and not twice.

    async with Producer(bootstrap_servers="localhost:9092", value_serializer="json") as producer:
        where = await producer.send("orders", {"id": 7}, key=b"customer-7")   # written, here

`send` waits for the acknowledgement. To have many records on their way, use `enqueue`, which only
waits for room in the buffer, or `send_nowait`, which waits for nothing; both give a `Delivery` to
await later, or not at all: a failure is logged either way.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack

from scriba.client.cluster import Cluster, Topic
from scriba.client.errors import BufferFull, TransactionStateError
from scriba.client.keywords import ProducerKeywords
from scriba.client.model import (
    ConsumerGroupMetadata,
    Headers,
    HeadersLike,
    RecordMetadata,
)
from scriba.client.producing.accumulator import Accumulator
from scriba.client.producing.batches import Delivery, RecordOutcome, settled
from scriba.client.producing.router import RecordRouter, no_partition
from scriba.client.producing.sender import Sender
from scriba.client.producing.unresolved import Parked, UnresolvedRecords
from scriba.client.serializers import read_headers
from scriba.client.settings import ProducerSettings
from scriba.client.transactions.machine import Transactions
from scriba.client.transactions.transactions import OffsetsLike, Transaction, TransactionRunner
from scriba.peers.errors import ClientError, Closed, TimedOut
from scriba.peers.ports import Ports, real_ports
from scriba.records.compression import Codec, codec_named

_NO_HEADERS: Headers = ()
_FAREWELL_MS: Final = 1_000
"""How long a close tries to abort an open transaction, unless it is given a time."""

log = logging.getLogger(__name__)


def tell_unsent(count: int, when: str) -> None:
    """For a producer that nobody closed: how many of its records may never be written."""
    if count:
        log.error(
            "a producer was not closed before %s: %d records were not acknowledged and may be "
            "lost; use it in a `with` block, or call flush() or close()",
            when,
            count,
        )


class Producer:
    """Takes settings by Kafka's names: `Producer({"linger.ms": 20}, acks="all")`.

    Keys and values are bytes unless serializers are given; `None` is Kafka's null. Made and used
    within one event loop.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        _ports: Ports | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        self.settings = settings = ProducerSettings.build(config, keywords)
        self._ports = _ports or real_ports()
        self._clock = self._ports.clock
        self._wall_ms = self._clock.wall_ms
        codec = codec_named(settings.compression_type) or Codec.NONE
        self._cluster = Cluster(
            self._ports, settings, auto_create=True, topic_idle_ms=settings.metadata_max_idle_ms
        )
        self._accumulator = Accumulator(
            settings, self._clock, self._ports.rng, self._cluster.topics
        )
        self._quick_put = self._accumulator.intake.put
        """Does all for nearly every record; None says that it takes more than that."""
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
        self._router = RecordRouter(
            self._cluster, self._accumulator, settings, self._sender, self._hidden
        )
        self._prepares = self._machine is not None or self._router.serializes
        """Whether a record has to be prepared before it is put."""
        self._unresolved = UnresolvedRecords(
            self._cluster,
            self._accumulator,
            settings.max_block_ms,
            self._put_parked,
            lambda size: self._wait_for_room(size, settings.max_block_ms),
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
                self._unresolved.fail,
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
        delivery: RecordOutcome = await self.enqueue(
            topic, value, key, partition=partition, timestamp=timestamp, headers=headers
        )
        return await delivery.written()

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
        if self._prepares or headers is not _NO_HEADERS:
            value, key, headers = self._prepare(topic, value, key, headers)
        delivery: Delivery | None = self._quick_put(
            topic, value, key, partition, timestamp, headers
        )
        if delivery is not None:
            return delivery
        return await self._enqueue_prepared(topic, value, key, partition, timestamp, headers)

    async def _enqueue_prepared(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
        within_ms: int | None = None,
    ) -> Delivery:
        """The same for a record that was prepared, and could not just be put."""
        limit = self.settings.max_block_ms if within_ms is None else within_ms
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._unresolved or not self._started:
            found = await self._find(topic, limit)
        if partition is not None and partition not in found.partitions:
            found = await self._look_again(found, partition, limit)
        self._check_sending()
        try:
            delivery = self._router.put(found, value, key, partition, timestamp, headers)
        except BufferFull as full:
            await self._wait_for_room(full.size, limit)
            found = self._cluster.topics.get(topic, found)
            self._check_sending(full.size)
            delivery = self._router.put(found, value, key, partition, timestamp, headers, full.size)
        if not delivery.index:
            await asyncio.sleep(0)  # a batch began, another may be full: the sender gets its turn
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
        if self._prepares or headers is not _NO_HEADERS:
            value, key, headers = self._prepare(topic, value, key, headers)
        delivery: Delivery | None = self._quick_put(
            topic, value, key, partition, timestamp, headers
        )
        if delivery is not None:
            return delivery
        found = self._cluster.topics.get(topic)
        if found is None or topic in self._unresolved:
            when = self._wall_ms() if timestamp is None else timestamp
            return self._unresolved.park(topic, (value, key, partition, when, headers))
        return self._router.put(found, value, key, partition, timestamp, headers)

    def _serve_threads(
        self,
        home: object,
        ticket: type[RecordOutcome],
        soon: Callable[[Callable[[], object]], object],
    ) -> None:
        """Lets other threads put records: `home` is told to batches, `ticket` is made for each
        record, `soon` has the event loop call something."""
        self._accumulator.home = home
        self._accumulator.intake.ticket = ticket
        router = self._router
        router.announce = lambda queue: soon(partial(router.look_after, queue))

    def _put_from_thread(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
    ) -> RecordOutcome | None:
        """Puts a record that was prepared, from any thread; None when it takes the loop to do it.

        BufferFull when there is no room for it.
        """
        with self._accumulator.lock:
            # Under it neither a close nor the end of a transaction comes between look and put.
            found = self._cluster.topics.get(topic)
            if not self._started or found is None or topic in self._unresolved:
                return None
            if partition is not None and partition not in found.partitions:
                return None
            self._check_sending()
            return self._router.put(found, value, key, partition, timestamp, headers)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Sends everything now and waits until the fate of all records sent before is known.

        Errors are those of the deliveries; here only TimedOut is raised.
        """
        self._accumulator.hurry += 1
        try:
            self._sender.ready_all()
            pending = list(self._accumulator.pending)
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

        Without a time, delivery.timeout.ms is the limit. An open transaction is aborted. Whoever
        calls it once more waits for the same end.
        """
        if self._closed:
            await self._cluster.ended(timeout_ms)
            return
        self._closed = True
        started, self._started = self._started, False
        self._accumulator.hide_all()
        try:
            if started and self._runner is not None:
                await self._runner.leave(timeout_ms or _FAREWELL_MS)
            if started and timeout_ms != 0:
                await self.flush(timeout_ms)
        except TimedOut:
            pass
        finally:
            late = Closed("the producer was closed before the record was sent")
            self._sender.fail_all(late)
            self._accumulator.refuse_waiting(late)
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

    @property
    def trouble(self) -> ClientError | None:
        """What keeps records from being written, or the cluster from being known, while it is
        tried again; None when nothing does."""
        return self._sender.trouble or self._cluster.trouble

    async def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return sorted((await self._find(topic, self.settings.max_block_ms)).partitions)

    def _start(self) -> None:
        if self._closed:
            raise Closed("the producer was closed")
        self._cluster.start()
        self._sender.start()
        if self._runner is not None:
            self._runner.start()
        self._cluster.tasks.spawn(self._watch_for_the_end(), name="scriba-end")
        self._started = True

    async def _watch_for_the_end(self) -> None:
        """Says what is lost when the event loop ends and nobody has closed the producer."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if not self._closed:
                tell_unsent(self._accumulator.unsettled, "its event loop ended")

    # -- one record ------------------------------------------------------------------------------

    def _prepare(
        self, topic: str, value: Any, key: Any, headers: HeadersLike
    ) -> tuple[Any, Any, HeadersLike]:
        """Makes bytes of value and key, and pairs of the headers; raises if it cannot be sent."""
        if self._machine is not None:
            self._machine.check_send()
        value, key = self._router.serialized(topic, value, key)
        return value, key, read_headers(headers)[0] if headers else _NO_HEADERS

    def _check_sending(self, reserved: int = 0, parked: bool = False) -> None:
        """Raises unless a record may be put now, and gives back what was reserved for it; one that
        was parked was sent before and only waits for its place."""
        try:
            if self._closed and not parked:
                raise Closed("the producer was closed")
            if self._machine is not None:
                self._machine.check_send(parked)
        except ClientError:
            if reserved:
                self._accumulator.release(reserved)
            raise

    def _hidden(self, topic: str) -> bool:
        return topic in self._unresolved or not self._started

    def _put_parked(self, topic: Topic, parked: Parked, reserved: int = 0) -> Delivery:
        self._check_sending(reserved, parked=True)
        return self._router.put(topic, *parked, reserved)

    # -- topics that are not known yet -----------------------------------------------------------

    async def _find(self, topic: str, limit_ms: int) -> Topic:
        """The topic, after all records that were parked for it have found their places."""
        if not self._started:
            self._start()
        await self._unresolved.placed(topic)
        return await self._cluster.topic(topic, limit_ms)

    async def _look_again(self, topic: Topic, partition: int, limit_ms: int) -> Topic:
        """A partition that is not in the picture may have been added since it was made."""
        self._cluster.stale()
        await self._cluster.within(
            self._cluster.next_update(), limit_ms, f"metadata of {topic.name}"
        )
        found = self._cluster.topics.get(topic.name, topic)
        if partition not in found.partitions:
            raise no_partition(found, partition)
        return found

    async def _wait_for_room(self, size: int, limit_ms: int) -> None:
        self._accumulator.hurry += 1
        try:
            self._sender.ready_all()
            async with asyncio.timeout(limit_ms / 1000):
                await self._accumulator.room(size)
        except TimeoutError:
            raise BufferFull(
                f"no room for {size} bytes within max.block.ms={self.settings.max_block_ms}",
                size,
                fix="send less at once, or raise buffer.memory",
            ) from None
        finally:
            self._accumulator.hurry -= 1


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
