"""DescribeTransactions and ListTransactions: what an operator asks. Nothing is changed.

Patterns and unknown names of states are for the shell, which sees the answers of all shards.
"""

from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token
from scriba.txn.state import State
from scriba.txn.states import BY_LABEL, Txn, by_topic
from scriba.wire.messages.txn import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    TopicData,
)


def describe(
    state: State, request: DescribeTransactionsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    answer = DescribeTransactionsResponse(
        transaction_states=[
            _described(tid, state.txns.get(tid)) for tid in request.transactional_ids
        ]
    )
    return Outcome(replies=[(token, answer)])


def _described(tid: str, txn: Txn | None) -> DescribeTransactionsResponseTransactionState:
    if txn is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if tid else ErrorCode.INVALID_REQUEST
        return DescribeTransactionsResponseTransactionState(transactional_id=tid, error_code=code)
    return DescribeTransactionsResponseTransactionState(
        transactional_id=tid,
        transaction_state=txn.state.label,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.started_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(txn.partitions).items()
        ],
    )


def list_transactions(
    state: State, request: ListTransactionsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    producers = frozenset(request.producer_id_filters)
    labels = frozenset(request.state_filters)
    states = frozenset(BY_LABEL[label] for label in labels if label in BY_LABEL)
    longer_ms = request.duration_filter
    found = [
        ListTransactionsResponseTransactionState(
            transactional_id=tid, producer_id=txn.producer_id, transaction_state=txn.state.label
        )
        for tid, txn in state.txns.items()
        if (not producers or txn.producer_id in producers)
        and (not labels or txn.state in states)
        and (longer_ms < 0 or now.wall_ms - txn.started_ms > longer_ms)
    ]
    return Outcome(replies=[(token, ListTransactionsResponse(transaction_states=found))])
