"""Runs a producer's transactions: the machine decides, coordinators are asked, the sender obeys.

    begin -> records and offsets -> commit: everything is flushed, then the coordinator is told
                                 -> abort:  what waits is dropped, what is in flight is awaited

Calls of several tasks are put in a row, so that an end comes before or after an offset commit and
never in the middle of one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from scriba.client.cluster import Cluster
from scriba.client.errors import AbortableTransactionError, TransactionError
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, to_commit
from scriba.client.producing.accumulator import Accumulator
from scriba.client.producing.batches import settled
from scriba.client.producing.sender import Sender
from scriba.client.settings import ProducerSettings
from scriba.client.transactions.machine import Identity, State, Transactions
from scriba.client.transactions.requests import TransactionCalls
from scriba.peers.errors import ClientError, TimedOut

log = logging.getLogger(__name__)

OffsetsLike = Mapping[tuple[str, int], int | OffsetAndMetadata]
"""Where a group goes on in each partition: the offset after the last record that was used."""

_UNDONE: Final = frozenset({State.OPEN, State.ABORTABLE, State.ABORTING})
_SETTLED: Final = frozenset({State.READY, State.OPEN})
"""What follows a commit that was done."""


class TransactionRunner:
    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        machine: Transactions,
        sender: Sender,
        accumulator: Accumulator,
        drop_parked: Callable[[ClientError], None],
    ) -> None:
        self.machine = machine
        self._cluster = cluster
        self._settings = settings
        self._sender = sender
        self._accumulator = accumulator
        self._drop_parked = drop_parked
        self._calls = TransactionCalls(cluster, settings, machine)
        self._row = asyncio.Lock()
        self._telling: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._cluster.tasks.spawn(self._tell_partitions(), name="scriba-transaction")

    async def initialize(self) -> None:
        async with self._row:
            self.machine.initialize()
            self.machine.initialized(await self._calls.initialize())

    async def begin(self) -> None:
        if self.machine.state in (State.UNINITIALIZED, State.INITIALIZING):
            await self.initialize()
        async with self._row:
            self.machine.begin(self._calls.implicit)

    async def send_offsets(self, offsets: OffsetsLike, group: ConsumerGroupMetadata | str) -> None:
        self.machine.check_offsets()
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group)
        read = to_commit(offsets)
        if not read:
            return
        async with self._row:
            self.machine.check_offsets()
            try:
                await self._calls.send_offsets(read, group)
            except TransactionError:
                self._give_up_records()
                raise

    async def commit(self) -> None:
        """Commits; after TimedOut it may be called again, to go on with it."""
        machine = self.machine
        machine.commit()
        self._accumulator.hide_all()  # what another thread is about to put is looked at again
        async with self._row:
            if machine.state in _SETTLED:
                return  # whoever called at the same time has done it
            machine.check_commit()
            if not machine.decided:
                await self._flush()
                machine.check_commit()
            identity = await self._calls.end(commit=True) if machine.touched else None
            self._end(identity)

    async def abort(self) -> None:
        """Aborts; after TimedOut it may be called again, to go on with it."""
        machine = self.machine
        machine.abort()
        self._accumulator.hide_all()
        self._give_up_records()
        if self._telling is not None:
            # Asked once more behind the end, it would open the next transaction.
            self._telling.cancel()
        async with self._row:
            if machine.state is not State.ABORTING:
                self._raise_failure()
                return
            await self._in_flight()
            identity: Identity | None = None
            if machine.touched and not machine.forgotten:
                try:
                    identity = await self._calls.end(commit=False)
                except AbortableTransactionError:
                    if not machine.forgotten:
                        raise
            if machine.needs_new_epoch:
                identity = await self._calls.initialize()
            self._end(identity)

    async def leave(self, timeout_ms: int) -> None:
        """Aborts what is open before the producer closes; else it would stay until its time-out."""
        machine = self.machine
        if machine.state in _UNDONE or (machine.state is State.COMMITTING and not machine.decided):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    try:
                        await self.abort()
                    except ClientError as failure:
                        log.warning("the open transaction was left behind: %s", failure)

    # -- parts of it -----------------------------------------------------------------------------

    def _end(self, identity: Identity | None) -> None:
        before = self.machine.identity
        self.machine.ended(identity)
        if self.machine.identity != before:
            self._sender.renumber()

    def _raise_failure(self) -> None:
        if self.machine.error is not None and self.machine.state is not State.ABORTING:
            raise self.machine.error.anew()

    def _give_up_records(self) -> None:
        """Fails what has not been sent, once the transaction cannot take it any more."""
        if not self.machine.sending:
            error = self.machine.error or AbortableTransactionError("the transaction was aborted")
            self._drop_parked(error)
            self._sender.drop_unsendable()

    async def _flush(self) -> None:
        self._accumulator.hurry += 1
        try:
            self._sender.ready_all()
            await self._in_flight()
        finally:
            self._accumulator.hurry -= 1

    async def _in_flight(self) -> None:
        """Waits until the fate of all records is known."""

        async def work() -> None:
            for batch in list(self._accumulator.pending):
                await settled(batch)

        await self._cluster.within(
            work(), self._settings.max_block_ms, "the acknowledgement of all records"
        )

    async def _tell_partitions(self) -> None:
        """Tells the coordinator of partitions before the first record goes there."""
        machine = self.machine
        while True:
            while not machine.missing:
                await self._sender.missing.wait()
            partitions = machine.telling()
            self._telling = asyncio.ensure_future(self._calls.add_partitions(partitions))
            try:
                await asyncio.wait([self._telling])
            finally:
                self._telling.cancel()
            if self._telling.cancelled():
                continue
            failure = self._telling.exception()
            if failure is None:
                if machine.sending:
                    machine.told(partitions)
                    self._sender.ready_all()
                continue
            if isinstance(failure, TimedOut):
                told = f"{machine.transactional_id}: adding partitions: {failure}"
                machine.fail(AbortableTransactionError(told, cause=failure))
            elif not isinstance(failure, TransactionError):
                raise failure
            self._give_up_records()


class Transaction:
    """One transaction as a block: committed at its end, aborted when an exception leaves it."""

    def __init__(self, runner: TransactionRunner) -> None:
        self._runner = runner

    async def send_offsets(self, offsets: OffsetsLike, group: ConsumerGroupMetadata | str) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        await self._runner.send_offsets(offsets, group)

    async def __aenter__(self) -> Self:
        await self._runner.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                await self._runner.commit()
            except AbortableTransactionError:
                await self._abort()
                raise
        else:
            await self._abort()

    async def _abort(self) -> None:
        """Aborts what is open. Why it is aborted goes on to the caller: that the abort failed, too,
        or that the block has ended the transaction itself, must not come in its place."""
        machine = self._runner.machine
        if machine.state not in _UNDONE and machine.state is not State.COMMITTING:
            return
        try:
            await self._runner.abort()
        except ClientError as failure:
            log.warning("%s: not aborted: %s", machine.transactional_id, failure)
