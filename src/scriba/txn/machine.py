"""The transaction coordinator of one partition of `__transaction_state`: a pure machine.

For each transactional id it knows one producer (id and epoch) and the state of that producer's
current or last transaction. `states.VALID` says which state may follow which:

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing -> ...
                     -> PrepareAbort  -> CompleteAbort  -> ...

A transaction is open from the first partition that joins it. It ends with the record PrepareCommit
or PrepareAbort. From then on its outcome stands, whatever fails: markers are sent to its
partitions until all are written or gone, by this shard or by the one that loads its records after
it. Only then can the next transaction begin; who tries before is told CONCURRENT_TRANSACTIONS.

Two generations of clients are served side by side. With transaction versions 0 and 1 a producer
keeps its epoch until somebody takes over its id or its time runs out. With version 2 (KIP-890)
every end of a transaction raises the epoch, and the markers carry the raised one, so that nothing
left over from one transaction can slip into the next.

Invariants: one outcome per (producer id, epoch) under version 2, and per transaction under the
others; an epoch never goes back for a producer id; markers carry the epoch that is stored with the
outcome; an id in a prepared state changes only by completing.

Never: answer InitProducerId with an epoch while a transaction of an older one is open or being
ended; send markers before their outcome is committed; forget an id whose transaction is not
complete.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from scriba.errors import ErrorCode, KafkaError
from scriba.events import Event, EventKind
from scriba.instant import ClockWatch, Instant
from scriba.outcome import Caller, Origin, Outcome, Token
from scriba.txn.beginning import init_producer_id, init_with_id
from scriba.txn.ending import end_txn, end_with_id, markers_written, time_out
from scriba.txn.facts import TxnSettings
from scriba.txn.listing import describe, list_transactions
from scriba.txn.messages import EndTxnWith, InitProducerIdWith, MarkersWritten, WriteMarkers
from scriba.txn.partitions import add_partitions
from scriba.txn.state import State
from scriba.txn.states import DEAD, ENDED, ONGOING, PREPARED, VALID, read, tombstone
from scriba.wire.messages.stored import TransactionLogKey, TransactionLogValue
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from scriba.wire.schema import Message

__all__ = ["MarkersWritten", "Transactions", "WriteMarkers"]

Handler = Callable[[State, Any, Token, Caller, Instant], Outcome]

HANDLERS: Final[Mapping[type[Message], Handler]] = {
    InitProducerIdRequest: init_producer_id,
    InitProducerIdWith: init_with_id,
    AddPartitionsToTxnRequest: add_partitions,
    EndTxnRequest: end_txn,
    EndTxnWith: end_with_id,
    MarkersWritten: markers_written,
    DescribeTransactionsRequest: describe,
    ListTransactionsRequest: list_transactions,
}

ABORTED_AT_ONCE: Final = 100
LOOKED_AT_AT_ONCE: Final = 2_000
"""What one tick does at most; the rest is done in the next one, at once."""


class Transactions:
    """Implements `outcome.Machine`."""

    def __init__(
        self, settings: TxnSettings, partition: int, watch: ClockWatch | None = None
    ) -> None:
        """`watch` says whether to believe the clock; without one it is watched from the load on."""
        self.state = State(settings, partition)
        self.state.clock_watch = watch

    @property
    def settings(self) -> TxnSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: TxnSettings) -> None:
        self.state.settings = settings

    def replay(self, key: Message, value: Message | None, origin: Origin) -> None:
        if not isinstance(key, TransactionLogKey):
            return
        if value is None:
            self.state.txns.pop(key.transactional_id, None)
        else:
            assert isinstance(value, TransactionLogValue)
            self.state.txns[key.transactional_id] = read(value)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, commit: bool
    ) -> Generator[None, None, None]:
        """No transaction ever writes to this topic."""
        yield from ()

    def loaded(self, now: Instant) -> Outcome:
        """Open transactions run on, and those whose outcome stands are brought to their end."""
        state = self.state
        state.clock_watch = state.clock_watch or ClockWatch(now)
        state.next_abort_ms = now.mono_ms
        state.next_expiry_ms = now.mono_ms + state.settings.expiry_interval_ms
        outcome = Outcome()
        for transactional_id, txn in state.txns.items():
            if txn.state is ONGOING:
                state.restart_clock(transactional_id, txn, now)
            elif txn.state in PREPARED:
                outcome.sends.append(state.markers(transactional_id, txn))
        return outcome

    def handle(self, request: Message, token: Token, caller: Caller, now: Instant) -> Outcome:
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{type(request).__name__} is not for this")
        return handler(self.state, request, token, caller, now)

    def tick(self, now: Instant) -> Outcome:
        outcome = Outcome(splittable=True)
        self._abort_overdue(outcome, now)
        self._expire(outcome, now)
        return outcome

    def _abort_overdue(self, outcome: Outcome, now: Instant) -> None:
        state = self.state
        if now.mono_ms < state.next_abort_ms:
            return
        for _ in range(ABORTED_AT_ONCE):
            first = state.first_due()
            if first is None or first[0] > now.mono_ms:
                state.next_abort_ms = now.mono_ms + state.settings.abort_interval_ms
                return
            aborted = time_out(state, first[1], now)
            outcome.records += aborted.records
            outcome.sends += aborted.sends
            outcome.events += aborted.events

    def _expire(self, outcome: Outcome, now: Instant) -> None:
        state = self.state
        watch = state.clock_watch
        if watch is None or state.next_expiry_ms is None or now.mono_ms < state.next_expiry_ms:
            return
        if not watch.believes(now):
            # Whoever is forgotten comes back with a producer id that fences nobody.
            if watch.surprised:
                text = f"jumped ahead by {watch.jump_ms} ms: no id is forgotten until it is right"
                outcome.events.append(
                    Event(EventKind.CLOCK_IN_DOUBT, "transaction coordinator", text)
                )
            state.expiring.clear()
            state.next_expiry_ms = now.mono_ms + state.settings.expiry_interval_ms
            return
        if not state.expiring:
            state.expiring = list(state.txns)
        before_ms = now.wall_ms - state.settings.expiration_ms
        for _ in range(min(LOOKED_AT_AT_ONCE, len(state.expiring))):
            transactional_id = state.expiring.pop()
            txn = state.txns.get(transactional_id)
            if txn is not None and txn.state in ENDED and txn.updated_ms <= before_ms:
                assert DEAD in VALID[txn.state]
                state.last_epochs.pop(transactional_id, None)
                outcome.records.append(tombstone(transactional_id))
                text = f"forgotten after {state.settings.expiration_ms} ms"
                outcome.events.append(
                    Event(EventKind.TRANSACTIONAL_ID_EXPIRED, transactional_id, text)
                )
        if not state.expiring:
            state.next_expiry_ms = now.mono_ms + state.settings.expiry_interval_ms

    def next_deadline(self) -> int | None:
        state = self.state
        first = state.first_due()
        abort_at = max(first[0], state.next_abort_ms) if first is not None else None
        expire_at = state.next_expiry_ms if state.txns else None
        return min((at for at in (abort_at, expire_at) if at is not None), default=None)

    def topics_changed(self, names: Iterable[str], now: Instant) -> Outcome:
        """A partition that is gone is found to be so when its marker is due."""
        return Outcome()
