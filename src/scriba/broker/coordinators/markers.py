"""Transaction markers: what a coordinator has decided, written into the partitions concerned.

What a coordinator has decided is final, so its markers are written until each partition has one
or is gone. A partition that this broker leads gets its marker by a call: few at once, in the step
that committed the decision; many in slices. For the others their leaders are asked by
WriteTxnMarkers, one request at a time to each broker with all that has come up for it
(`marker_routes`). Where the answer is slow, since a follower of one partition has stalled, the next
request goes by another connection and leaves that partition out: it holds up nobody but itself.
Each partition is tried by itself: again after a while, or as soon as its leader has changed,
however the rest of its transaction fares.

When the high watermarks cover all of them the coordinator is told. If its shard is gone by then,
nobody is told: whoever loads the decision from the log sends the markers again, and a marker that
comes twice does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.coordinators.marker_routes import (
    NOBODY,
    Batch,
    Ending,
    MarkerQueue,
    Retry,
    Route,
    codes_of,
    ready,
    request_of,
    route,
    same_for_all,
)
from scriba.broker.partitions.ports import PartitionAccess
from scriba.broker.ports import (
    BackgroundTasks,
    BrokerAccess,
    BrokerIdentity,
    EventLog,
    MetadataView,
    Timekeeping,
)
from scriba.broker.request import Context, broker_context
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.peers.errors import BrokerError, ClientError
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
REMOTE_AT_ONCE: Final = 1_000
"""Markers of one request to another broker."""
FIRST_PAUSE_MS: Final = 25
LONGEST_PAUSE_MS: Final = 2_000
TOGETHER_MS: Final = 25
"""Markers that are due within so long are tried again together."""
SLOW_MS: Final = 50
"""After which an answer is no longer waited for before the next request."""
MOST_IN_FLIGHT: Final = 8
"""Requests to one broker without an answer, each on its own connection."""
MARKERS_VERSION: Final = 2
PURPOSE: Final = "markers"
"""The connection for them: the answer waits for high watermarks, and whatever shares it as well."""
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


class MarkerHost(
    BackgroundTasks,
    BrokerAccess,
    BrokerIdentity,
    EventLog,
    MarkerTarget,
    MetadataView,
    Protocol,
):
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
    _, last_offset, _, _ = partition.append(view, header, now)
    if topic == node.group_coordinators.topic:
        node.group_coordinators.marker_appended(index, *producer, marker.commit)
    return partition.high_watermark, last_offset + 1


class TransactionMarkers:
    def __init__(self, node: MarkerHost) -> None:
        self._node = node
        self._ending: dict[str, tuple[Ending, asyncio.Future[None]]] = {}
        """By transactional id what is being ended, and what is done when the next may begin."""
        self._this_turn = 0
        """Transactions taken up in this turn of the loop."""
        self._queue: deque[Ending] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._remote: dict[int, MarkerQueue] = {}
        """By broker, while there is something to tell it."""
        self._later: list[Retry] = []
        self._retrier: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        """Set when it is worth looking whether a marker can be tried again before its time."""
        node.txn_coordinators.on_send = self.carry_out

    # ---- transactions ----

    def carry_out(self, send: WriteMarkers, epoch: int) -> None:
        """Writes the markers of a transaction, for the coordinator of this leader epoch."""
        loop = asyncio.get_running_loop()
        ending = Ending(send, epoch)
        earlier = self._ending.get(send.transactional_id)
        if earlier is not None:  # the shard was loaded again
            self._over(earlier[0])
        self._ending[send.transactional_id] = ending, loop.create_future()
        self._this_turn += 1
        if self._this_turn == 1:
            loop.call_soon(self._next_turn)
        few = len(send.partitions) <= AT_ONCE
        if few and self._this_turn <= AT_ONCE and not self._queue:
            for where in send.partitions:
                self._write(ending, where)
            self._complete_if_done(ending)
            return
        # A shard that was loaded may have thousands to end: they take their turn with the rest.
        self._queue.append(ending)
        if self._worker is None or self._worker.done():
            self._worker = self._node.tasks.spawn(self._work(), name="markers")

    def _next_turn(self) -> None:
        self._this_turn = 0

    async def _work(self) -> None:
        pace = Pace(self._node.world.clock)
        while self._queue:
            ending = self._queue.popleft()
            for where in ending.send.partitions:
                await pace()
                if not self._is_current(ending):
                    self._over(ending)
                    break
                self._write(ending, where)
            self._complete_if_done(ending)

    def _is_current(self, ending: Ending) -> bool:
        """Whether the coordinator that asked still leads."""
        if ending.over:
            return False
        topic = self._node.txn_coordinators.topic
        partition = self._node.replicas.get(topic, ending.send.partition)
        return (
            partition is not None
            and partition.leader is not None
            and partition.leader_epoch == ending.epoch
        )

    def _complete_if_done(self, ending: Ending) -> None:
        if ending.over or ending.left:
            return
        send = ending.send
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
        self._over(ending)

    def _over(self, ending: Ending) -> None:
        ending.over = True
        tid = ending.send.transactional_id
        known = self._ending.get(tid)
        if known is not None and known[0] is ending:
            del self._ending[tid]
            if not known[1].done():
                known[1].set_result(None)

    def _context(self) -> Context:
        now_ms = self._node.world.clock.mono_ms()
        return broker_context(ApiKey.WRITE_TXN_MARKERS, MARKERS_VERSION, now_ms)

    async def ended(self, transactional_id: str, longest_ms: float) -> None:
        """Returns when the markers are written, or it has taken so long."""
        ending = self._ending.get(transactional_id)
        if ending is None:
            await asyncio.sleep(longest_ms / 1000)
        else:
            await asyncio.wait([ending[1]], timeout=longest_ms / 1000)

    # ---- one partition of one transaction ----

    def _write(self, ending: Ending, where: TopicPartition) -> None:
        """Has the marker written by whoever leads the partition; by a call where that is us."""
        leader = route(self._node.image, where)
        if leader is None:
            del ending.left[where]  # the partition is gone, and with it what was open there
        elif leader.broker_id == self._node.id:
            self._append(ending, where, leader)
        elif leader.broker_id == NOBODY:
            self._again(ending, where, leader)
        else:
            self._ask(leader.broker_id, ending, where)

    def _append(self, ending: Ending, where: TopicPartition, leader: Route) -> None:
        send = ending.send
        try:
            watermark, end = append_marker(
                self._node,
                where,
                (send.producer_id, send.producer_epoch),
                EndTxnMarker(send.commit, ending.epoch),
                send.transaction_version,
            )
        except KafkaError as error:
            self._judge(ending, where, error.code, error.message, leader)
            return
        if watermark.value >= end:
            del ending.left[where]
        else:
            covered = watermark.reach(end)
            covered.add_done_callback(partial(self._covered, ending, where, leader))

    def _covered(
        self, ending: Ending, where: TopicPartition, leader: Route, done: asyncio.Future[None]
    ) -> None:
        if done.cancelled() or ending.over:
            return
        failure = done.exception()
        if failure is not None and not isinstance(failure, KafkaError):
            raise failure
        # A partition that moved or failed may have lost its marker.
        code = ErrorCode.NONE if failure is None else failure.code
        self._judge(ending, where, code, "", leader)
        self._complete_if_done(ending)

    def _judge(
        self, ending: Ending, where: TopicPartition, code: ErrorCode, text: str, tried: Route | None
    ) -> None:
        """A partition has its marker, or has no need of one, or is tried again."""
        if ending.over or where not in ending.left:
            return
        if code is not ErrorCode.NONE and not code.retriable:
            about = f"{where[0]}-{where[1]}"
            self._node.note(EventKind.MARKER_REFUSED, about, text or code.text)
        if code is ErrorCode.NONE or code in _ENDED_BY_OTHERS:
            del ending.left[where]
        else:
            self._again(ending, where, tried)

    # ---- partitions of other brokers ----

    def _ask(self, broker_id: int, ending: Ending, where: TopicPartition) -> None:
        queue = self._remote.get(broker_id)
        if queue is None:
            queue = self._remote[broker_id] = MarkerQueue()
            work = self._send_to(broker_id, queue)
            self._node.tasks.spawn(work, name=f"markers for broker {broker_id}")
        queue.add(ending, where)

    async def _send_to(self, broker_id: int, queue: MarkerQueue) -> None:
        """All that comes up for a broker while it is asked goes with the next request, which waits
        for the answer to the one before, but not for a slow one."""
        in_flight: dict[asyncio.Task[None], int] = {}
        while True:
            while len(in_flight) < MOST_IN_FLIGHT and (waiting := queue.take(REMOTE_AT_ONCE)):
                queue.hold(where for _, where in waiting)
                slot = min(set(range(MOST_IN_FLIGHT)) - set(in_flight.values()))
                work = self._ask_for(broker_id, queue, waiting, slot)
                asking = self._node.tasks.spawn(work, name=f"markers {slot} for {broker_id}")
                in_flight[asking] = slot
                await asyncio.wait([asking], timeout=SLOW_MS / 1000)
                in_flight = {task: slot for task, slot in in_flight.items() if not task.done()}
            if not in_flight:
                break
            changed = queue.changed.wait()
            await asyncio.wait([*in_flight, changed], return_when=asyncio.FIRST_COMPLETED)
            in_flight = {task: slot for task, slot in in_flight.items() if not task.done()}
        del self._remote[broker_id]

    async def _ask_for(
        self,
        broker_id: int,
        queue: MarkerQueue,
        waiting: Sequence[tuple[Ending, TopicPartition]],
        slot: int,
    ) -> None:
        pace = Pace(self._node.world.clock)
        try:
            batch = self._still_led(broker_id, waiting)
            results = await self._markers_of(broker_id, batch, slot) if batch else ()
        finally:
            queue.release(where for _, where in waiting)
        for ending, where, code in results:
            await pace()
            text = f"broker {broker_id}: {code.text}"
            self._judge(ending, where, code, text, batch[ending][where])
        for ending in batch:
            self._complete_if_done(ending)

    def _still_led(self, broker_id: int, waiting: Iterable[tuple[Ending, TopicPartition]]) -> Batch:
        """What the broker is asked for; a partition that moved meanwhile goes to its new leader."""
        batch: Batch = {}
        for ending, where in waiting:
            leader = route(self._node.image, where)
            if leader is not None and leader.broker_id == broker_id:
                batch.setdefault(ending, {})[where] = leader
            else:
                self._write(ending, where)
                self._complete_if_done(ending)
        return batch

    async def _markers_of(
        self, broker_id: int, batch: Batch, slot: int
    ) -> Iterator[tuple[Ending, TopicPartition, ErrorCode]]:
        try:
            purpose = f"{PURPOSE} {slot}" if slot else PURPOSE
            response = await self._node.channels.call(broker_id, request_of(batch), purpose=purpose)
        except ClientError as error:
            code = error.code if isinstance(error, BrokerError) else ErrorCode.NETWORK_EXCEPTION
            return same_for_all(batch, code)
        return codes_of(batch, response)

    # ---- trying again ----

    def metadata_changed(self) -> None:
        """A partition may have another leader, who is asked without delay."""
        self._moved.set()

    def _again(self, ending: Ending, where: TopicPartition, tried: Route | None) -> None:
        tries = ending.left[where]
        ending.left[where] = tries + 1
        pause_ms = min(FIRST_PAUSE_MS << min(tries, 8), LONGEST_PAUSE_MS)
        due_ms = self._node.world.clock.mono_ms() + pause_ms
        self._later.append(Retry(ending, where, due_ms + -due_ms % TOGETHER_MS, tried))
        if self._retrier is None or self._retrier.done():
            self._retrier = self._node.tasks.spawn(self._retry(), name="markers tried again")
        else:
            self._moved.set()  # it may sleep for longer than this one is to wait

    async def _retry(self) -> None:
        clock = self._node.world.clock
        pace = Pace(clock)
        while self._later:
            due_ms = min(retry.due_ms for retry in self._later)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, due_ms - clock.mono_ms()) / 1000):
                    await self._moved.wait()
            self._moved.clear()
            now, self._later = ready(self._later, self._node.image, clock.mono_ms())
            for ending, where, _, _ in now:
                await pace()
                if not self._is_current(ending):
                    self._over(ending)
                    continue
                self._write(ending, where)
                self._complete_if_done(ending)


async def _heard(answer: Awaitable[Message]) -> None:
    """Nothing depends on it: what is not stored now is stored when the shard is loaded."""
    with contextlib.suppress(KafkaError):
        await answer
