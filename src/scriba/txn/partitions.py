"""AddPartitionsToTxn: partitions join a transaction, or are asked whether they are part of it.

The first one opens the transaction. Requests come in the shape of version 4 and later, where one
holds several transactions; the shell turns older ones, and AddOffsetsToTxn, into that shape.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Final

from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, at_once
from scriba.txn.messages import TopicPartition
from scriba.txn.state import State
from scriba.txn.states import ENDED, ONGOING, PREPARED, TV_WITH_EPOCH_BUMP, Txn, stored
from scriba.wire.messages.txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FIRST_FROM_BROKERS: Final = 4
"""Before this version clients themselves say where they are going to write."""


def add_partitions(
    state: State, request: AddPartitionsToTxnRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    version = TV_WITH_EPOCH_BUMP if caller.version >= FIRST_FROM_BROKERS else 0
    outcome = Outcome()
    changed: dict[str, Txn] = {}
    results = []
    for asked in request.transactions:
        wanted = frozenset((t.name, index) for t in asked.topics for index in t.partitions)
        txn = changed.get(asked.transactional_id) or state.txns.get(asked.transactional_id)
        if asked.verify_only:
            results.append(grouped(asked.transactional_id, _verify(txn, asked, wanted)))
            continue
        code = _refuse(txn, asked)
        if code is None and txn is not None and not _has(txn, wanted):
            following = _add(state, asked.transactional_id, txn, wanted, version, now)
            changed[asked.transactional_id] = following
            outcome.records.append(stored(asked.transactional_id, following))
        results.append(result_of(asked, dict.fromkeys(wanted, code or ErrorCode.NONE)))
    outcome.replies.append((token, AddPartitionsToTxnResponse(results_by_transaction=results)))
    return outcome


def _refuse(txn: Txn | None, asked: AddPartitionsToTxnTransaction) -> ErrorCode | None:
    if not asked.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if txn is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.state in PREPARED:
        # Before the epoch is looked at: it may be the next one, and its time is about to come.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.producer_id != asked.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.producer_epoch != asked.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return None


def _has(txn: Txn, wanted: frozenset[TopicPartition]) -> bool:
    return txn.state is ONGOING and wanted <= txn.partitions


def _add(
    state: State,
    tid: str,
    txn: Txn,
    wanted: frozenset[TopicPartition],
    version: int,
    now: Instant,
) -> Txn:
    started_ms = txn.started_ms
    if txn.state in ENDED:
        started_ms = now.wall_ms
        state.began(tid, txn.timeout_ms, now.mono_ms)
    return txn.moved(
        ONGOING,
        now.wall_ms,
        partitions=txn.partitions | wanted,
        started_ms=started_ms,
        client_version=version,
    )


def _verify(
    txn: Txn | None, asked: AddPartitionsToTxnTransaction, wanted: frozenset[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """A write is about to be taken: is its partition part of the producer's transaction?"""
    if not asked.transactional_id:
        return dict.fromkeys(wanted, ErrorCode.INVALID_REQUEST)
    if txn is None or txn.producer_id != asked.producer_id:
        return dict.fromkeys(wanted, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != asked.producer_epoch:
        return dict.fromkeys(wanted, ErrorCode.PRODUCER_FENCED)
    if txn.state in PREPARED:
        return dict.fromkeys(wanted, ErrorCode.CONCURRENT_TRANSACTIONS)
    return {
        each: ErrorCode.NONE if each in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for each in wanted
    }


def grouped(
    transactional_id: str, codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    return at_once(grouping(transactional_id, codes))


def grouping(
    transactional_id: str, codes: dict[TopicPartition, ErrorCode]
) -> Generator[None, None, AddPartitionsToTxnResult]:
    """The answer for one transaction whose partitions fare differently: each is told of once."""
    result = AddPartitionsToTxnResult(transactional_id=transactional_id)
    for topic in (yield from each_once(codes)):
        answers = []
        for index in sorted(topic.partitions):
            yield
            code = codes[topic.name, index]
            answers.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
        result.topic_results.append(
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=answers)
        )
    return result


def each_once(
    partitions: Iterable[TopicPartition],
) -> Generator[None, None, list[AddPartitionsToTxnTopic]]:
    """By topic, in the order of their names."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        yield
        topics.setdefault(topic, []).append(index)
    return [AddPartitionsToTxnTopic(name=name, partitions=topics[name]) for name in sorted(topics)]


def result_of(
    asked: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, int]
) -> AddPartitionsToTxnResult:
    return at_once(resulting(asked, codes))


def resulting(
    asked: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, int]
) -> Generator[None, None, AddPartitionsToTxnResult]:
    """The answer for one transaction in the shape of the question."""
    result = AddPartitionsToTxnResult(transactional_id=asked.transactional_id)
    for topic in asked.topics:
        answers = []
        for index in topic.partitions:
            yield
            code = codes[topic.name, index]
            answers.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            )
        result.topic_results.append(
            AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=answers)
        )
    return result
