"""Takes ripe batches to the leaders of their partitions, and settles what becomes of them.

Every broker that leads something is a destination: a task collects one batch per partition into a
request and posts it while fewer than `max.in.flight.requests.per.connection` are unanswered. Each
answer is settled when it comes: acknowledged, put back to be sent again after a pause, split
in two, or failed. Whatever happens in between (a new leader, a lost connection, a broker that
forgot the producer), a batch ends within `delivery.timeout.ms`.

Order: a batch that is put back goes before all younger ones of its partition. With idempotence the
broker refuses what comes out of order (see `sequences`); without it, order is kept only when one
request is in flight.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from scriba.client.cluster import NO_NODE, Cluster, Node
from scriba.client.errors import AbortableTransactionError
from scriba.client.producing.accumulator import Accumulator, Queue
from scriba.client.producing.batches import Batch
from scriba.client.producing.explanations import PATIENCE_MS, Explanations, explainable
from scriba.client.producing.producer_id import ProducerIdentity
from scriba.client.producing.request import (
    IN_VAIN,
    OUT_OF_STEP,
    WRITTEN_PERHAPS,
    WRONG_PICTURE,
    Awaited,
    produce_request,
)
from scriba.client.producing.sequences import SequenceNumbers
from scriba.client.settings import ProducerSettings
from scriba.client.transactions.machine import State, Transactions
from scriba.errors import ErrorCode, error_code
from scriba.peers.connection import Connection
from scriba.peers.errors import BrokerError, ClientError, TimedOut
from scriba.peers.ports import Backoff, Signal
from scriba.records.compression import Codec
from scriba.wire.messages.produce import PartitionProduceResponse, ProduceResponse

log = logging.getLogger(__name__)

_OFFLOAD_BYTES: Final = 1 << 16
_EXPIRY_CHECKS: Final = 50
"""How often within delivery.timeout.ms expired batches are looked for."""

_SOON_MS: Final = 5
"""First pause while the last transaction is being ended, or a new leader is yet to hear that it is
one: neither takes long."""


class _Destination:
    """What is on its way to one broker."""

    __slots__ = ("in_flight", "node", "queues", "wake")

    def __init__(self, node: int) -> None:
        self.node = node
        self.queues: dict[Queue, None] = {}
        self.wake = asyncio.Event()
        self.in_flight = 0


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        codec: Codec,
        level: int | None,
        transactions: Transactions | None = None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._codec = codec
        self._level = level
        self._acks = -1 if settings.acks == "all" else int(settings.acks)
        self._window = settings.max_in_flight_requests_per_connection
        self._clock = cluster.ports.clock
        self._backoff = Backoff(
            cluster.ports.rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms
        )
        self._soon = Backoff(cluster.ports.rng, _SOON_MS, settings.retry_backoff_max_ms)
        self._destinations: dict[int, _Destination] = {}
        self._homeless: dict[Queue, None] = {}
        """Queues with something to send whose partition has no known leader."""
        self._failure: ClientError | None = None
        """Why something is being sent again; None once something has arrived."""
        self._explanations = Explanations(cluster, settings)
        self._identity = ProducerIdentity(cluster)
        self._transactions = transactions
        self.missing = Signal()
        """Wakes whoever tells the coordinator of the transaction's partitions."""

    def start(self) -> None:
        self._cluster.tasks.spawn(self._follow_leaders(), name="scriba-leaders")
        self._cluster.tasks.spawn(self._expire(), name="scriba-expiry")

    @property
    def trouble(self) -> ClientError | None:
        """What keeps records from being written at the moment."""
        if not self._accumulator.pending:
            return None
        if self._failure is None and self._homeless:
            where = next(iter(self._homeless)).where
            code = self._cluster.errors.get(where.topic, ErrorCode.LEADER_NOT_AVAILABLE)
            return BrokerError(code, about=str(where))
        return self._failure

    def ready(self, queue: Queue) -> None:
        """Tells that a queue may have a ripe batch."""
        leader = self._cluster.leader(queue.where)
        if leader == NO_NODE or leader not in self._cluster.nodes:
            self._homeless[queue] = None
            self._cluster.want(queue.where.topic)  # it may have been forgotten meanwhile
            self._cluster.stale()
            return
        destination = self._destinations.get(leader)
        if destination is None:
            destination = self._destinations[leader] = _Destination(leader)
            self._cluster.tasks.spawn(self._run(destination), name=f"scriba-send-{leader}")
        destination.queues[queue] = None
        destination.wake.set()

    def _ready_again(self, queue: Queue) -> None:
        """The same for one that paused: what waited there may be gone, with the producer."""
        if queue.waiting:
            self.ready(queue)

    def ready_all(self) -> None:
        for queue in self._accumulator.queues():
            self._accumulator.absorb(queue)
            if queue.waiting:
                self.ready(queue)

    # -- destinations ----------------------------------------------------------------------------

    async def _run(self, destination: _Destination) -> None:
        idempotent = self._settings.enable_idempotence and self._transactions is None
        while True:
            await destination.wake.wait()
            destination.wake.clear()
            try:
                connection = await self._cluster.connect(destination.node)
                while destination.in_flight < self._window and destination.queues:
                    # Here and not before: the wait for a connection may bring the first queue.
                    if idempotent:
                        await self._identity.get()
                    if batches := self._collect(destination):
                        await self._post(destination, connection, batches)
            except ClientError as failure:
                log.debug("destination to broker %d: %s", destination.node, failure)
                self._failure = failure
                if self._identity.refused is not None:
                    self.fail_all(self._identity.refused)
                self._reroute(destination)

    def _reroute(self, destination: _Destination) -> None:
        """The broker cannot be reached: each queue finds its leader anew when that is known."""
        queues, destination.queues = destination.queues, {}
        for queue in queues:
            if self._cluster.leader(queue.where) == destination.node:
                self._homeless[queue] = None
            else:
                self.ready(queue)
        self._cluster.stale()

    def _collect(self, destination: _Destination) -> list[tuple[Queue, Batch]]:
        """One ripe batch of each queue, as many as fit a request; a queue with more stays."""
        now = self._clock.mono_ms()
        taken: list[tuple[Queue, Batch]] = []
        size = 0
        for queue in list(destination.queues):
            if self._cluster.leader(queue.where) != destination.node:
                del destination.queues[queue]
                self.ready(queue)
                continue
            batch = self._next(queue, now)
            if batch is None:
                del destination.queues[queue]
                continue
            length = len(batch.data) if batch.data is not None else batch.size
            if taken and size + length > self._settings.max_request_size:
                break
            size += length
            # What is left goes behind the others, so that no partition waits for a busy one.
            del destination.queues[queue]
            taken.append((queue, self._accumulator.take(queue)))
            destination.queues[queue] = None
        return taken

    def _next(self, queue: Queue, now: int) -> Batch | None:
        """The next batch of a queue, numbered; None when nothing may be sent now."""
        batch = self._accumulator.ripe(queue, now)
        if batch is None:
            return None
        if not self._settings.enable_idempotence:
            return None if self._window == 1 and queue.in_flight else batch
        transactions = self._transactions
        if transactions is not None and not self._may_leave(queue, transactions):
            return None
        sequences = queue.sequences
        if sequences is None:
            identity = self._identity.current if transactions is None else transactions.identity
            if identity is None:  # another partition has used it up since it was asked for
                asyncio.get_running_loop().call_soon(self._ready_again, queue)
                return None
            sequences = queue.sequences = SequenceNumbers(*identity)
        may = sequences.may_send(batch, len(queue.in_flight))
        if sequences.broken and not queue.in_flight and transactions is None:
            # Only now: what was in flight has been refused and is back in the queue.
            may = self._restart(queue, sequences)
        if not may:
            return None
        if not batch.numbered:
            # First closed: a record that another thread added after this would have no number.
            self._accumulator.close_batch(queue, batch)
            sequences.give(batch)
        return batch

    def _may_leave(self, queue: Queue, transactions: Transactions) -> bool:
        """Whether the transaction lets something of this partition go."""
        if not transactions.sending:
            return False
        if not transactions.admits(queue.where):
            self.missing.wake()
            return False
        return True

    def _restart(self, queue: Queue, sequences: SequenceNumbers) -> bool:
        fresh = None
        if sequences.exhausted:
            current = self._identity.current
            if current is None or current[0] == sequences.producer_id:
                self._identity.current = None
                asyncio.get_running_loop().call_soon(self.ready, queue)
                return False
            fresh = current
        sequences.restart([batch for batch in queue.waiting if batch.numbered], fresh)
        log.info("%s: sequences start again at epoch %d", queue.where, sequences.epoch)
        return True

    async def _post(
        self, destination: _Destination, connection: Connection, taken: list[tuple[Queue, Batch]]
    ) -> None:
        try:
            for _, batch in taken:
                if batch.data is None and not batch.finished:
                    await self._encode(batch)
            taken = [(queue, batch) for queue, batch in taken if self._may_go(queue, batch)]
            if not taken:
                return
            version, request, where = produce_request(
                connection, self._cluster.topics, taken, self._transactions
            )
            request.acks = self._acks
            request.timeout_ms = self._settings.request_timeout_ms
            if self._acks == 0:
                self._settle_unanswered(
                    destination, taken, connection.post_unanswered(request, version=version)
                )
                return
            answer = connection.post(request, ProduceResponse, version=version)
        except ClientError as failure:
            for queue, batch in taken:
                self._again(queue, batch, failure)
            raise
        destination.in_flight += 1
        answer.add_done_callback(partial(self._settle, destination, where))

    def _may_go(self, queue: Queue, batch: Batch) -> bool:
        """Whether a batch can still be sent, after it was made ready."""
        if batch.finished:
            self._landed(queue, batch)
        elif queue.where.topic not in self._cluster.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._again(queue, batch, BrokerError(code, about=str(queue.where)))
        else:
            return True
        return False

    async def _encode(self, batch: Batch) -> None:
        size = batch.size
        builder = batch.take_builder()
        how = (builder, self._codec, self._level, self._transactions is not None)
        if self._codec != Codec.NONE and size >= _OFFLOAD_BYTES:
            data = await self._cluster.ports.offload.run(batch.build, *how)
        else:
            data = batch.build(*how)
        if not batch.finished:
            batch.data = data
        if self._codec != Codec.NONE:
            self._accumulator.topic(batch.where.topic).learn_ratio(len(data) / size)

    # -- answers ---------------------------------------------------------------------------------

    def _settle(
        self, destination: _Destination, where: Awaited, answer: "asyncio.Future[ProduceResponse]"
    ) -> None:
        destination.in_flight -= 1
        if destination.queues:
            destination.wake.set()
        if answer.cancelled():
            return
        failure = answer.exception()
        if isinstance(failure, ClientError):
            self._cluster.stale()
            for queue, batch in where.values():
                self._again(queue, batch, failure, uncertain=True)
        else:
            response = answer.result()
            nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
            for topic in response.responses:
                for partition in topic.partition_responses:
                    found = where.pop((topic.topic_id, partition.index), None)
                    found = found or where.pop((topic.name, partition.index), None)
                    if found is not None:
                        self._judge(*found, partition, nodes)
            for queue, batch in where.values():
                silence = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "no word on the partition")
                self._again(queue, batch, silence, uncertain=True)

    def _settle_unanswered(
        self,
        destination: _Destination,
        taken: list[tuple[Queue, Batch]],
        sent: "asyncio.Future[None] | None",
    ) -> None:
        """Batches for which no answer comes are acknowledged when they are with the kernel: what
        still lies in this process would be lost with the connection, and needs memory."""
        if sent is None:
            for queue, batch in taken:
                self._acknowledge(queue, batch, -1, -1)
            return

        def settle(sent: "asyncio.Future[None]") -> None:
            destination.in_flight -= 1
            if destination.queues:
                destination.wake.set()
            if sent.cancelled():
                return
            failure = sent.exception()
            for queue, batch in taken:
                if isinstance(failure, ClientError):
                    self._again(queue, batch, failure, uncertain=True)
                else:
                    self._acknowledge(queue, batch, -1, -1)

        destination.in_flight += 1
        sent.add_done_callback(settle)

    def _judge(
        self, queue: Queue, batch: Batch, said: PartitionProduceResponse, nodes: Iterable[Node]
    ) -> None:
        """Settles one batch by the broker's word on it."""
        code = error_code(said.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge(queue, batch, said.base_offset, said.log_append_time_ms)
            return
        error = BrokerError(code, said.error_message, about=str(queue.where))
        sequences = queue.sequences
        if code == ErrorCode.MESSAGE_TOO_LARGE and self._may_split(queue, batch):
            self._split(queue, batch)
        elif code in OUT_OF_STEP and sequences is not None and sequences.written(batch):
            self._acknowledge(queue, batch, -1, -1)  # longer ago than the broker remembers
        elif code in OUT_OF_STEP and sequences is not None:
            if code == ErrorCode.UNKNOWN_PRODUCER_ID:
                sequences.forgotten(batch)
            else:
                sequences.out_of_order(batch)
            # Within a transaction counting cannot start again: that takes its end.
            final = self._transactions is not None and sequences.broken
            self._again(queue, batch, error, final=final)
        elif code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self._again(queue, batch, error, pause=self._soon.after(batch.attempts))
        else:
            pause = None
            if code in WRONG_PICTURE:
                new = said.current_leader
                if self._cluster.learn_leader(queue.where, new.leader_id, new.leader_epoch, nodes):
                    pause = 0
                elif self._cluster.is_behind(queue.where, new.leader_epoch):
                    # The one before has named it; it hears of that within milliseconds.
                    pause = self._soon.after(batch.attempts)
                self._cluster.stale()
            elif code in IN_VAIN:
                self._cluster.stale()
            refused = {e.batch_index: e.batch_index_error_message for e in said.record_errors}
            maybe = code in WRITTEN_PERHAPS
            self._again(queue, batch, error, uncertain=maybe, pause=pause, refused=refused)

    def _may_split(self, queue: Queue, batch: Batch) -> bool:
        """Whether a batch that is too large may go in parts. Not one that is in the log perhaps
        (the limit was lowered since): a broker knows it by its numbers as a whole, and would take
        its parts for something new."""
        perhaps_written = batch.uncertain and queue.sequences is not None
        return batch.count > 1 and not batch.finished and not perhaps_written

    def _split(self, queue: Queue, batch: Batch) -> None:
        log.info("%s: a batch of %d records was too large: split", queue.where, batch.count)
        self._landed(queue, batch)
        parts = self._accumulator.split(queue, batch)
        if queue.sequences is not None:
            queue.sequences.divide(batch, parts)
        self.ready(queue)

    def _acknowledge(self, queue: Queue, batch: Batch, offset: int, append_time: int) -> None:
        self._landed(queue, batch)
        self._failure = None
        if queue.sequences is not None:
            queue.sequences.acknowledged(batch)
        if not batch.finished:
            self._accumulator.succeed(batch, offset, append_time)
        if queue.waiting:
            self.ready(queue)

    def _again(
        self,
        queue: Queue,
        batch: Batch,
        failure: ClientError,
        *,
        uncertain: bool = False,
        pause: int | None = None,
        final: bool | None = None,
        refused: dict[int, str | None] | None = None,
    ) -> None:
        """Puts a batch back for another try after a pause, or fails it for good.

        It is for good when its time or its tries are used up, or when the failure is `final`,
        which is what the failure itself says unless the caller knows better. `uncertain` tells
        that a broker may have written the batch without saying so, `pause` how long to wait where
        that is known, `refused` which records the broker found fault with.
        """
        self._landed(queue, batch)
        batch.uncertain = batch.uncertain or uncertain
        now = self._clock.mono_ms()
        if batch.finished:
            if queue.waiting:
                self.ready(queue)
            return
        if final is None:
            final = not failure.retriable
        if self._transactions is not None and not self._transactions.sending:
            final = True
        if now - batch.created >= self._settings.delivery_timeout_ms:
            self._give_up(queue, batch, self._too_late(batch, self._cause(failure)))
            return
        if final or batch.attempts >= self._settings.retries:
            self._give_up(queue, batch, failure, refused)
            return
        log.debug("%s: trying again after %s", queue.where, failure)
        self._failure = self._cause(failure)
        if pause is None:
            pause = self._backoff.after(batch.attempts)
        batch.attempts += 1
        queue.put_back(batch)
        queue.blocked_until = max(queue.blocked_until, now + pause)
        asyncio.get_running_loop().call_later(pause / 1000, self._ready_again, queue)

    def _cause(self, failure: ClientError) -> ClientError:
        """What to tell of a failure: batches behind one that was refused are refused for the gap
        that it leaves, which explains nothing."""
        out_of_step = isinstance(failure, BrokerError) and failure.code in OUT_OF_STEP
        return self._failure or failure if out_of_step else failure

    def _give_up(
        self,
        queue: Queue,
        batch: Batch,
        error: ClientError,
        record_errors: dict[int, str | None] | None = None,
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.given_up(batch)
        told = self.lost(error, batch.numbered)

        def end() -> None:
            if not batch.finished:
                self._accumulator.fail(batch, told, record_errors)

        if explainable(error):
            left = batch.created + self._settings.delivery_timeout_ms - self._clock.mono_ms()
            self._explanations.add(queue.where, told, left, end)
        else:
            end()
        if queue.waiting:
            self.ready(queue)

    def _landed(self, queue: Queue, batch: Batch) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)

    def _too_late(self, batch: Batch, cause: ClientError | None = None) -> TimedOut:
        because = f"; the last failure: {cause}" if cause else ""
        limit = self._settings.delivery_timeout_ms
        return TimedOut(f"{batch.where}: not delivered within {limit} ms{because}", cause=cause)

    # -- background ------------------------------------------------------------------------------

    async def _follow_leaders(self) -> None:
        """After each update of the picture, sends the queues that had no leader on their way."""
        while True:
            await self._cluster.next_update()
            homeless, self._homeless = self._homeless, {}
            for queue in homeless:
                if queue.waiting:
                    self.ready(queue)
            if self._homeless:
                self._cluster.stale()

    async def _expire(self) -> None:
        """Fails what has not been delivered in time, in whatever state it is."""
        limit = self._settings.delivery_timeout_ms
        pause = min(max(limit // _EXPIRY_CHECKS, 1), 1000) / 1000
        ahead = min(PATIENCE_MS + 1000, limit // 2)
        while True:
            await asyncio.sleep(pause)
            oldest = self._clock.mono_ms() - limit
            for queue in list(self._accumulator.queues()):
                if any(b.created <= oldest + ahead for b in queue.batches()):
                    self._explanations.look(queue.where)
                for batch in [b for b in queue.batches() if b.created <= oldest]:
                    if batch.finished:
                        continue
                    if batch in queue.in_flight:
                        batch.uncertain = True
                    else:
                        queue.waiting.remove(batch)
                    self._give_up(queue, batch, self._too_late(batch))

    # -- transactions ----------------------------------------------------------------------------

    def lost(self, failure: ClientError, numbered: bool = False) -> ClientError:
        """A record was given up: what that is for its sender. It spoils an open transaction."""
        if self._transactions is None:
            return failure
        error = self._transactions.lost(failure, numbered)
        self.drop_unsendable()
        return error

    def drop_unsendable(self) -> None:
        """Fails what waits for a transaction that can no longer take it."""
        transactions = self._transactions
        if transactions is None or transactions.sending:
            return
        error: ClientError | None = transactions.error
        if error is None or transactions.state is State.ABORTING:
            error = AbortableTransactionError("the transaction was aborted", fix="send it again")
        for queue in self._accumulator.queues():
            self._accumulator.absorb(queue)
            for batch in queue.waiting:
                transactions.dropped(batch.numbered)
                self._accumulator.fail(batch, error, told=True)
            queue.waiting.clear()

    def renumber(self) -> None:
        """The identity changed between two transactions: every partition counts from zero.

        What was given up while it was on its way is answered later, or never; no broker takes it
        any more, and nothing waits for it.
        """
        for queue in self._accumulator.queues():
            assert all(batch.finished for batch in queue.in_flight)
            queue.in_flight.clear()
            queue.sequences = None

    def fail_all(self, error: ClientError) -> None:
        """Fails everything that is not settled."""
        for queue in self._accumulator.queues():
            self._accumulator.absorb(queue)
            queue.waiting.clear()
        for batch in list(self._accumulator.pending):
            self._accumulator.fail(batch, error)
