"""The states of a transactional id, and the record that stores one.

What is stored is Kafka's `TransactionLogValue`: who produces (id and epoch), what state the
current or last transaction is in, and its partitions until every one of them has its marker.
"""

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from scriba.outcome import Change
from scriba.txn.messages import TopicPartition
from scriba.wire.messages.stored import PartitionsSchema, TransactionLogKey, TransactionLogValue

NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
MAX_EPOCH: Final = 32_767
LAST_USED_EPOCH: Final = MAX_EPOCH - 1
"""The last epoch that a producer is given: one more is left to fence it with."""

TV_WITH_EPOCH_BUMP: Final = 2
"""From this transaction version on every transaction has an epoch of its own (KIP-890)."""


class TxnState(enum.IntEnum):
    """Numbered as in the log, named as in requests."""

    label: str

    def __new__(cls, number: int, label: str) -> "TxnState":
        member = int.__new__(cls, number)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"


EMPTY, ONGOING = TxnState.EMPTY, TxnState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TxnState.DEAD, TxnState.PREPARE_EPOCH_FENCE

VALID: Final[dict[TxnState, frozenset[TxnState]]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    DEAD: frozenset(),
}
"""State -> states that may follow it.

PrepareAbort follows a state without an open transaction only under version 2, where a producer may
have written to a partition before the coordinator heard of it. Two states are never stored: an
epoch fence is passed through in the step that stores PrepareAbort, and a dead id has a tombstone.
"""

PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
ENDED: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open or being ended: a new one may begin, or the id be forgotten."""

BY_LABEL: Final = {state.label: state for state in TxnState}
_BY_NUMBER: Final = {int(state): state for state in TxnState}


class Txn(NamedTuple):
    """A transactional id with its current or last transaction."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TxnState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER
    """The producer id before the last change, which differs when that change replaced it."""
    next_producer_id: int = NO_PRODUCER
    """While a transaction ends: the id that its producer goes on with, its epochs being used up."""
    client_version: int = 0
    """The transaction version of the client that began or ended the transaction."""

    @property
    def exhausted(self) -> bool:
        return self.producer_epoch >= LAST_USED_EPOCH

    def moved(self, state: TxnState, now_ms: int, **changes: object) -> "Txn":
        """This id after a transition; every one of them remembers whose id it changed."""
        assert state in VALID[self.state], f"{self.state.label} to {state.label}"
        return self._replace(
            state=state,
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            **changes,  # type: ignore[arg-type]
        )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """In an order that does not depend on the process."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def stored(transactional_id: str, txn: Txn) -> Change:
    partitions = None
    if txn.state is not EMPTY:
        partitions = [
            PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic(txn.partitions).items()
        ]
    return Change(
        TransactionLogKey(transactional_id=transactional_id),
        TransactionLogValue(
            producer_id=txn.producer_id,
            previous_producer_id=txn.previous_producer_id,
            next_producer_id=txn.next_producer_id,
            producer_epoch=txn.producer_epoch,
            transaction_timeout_ms=txn.timeout_ms,
            transaction_status=txn.state,
            transaction_partitions=partitions,
            transaction_last_update_timestamp_ms=txn.updated_ms,
            transaction_start_timestamp_ms=txn.started_ms,
            client_transaction_version=txn.client_version,
        ),
    )


def tombstone(transactional_id: str) -> Change:
    return Change(TransactionLogKey(transactional_id=transactional_id), None)


def read(value: TransactionLogValue) -> Txn:
    return Txn(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=_BY_NUMBER[value.transaction_status],
        updated_ms=value.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            (topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
