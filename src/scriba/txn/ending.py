"""How a transaction ends: by its producer, by a newer producer, or because its time is up.

The decision is the stored PrepareCommit or PrepareAbort: once that is committed nothing can change
it, the client may be told, and the markers follow. When all are written the transaction is
complete. Under version 2 the decision also raises the producer's epoch, so that the markers fence
whatever of this transaction is still on its way.
"""

from scriba.errors import ErrorCode
from scriba.events import Event, EventKind
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token
from scriba.txn.messages import EndTxnWith, MarkersNoted, MarkersWritten, ProducerIdNeeded
from scriba.txn.state import State
from scriba.txn.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    LAST_USED_EPOCH,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    PREPARED,
    TV_WITH_EPOCH_BUMP,
    Txn,
    stored,
)
from scriba.wire.messages.txn import EndTxnRequest, EndTxnResponse

FIRST_WITH_EPOCH_BUMP = 5


def end_with_id(
    state: State, again: EndTxnWith, token: Token, caller: Caller, now: Instant
) -> Outcome:
    return _end(state, again.request, token, caller, now, again.fresh_producer_id)


def end_txn(
    state: State, request: EndTxnRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    return _end(state, request, token, caller, now, None)


def _end(
    state: State,
    request: EndTxnRequest,
    token: Token,
    caller: Caller,
    now: Instant,
    fresh: int | None,
) -> Outcome:
    tid = request.transactional_id
    if not tid:
        return _answer(token, ErrorCode.INVALID_REQUEST)
    txn = state.txns.get(tid)
    if txn is None:
        return _answer(token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if caller.version < FIRST_WITH_EPOCH_BUMP:
        return _end_classic(state, txn, request, token, now)
    return _end_bumping(state, txn, request, token, now, fresh)


def _end_classic(
    state: State, txn: Txn, request: EndTxnRequest, token: Token, now: Instant
) -> Outcome:
    """Versions 0 to 4: the producer keeps its epoch over all of its transactions."""
    if txn.producer_id != request.producer_id:
        return _answer(token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != request.producer_epoch:
        return _answer(token, ErrorCode.PRODUCER_FENCED)
    if txn.state in PREPARED:
        return _answer(token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn.state is ONGOING:
        target = PREPARE_COMMIT if request.committed else PREPARE_ABORT
        prepared = txn.moved(target, now.wall_ms, client_version=0, next_producer_id=NO_PRODUCER)
        outcome = _prepare(state, request.transactional_id, prepared, now)
        outcome.replies.append((token, EndTxnResponse()))
        return outcome
    same = txn.state is (COMPLETE_COMMIT if request.committed else COMPLETE_ABORT)
    return _answer(token, ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE)


def _end_bumping(
    state: State,
    txn: Txn,
    request: EndTxnRequest,
    token: Token,
    now: Instant,
    fresh: int | None,
) -> Outcome:
    """Version 5 and later: ending a transaction gives its producer the epoch of the next one."""
    if txn.state in PREPARED:
        return _answer(token, ErrorCode.CONCURRENT_TRANSACTIONS)
    epoch = request.producer_epoch
    rotated = (
        txn.previous_producer_id == request.producer_id
        and epoch == LAST_USED_EPOCH
        and txn.producer_epoch == 0
    )
    if txn.producer_id != request.producer_id and not rotated:
        return _answer(token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    complete = txn.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    # The answer to the last EndTxn was lost: the producer still has the epoch before.
    again = complete and (rotated or txn.producer_epoch == epoch + 1)
    if not again and txn.producer_epoch != epoch:
        return _answer(token, ErrorCode.PRODUCER_FENCED)
    if again:
        if txn.state is not (COMPLETE_COMMIT if request.committed else COMPLETE_ABORT):
            return _answer(token, ErrorCode.INVALID_TXN_STATE)
        if txn.producer_epoch == MAX_EPOCH:
            # Aborted by time-out with its last epoch: there is none to go on with.
            return _answer(token, ErrorCode.PRODUCER_FENCED)
        return _answer(token, ErrorCode.NONE, txn)
    if request.committed and txn.state is not ONGOING:
        return _answer(token, ErrorCode.INVALID_TXN_STATE)
    if txn.exhausted and fresh is None:
        raise ProducerIdNeeded
    target = PREPARE_COMMIT if request.committed else PREPARE_ABORT
    prepared = txn.moved(
        target,
        now.wall_ms,
        producer_epoch=txn.producer_epoch + 1,
        next_producer_id=fresh if txn.exhausted else NO_PRODUCER,
        client_version=TV_WITH_EPOCH_BUMP,
        started_ms=txn.started_ms if txn.state is ONGOING else now.wall_ms,
    )
    state.last_epochs[request.transactional_id] = txn.producer_epoch
    outcome = _prepare(state, request.transactional_id, prepared, now)
    outcome.replies.append((token, _going_on(prepared)))
    return outcome


def fence(state: State, tid: str, txn: Txn, now: Instant, fresh: int | None) -> Outcome:
    """Aborts an open transaction from this side, with an epoch that its producer does not have.

    That epoch is never given out: a producer that comes for one gets the next.
    """
    fencing = txn.moved(PREPARE_EPOCH_FENCE, now.wall_ms)
    bumping = state.settings.transaction_version >= TV_WITH_EPOCH_BUMP
    next_producer_id = NO_PRODUCER
    if bumping:
        if txn.exhausted and fresh is not None:
            next_producer_id = fresh
        state.last_epochs[tid] = txn.producer_epoch
    else:
        state.last_epochs.pop(tid, None)
    prepared = fencing.moved(
        PREPARE_ABORT,
        now.wall_ms,
        producer_epoch=min(txn.producer_epoch + 1, MAX_EPOCH),
        next_producer_id=next_producer_id,
        client_version=state.settings.transaction_version if bumping else 0,
    )
    return _prepare(state, tid, prepared, now)


def time_out(state: State, tid: str, now: Instant) -> Outcome:
    txn = state.txns[tid]
    # Without a fresh id: a producer whose last epoch was taken gets one when it comes back.
    outcome = fence(state, tid, txn, now, None)
    text = f"aborted after {txn.timeout_ms} ms; producer {txn.producer_id} is fenced"
    outcome.events.append(Event(EventKind.TRANSACTION_TIMED_OUT, tid, text))
    return outcome


def _prepare(state: State, tid: str, prepared: Txn, now: Instant) -> Outcome:
    state.over(tid)
    if not prepared.partitions:
        # Nobody to tell, so nothing to wait for.
        return Outcome(records=[stored(tid, prepared), stored(tid, _completed(prepared, now))])
    return Outcome(records=[stored(tid, prepared)], sends=[state.markers(tid, prepared)])


def _completed(txn: Txn, now: Instant) -> Txn:
    rotates = txn.client_version >= TV_WITH_EPOCH_BUMP and txn.next_producer_id != NO_PRODUCER
    return txn.moved(
        COMPLETE_COMMIT if txn.state is PREPARE_COMMIT else COMPLETE_ABORT,
        now.wall_ms,
        producer_id=txn.next_producer_id if rotates else txn.producer_id,
        producer_epoch=0 if rotates else txn.producer_epoch,
        next_producer_id=NO_PRODUCER,
        partitions=frozenset(),
    )


def markers_written(
    state: State, done: MarkersWritten, token: Token, caller: Caller, now: Instant
) -> Outcome:
    outcome = Outcome(replies=[(token, MarkersNoted())])
    tid = done.transactional_id
    txn = state.txns.get(tid)
    if (
        txn is not None
        and txn.state is (PREPARE_COMMIT if done.commit else PREPARE_ABORT)
        and (txn.producer_id, txn.producer_epoch) == (done.producer_id, done.producer_epoch)
    ):
        outcome.records.append(stored(tid, _completed(txn, now)))
    return outcome


def _going_on(txn: Txn) -> EndTxnResponse:
    """With whom the producer's next transaction begins."""
    if txn.next_producer_id != NO_PRODUCER:
        return EndTxnResponse(producer_id=txn.next_producer_id, producer_epoch=0)
    return EndTxnResponse(producer_id=txn.producer_id, producer_epoch=txn.producer_epoch)


def _answer(token: Token, code: ErrorCode, txn: Txn | None = None) -> Outcome:
    answer = EndTxnResponse(
        error_code=code,
        producer_id=NO_PRODUCER if txn is None else txn.producer_id,
        producer_epoch=NO_EPOCH if txn is None else txn.producer_epoch,
    )
    return Outcome(replies=[(token, answer)])
