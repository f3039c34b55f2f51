"""InitProducerId with a transactional id: a producer becomes the only one under that id.

Whoever used the id before is fenced by a higher epoch. A transaction that is open is aborted
first; its caller is told to come again, and gets its epoch once the markers are written.
"""

from typing import Final

from scriba.errors import ErrorCode
from scriba.events import Event, EventKind
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token
from scriba.txn.ending import fence
from scriba.txn.messages import InitProducerIdWith, ProducerIdNeeded
from scriba.txn.state import NEVER_TIMES_OUT, State
from scriba.txn.states import (
    EMPTY,
    LAST_USED_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIME,
    ONGOING,
    PREPARED,
    Txn,
    stored,
)
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse

NO_FRESH_ID: Final = None


def init_with_id(
    state: State, again: InitProducerIdWith, token: Token, caller: Caller, now: Instant
) -> Outcome:
    return _init(state, again.request, token, now, again.fresh_producer_id)


def init_producer_id(
    state: State, request: InitProducerIdRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    return _init(state, request, token, now, NO_FRESH_ID)


def _init(
    state: State, request: InitProducerIdRequest, token: Token, now: Instant, fresh: int | None
) -> Outcome:
    tid = request.transactional_id
    code = _refuse(state, request)
    if code is not None or not tid:
        return _answer(token, code or ErrorCode.INVALID_REQUEST)
    timeout_ms = NEVER_TIMES_OUT if request.enable2_pc else request.transaction_timeout_ms
    txn = state.txns.get(tid)
    if txn is None:
        return _first(state, tid, timeout_ms, token, now, fresh)
    if txn.state in PREPARED:
        return _answer(token, ErrorCode.CONCURRENT_TRANSACTIONS)
    expected = request.producer_epoch if request.producer_id != NO_PRODUCER else None
    if expected is not None and not _may_ask(txn, request.producer_id, expected):
        return _answer(token, ErrorCode.PRODUCER_FENCED)
    if txn.state is ONGOING:
        outcome = fence(state, tid, txn, now, fresh)
        outcome.replies.append((token, _response(ErrorCode.CONCURRENT_TRANSACTIONS)))
        text = (
            f"epoch {txn.producer_epoch} of producer {txn.producer_id}: its open transaction ends"
        )
        outcome.events.append(Event(EventKind.PRODUCER_FENCED, tid, text))
        return outcome
    return _next_epoch(state, tid, txn, timeout_ms, expected, token, now, fresh)


def _refuse(state: State, request: InitProducerIdRequest) -> ErrorCode | None:
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.enable2_pc and not state.settings.two_phase_commit:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared_txn:
        # Declared in the protocol, served by no release of Kafka so far.
        return ErrorCode.UNSUPPORTED_VERSION
    if (
        not request.enable2_pc
        and not 0 < request.transaction_timeout_ms <= state.settings.max_timeout_ms
    ):
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return None


def _may_ask(txn: Txn, producer_id: int, epoch: int) -> bool:
    """Whether a producer that names itself is the id's, or was so until its epochs ran out."""
    return producer_id == txn.producer_id or (
        producer_id == txn.previous_producer_id and epoch >= LAST_USED_EPOCH
    )


def _first(
    state: State, tid: str, timeout_ms: int, token: Token, now: Instant, fresh: int | None
) -> Outcome:
    if fresh is None:
        raise ProducerIdNeeded
    return _store(
        state,
        tid,
        Txn(fresh, 0, timeout_ms, EMPTY, now.wall_ms, previous_producer_id=fresh),
        NO_EPOCH,
        token,
    )


def _next_epoch(
    state: State,
    tid: str,
    txn: Txn,
    timeout_ms: int,
    expected: int | None,
    token: Token,
    now: Instant,
    fresh: int | None,
) -> Outcome:
    producer_id, epoch = txn.producer_id, txn.producer_epoch
    last = state.last_epochs.get(tid, NO_EPOCH)
    if txn.exhausted and (expected is None or expected in (epoch, last)):
        if fresh is None:
            raise ProducerIdNeeded
        last = NO_EPOCH if expected is None else epoch
        producer_id, epoch = fresh, 0
    elif expected is None:
        last, epoch = NO_EPOCH, epoch + 1
    elif expected == epoch:
        last, epoch = epoch, epoch + 1
    elif expected != last:
        return _answer(token, ErrorCode.PRODUCER_FENCED)
    # Else it asks again because the answer was lost: it gets the same one. Nobody else can have
    # taken over since, or the last epoch would have been wiped out.
    following = txn.moved(
        EMPTY,
        now.wall_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NO_TIME,
    )
    return _store(state, tid, following, last, token)


def _store(state: State, tid: str, txn: Txn, last_epoch: int, token: Token) -> Outcome:
    if last_epoch == NO_EPOCH:
        state.last_epochs.pop(tid, None)
    else:
        state.last_epochs[tid] = last_epoch
    answer = InitProducerIdResponse(producer_id=txn.producer_id, producer_epoch=txn.producer_epoch)
    return Outcome(records=[stored(tid, txn)], replies=[(token, answer)])


def _response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)


def _answer(token: Token, code: ErrorCode) -> Outcome:
    return Outcome(replies=[(token, _response(code))])
