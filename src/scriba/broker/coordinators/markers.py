"""Transaction markers: what a coordinator has decided, written into the partitions concerned.

What a coordinator has decided is final, so its markers are written until each partition has one
or is gone. Few markers are appended at once, in the step that committed the decision; many go a
slice at a time. When all are covered by the high watermark the coordinator is told. If its shard is
gone by then, nobody is told: whoever loads the decision from the log sends the markers again, and a
marker that comes twice does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.partitions.ports import PartitionAccess
from scriba.broker.ports import BackgroundTasks, EventLog, MetadataView, Timekeeping
from scriba.broker.request import Context, broker_context
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.records.batch import EndTxnMarker, end_txn_batch, read_header
from scriba.records.header import set_log_append_time
from scriba.runtime.loop.pace import Pace
from scriba.runtime.watermark import Watermark
from scriba.txn.messages import MarkersWritten, TopicPartition, WriteMarkers
from scriba.wire.apis import ApiKey
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.coordinators.runtime import CoordinatorRuntime

AT_ONCE: Final = 16
"""Markers of one transaction, and transactions, that are taken up in one go; what is more than that
gives way in between."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
MARKERS_VERSION: Final = 2
NOBODYS_MARKER: Final = "a marker needs a producer and its epoch"

_ENDED_BY_OTHERS: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""A later epoch was there: what was open has an end, which an operator may have put."""

Covered = tuple[Watermark, int]
"""A high watermark, and the offset that it is to reach."""


class MarkerReceiver(Protocol):
    """The group coordinators, whose offsets may be part of a transaction."""

    @property
    def topic(self) -> str: ...

    def marker_appended(
        self, index: int, producer_id: int, producer_epoch: int, commit: bool
    ) -> None: ...


class MarkerTarget(PartitionAccess, Timekeeping, Protocol):
    """What appending a marker takes."""

    @property
    def group_coordinators(self) -> MarkerReceiver: ...


class MarkerHost(BackgroundTasks, EventLog, MarkerTarget, MetadataView, Protocol):
    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...


def append_marker(
    node: MarkerTarget,
    where: TopicPartition,
    producer: tuple[int, int],
    marker: EndTxnMarker,
    transaction_version: int,
) -> Covered:
    """Ends a producer's transaction in one partition; one synchronous step."""
    topic, index = where
    partition = node.replicas.find(topic, index)
    leader = partition.check_leader(-1)
    settings = partition.settings
    if not leader.in_sync(settings.min_insync_replicas):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    if min(producer) < 0:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, NOBODYS_MARKER)
    partition.log.producers.check_marker_epoch(*producer, transaction_version)
    now = node.world.clock.now()
    view = memoryview(end_txn_batch(*producer, marker, now.wall_ms))
    header = read_header(view)
    if settings.message_timestamp_type == "LogAppendTime":
        header = set_log_append_time(view, 0, header, now.wall_ms)
    appended = partition.append(view, header, now)
    if topic == node.group_coordinators.topic:
        node.group_coordinators.marker_appended(index, *producer, marker.commit)
    return partition.high_watermark, appended.last_offset + 1


class TransactionMarkers:
    def __init__(self, node: MarkerHost) -> None:
        self._node = node
        self._ending: dict[str, asyncio.Future[None]] = {}
        """Transactional ids whose markers are being written; done when the next may begin."""
        self._this_turn = 0
        """Transactions taken up in this turn of the loop."""
        self._queue: deque[tuple[WriteMarkers, int, asyncio.Future[None]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        node.txn_coordinators.on_send = self.carry_out

    # ---- markers ----

    def carry_out(self, send: WriteMarkers, epoch: int) -> None:
        """Writes the markers of a transaction, for the coordinator of this leader epoch."""
        loop = asyncio.get_running_loop()
        ending: asyncio.Future[None] = loop.create_future()
        self._ending[send.transactional_id] = ending
        self._this_turn += 1
        if self._this_turn == 1:
            loop.call_soon(self._next_turn)
        if self._this_turn <= AT_ONCE and not self._queue:
            self._begin(send, epoch, ending)
            return
        # A shard that was loaded may have thousands to end: they take their turn with the rest.
        self._queue.append((send, epoch, ending))
        if self._worker is None or self._worker.done():
            self._worker = self._node.tasks.spawn(self._work(), name="markers")

    def _next_turn(self) -> None:
        self._this_turn = 0

    async def _work(self) -> None:
        pace = Pace(self._node.world.clock)
        while self._queue:
            await pace()
            send, epoch, ending = self._queue.popleft()
            if self._is_current(send.partition, epoch):
                self._begin(send, epoch, ending)
            else:
                self._over(send, ending)

    def _begin(self, send: WriteMarkers, epoch: int, ending: asyncio.Future[None]) -> None:
        if len(send.partitions) <= AT_ONCE:
            waits, again = self._append(send, epoch, send.partitions)
            if not waits and not again:
                self._complete(send, ending)
                return
            work = self._see_through(send, epoch, again, waits, ending)
        else:
            work = self._see_through(send, epoch, send.partitions, [], ending)
        self._node.tasks.spawn(work, name=f"markers of {send.transactional_id}")

    def _append(
        self, send: WriteMarkers, epoch: int, partitions: Iterable[TopicPartition]
    ) -> tuple[list[Covered], list[TopicPartition]]:
        """What has to be waited for, and what has to be tried again."""
        waits: list[Covered] = []
        again: list[TopicPartition] = []
        marker = EndTxnMarker(send.commit, epoch)
        producer = (send.producer_id, send.producer_epoch)
        for where in partitions:
            if self._is_gone(where):
                continue
            try:
                covered = append_marker(
                    self._node, where, producer, marker, send.transaction_version
                )
            except KafkaError as error:
                if error.code not in _ENDED_BY_OTHERS:
                    again.append(where)
                if not error.retriable:
                    about = f"{where[0]}-{where[1]}"
                    self._node.note(EventKind.MARKER_REFUSED, about, str(error))
                continue
            if covered[0].value < covered[1]:
                waits.append(covered)
        return waits, again

    def _is_gone(self, where: TopicPartition) -> bool:
        topic = self._node.image.topics_by_name.get(where[0])
        return topic is None or where[1] not in topic.partitions

    async def _see_through(
        self,
        send: WriteMarkers,
        epoch: int,
        left: Sequence[TopicPartition],
        waits: list[Covered],
        ending: asyncio.Future[None],
    ) -> None:
        pace = Pace(self._node.world.clock)
        pause_s = FIRST_PAUSE_S
        unsure = list(send.partitions)
        try:
            while True:
                again: list[TopicPartition] = []
                for start in range(0, len(left), AT_ONCE):
                    await pace()
                    more, failed = self._append(send, epoch, left[start : start + AT_ONCE])
                    waits += more
                    again += failed
                if not await _reached(waits):
                    again = unsure  # a partition moved or failed: its marker may be lost
                if not again:
                    self._complete(send, ending)
                    return
                left, waits = again, []
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if not self._is_current(send.partition, epoch):
                    return
        finally:
            self._over(send, ending)

    def _is_current(self, index: int, epoch: int) -> bool:
        partition = self._node.replicas.get(self._node.txn_coordinators.topic, index)
        return (
            partition is not None
            and partition.leader is not None
            and partition.leader_epoch == epoch
        )

    def _complete(self, send: WriteMarkers, ending: asyncio.Future[None]) -> None:
        done = MarkersWritten(
            transactional_id=send.transactional_id,
            producer_id=send.producer_id,
            producer_epoch=send.producer_epoch,
            commit=send.commit,
        )
        try:
            answer = self._node.txn_coordinators.begin(send.partition, done, self._context())
        except KafkaError:
            pass  # the shard is gone: the one that comes after it sends the markers again
        else:
            if not isinstance(answer, Message):
                self._node.tasks.spawn(_heard(answer), name="completed transaction")
        self._over(send, ending)

    def _over(self, send: WriteMarkers, ending: asyncio.Future[None]) -> None:
        if self._ending.get(send.transactional_id) is ending:
            del self._ending[send.transactional_id]
        if not ending.done():
            ending.set_result(None)

    def _context(self) -> Context:
        now_ms = self._node.world.clock.mono_ms()
        return broker_context(ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, now_ms)

    async def ended(self, transactional_id: str, longest_ms: int) -> None:
        """Returns when the markers are written, or it has taken so long."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            await asyncio.sleep(longest_ms / 1000)
        else:
            await asyncio.wait([ending], timeout=longest_ms / 1000)


async def _reached(waits: list[Covered]) -> bool:
    results = await asyncio.gather(
        *(watermark.reach(end) for watermark, end in waits), return_exceptions=True
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, KafkaError):
            raise failure
    return not failures


async def _heard(answer: Awaitable[Message]) -> None:
    """Nothing depends on it: what is not stored now is stored when the shard is loaded."""
    with contextlib.suppress(KafkaError):
        await answer
