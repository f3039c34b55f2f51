"""Transactions: what producers ask of their coordinator, and operators of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable
from typing import TYPE_CHECKING, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.coordinators.internal_topics import make_internal_topic
from scriba.broker.coordinators.markers import NOBODYS_MARKER, Covered, append_marker
from scriba.broker.coordinators.shard import partition_for
from scriba.broker.handlers.brokers import require_broker
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.regex.search import matching
from scriba.groups.regex.syntax import Expression
from scriba.outcome import at_once
from scriba.records.batch import EndTxnMarker
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.txn.messages import EndTxnWith, ProducerIdNeeded, TopicPartition
from scriba.txn.partitions import each_once, grouped, grouping, result_of, resulting
from scriba.txn.states import BY_LABEL
from scriba.wire.messages.txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import TransactionHandling

FIRST_WITH_FENCED: Final = 2
"""Older clients know INVALID_PRODUCER_EPOCH, not PRODUCER_FENCED (KIP-588)."""
FIRST_FROM_BROKERS: Final = 4
"""From this version on AddPartitionsToTxn comes from brokers, for several transactions."""
AT_ONCE: Final = 1_000
"""Partitions that are added to a transaction without looking at the clock."""
STRAGGLERS_MS: Final = 500
"""How long markers that are covered wait for others of the same request, which are not."""


def fenced_as(code: int, known: bool) -> int:
    """The code for a client that may be too old for PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and not known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# ---- AddPartitionsToTxn, AddOffsetsToTxn ----


def add_partitions_to_txn(
    node: TransactionHandling, ctx: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    if ctx.version >= FIRST_FROM_BROKERS:
        require_broker(node, ctx)
        return Deferred(_add_to_several(node, ctx, request.transactions))
    asked = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    result = _add(node, ctx, asked)
    if isinstance(result, AddPartitionsToTxnResult):
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)
    return Deferred(_add_later(result))


async def _add_later(adding: Awaitable[AddPartitionsToTxnResult]) -> AddPartitionsToTxnResponse:
    result = await adding
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)


async def _add_to_several(
    node: TransactionHandling, ctx: Context, asked: list[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    """All are begun before any is waited for: they are replicated together."""
    begun: list[AddPartitionsToTxnResult | asyncio.Future[AddPartitionsToTxnResult]] = []
    pace = Pace(node.world.clock)
    for each in asked:
        await pace()
        result = _add(node, ctx, each)
        if isinstance(result, AddPartitionsToTxnResult):
            begun.append(result)
        else:
            begun.append(asyncio.ensure_future(result))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            each if isinstance(each, AddPartitionsToTxnResult) else await each for each in begun
        ]
    )


def _add(
    node: TransactionHandling, ctx: Context, asked: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult | Awaitable[AddPartitionsToTxnResult]:
    topics = asked.topics
    if len(topics) > AT_ONCE or sum(len(topic.partitions) for topic in topics) > AT_ONCE:
        return _add_many(node, ctx, asked)
    wrong, codes = at_once(_judging(node, ctx, asked))
    if wrong:
        return grouped(asked.transactional_id, codes)
    return _ask_to_add(node, ctx, asked)


async def _add_many(
    node: TransactionHandling, ctx: Context, asked: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    """As `_add`, a slice at a time, but for what the coordinator does: to each partition once,
    however often it is named."""
    pace = Pace(node.world.clock)
    wrong, codes = await in_slices(_judging(node, ctx, asked), pace)
    if wrong:
        return await in_slices(grouping(asked.transactional_id, codes), pace)
    once = AddPartitionsToTxnTransaction(
        transactional_id=asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        verify_only=asked.verify_only,
        topics=await in_slices(each_once(codes), pace),
    )
    result = _ask_to_add(node, ctx, once)
    if not isinstance(result, AddPartitionsToTxnResult):
        result = await result
    if asked.verify_only:
        return result
    told = await in_slices(_codes_of(result), pace)
    return await in_slices(resulting(asked, told), pace)


def _codes_of(
    result: AddPartitionsToTxnResult,
) -> Generator[None, None, dict[TopicPartition, int]]:
    codes: dict[TopicPartition, int] = {}
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            yield
            codes[topic.name, partition.partition_index] = partition.partition_error_code
    return codes


def _ask_to_add(
    node: TransactionHandling, ctx: Context, asked: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult | Awaitable[AddPartitionsToTxnResult]:
    request = AddPartitionsToTxnRequest(transactions=[asked])
    try:
        answer = node.txn_coordinators.begin(
            node.txn_coordinators.partition_of(asked.transactional_id), request, ctx
        )
    except KafkaError as error:
        return result_of(asked, dict.fromkeys(_partitions(asked.topics), error.code))
    if isinstance(answer, Message):
        return _added(ctx, answer)
    return _added_later(ctx, asked, answer)


async def _added_later(
    ctx: Context, asked: AddPartitionsToTxnTransaction, answer: Awaitable[Message]
) -> AddPartitionsToTxnResult:
    try:
        return _added(ctx, await answer)
    except KafkaError as error:
        return result_of(asked, dict.fromkeys(_partitions(asked.topics), error.code))


def _added(ctx: Context, answer: Message) -> AddPartitionsToTxnResult:
    assert isinstance(answer, AddPartitionsToTxnResponse)
    (result,) = answer.results_by_transaction
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            partition.partition_error_code = fenced_as(
                partition.partition_error_code, ctx.version >= FIRST_WITH_FENCED
            )
    return result


def _judging(
    node: TransactionHandling, ctx: Context, asked: AddPartitionsToTxnTransaction
) -> Generator[None, None, tuple[bool, dict[TopicPartition, ErrorCode]]]:
    """Whether one of the partitions cannot be added, and codes for all: all join, or none."""
    access = node.access
    from_client = ctx.version < FIRST_FROM_BROKERS
    denied = from_client and not access.allowed(
        ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, asked.transactional_id
    )
    wrong = False
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic, index in _partitions(asked.topics):
        yield
        known = node.image.topics_by_name.get(topic)
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
        if denied:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif from_client and (
            topic in node.internal_topics
            or not access.allowed(ctx, Operation.WRITE, Resource.TOPIC, topic)
        ):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif known is None or index not in known.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wrong = wrong or code is not ErrorCode.OPERATION_NOT_ATTEMPTED
        codes[topic, index] = code
    return wrong, codes


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> Iterable[TopicPartition]:
    return ((topic.name, index) for topic in topics for index in topic.partitions)


def refuse_add_partitions(
    request: AddPartitionsToTxnRequest, code: ErrorCode, text: str
) -> AddPartitionsToTxnResponse:
    older = AddPartitionsToTxnTransaction(topics=request.v3_and_below_topics)
    return AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=result_of(
            older, dict.fromkeys(_partitions(older.topics), code)
        ).topic_results,
    )


def add_offsets_to_txn(
    node: TransactionHandling, ctx: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Deferred[AddOffsetsToTxnResponse]:
    access = node.access
    tid, group = request.transactional_id, request.group_id
    if not access.allowed(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return AddOffsetsToTxnResponse(error_code=code)
    if not access.allowed(ctx, Operation.READ, Resource.GROUP, group):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return Deferred(_add_offsets(node, ctx, request))


async def _add_offsets(
    node: TransactionHandling, ctx: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """The group's offsets are one more partition that the transaction writes to.

    One that the coordinator does not know is gone when markers are written, so their topic is made
    before it is named.
    """
    await make_internal_topic(node, node.group_coordinators.topic)
    offsets = node.image.topics_by_name.get(node.group_coordinators.topic)
    if offsets is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    asked = AddPartitionsToTxnTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        topics=[
            AddPartitionsToTxnTopic(
                name=node.group_coordinators.topic,
                partitions=[partition_for(request.group_id, len(offsets.partitions))],
            )
        ],
    )
    classic = Context(
        ctx.principal, ctx.listener, ctx.client_id, ctx.host, ctx.api, 0, ctx.received
    )
    answer = await node.txn_coordinators.ask(
        request.transactional_id, AddPartitionsToTxnRequest(transactions=[asked]), classic
    )
    assert isinstance(answer, AddPartitionsToTxnResponse)
    ((topic,),) = [result.topic_results for result in answer.results_by_transaction]
    (partition,) = topic.results_by_partition
    return AddOffsetsToTxnResponse(
        error_code=fenced_as(partition.partition_error_code, ctx.version >= FIRST_WITH_FENCED)
    )


# ---- EndTxn ----


def end_txn(
    node: TransactionHandling, ctx: Context, request: EndTxnRequest
) -> EndTxnResponse | Deferred[EndTxnResponse]:
    tid = request.transactional_id
    if not node.access.allowed(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    index = node.txn_coordinators.partition_of(tid)
    try:
        answer = node.txn_coordinators.begin(index, request, ctx)
    except ProducerIdNeeded:
        return Deferred(_end_with_id(node, ctx, request, index))
    if isinstance(answer, Message):
        return _ended(ctx, answer)
    return Deferred(_end_later(node, ctx, request, index, answer))


async def _end_later(
    node: TransactionHandling,
    ctx: Context,
    request: EndTxnRequest,
    index: int,
    answer: Awaitable[Message],
) -> EndTxnResponse:
    try:
        return _ended(ctx, await answer)
    except ProducerIdNeeded:
        return await _end_with_id(node, ctx, request, index)


async def _end_with_id(
    node: TransactionHandling, ctx: Context, request: EndTxnRequest, index: int
) -> EndTxnResponse:
    again = EndTxnWith(request=request, fresh_producer_id=await node.producer_ids.next())
    return _ended(ctx, await node.txn_coordinators.ask_partition(index, again, ctx))


def _ended(ctx: Context, answer: Message) -> EndTxnResponse:
    assert isinstance(answer, EndTxnResponse)
    answer.error_code = fenced_as(answer.error_code, ctx.version >= FIRST_WITH_FENCED)
    return answer


# ---- WriteTxnMarkers ----


def write_txn_markers(
    node: TransactionHandling, ctx: Context, request: WriteTxnMarkersRequest
) -> Deferred[WriteTxnMarkersResponse]:
    """From coordinators on other brokers, and from operators who end a hanging transaction."""
    if not any(
        node.access.allowed(ctx, operation, Resource.CLUSTER, CLUSTER_NAME)
        for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
    ):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    offsets = node.group_coordinators.topic
    for marker in request.markers:
        written = [w for w in _partitions_of(marker) if w[0] != offsets and node.replicas.get(*w)]
        if written and min(marker.producer_id, marker.producer_epoch) < 0:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, NOBODYS_MARKER)
    return Deferred(_write_markers(node, request.markers))


async def _write_markers(
    node: TransactionHandling, markers: list[WritableTxnMarker]
) -> WriteTxnMarkersResponse:
    """A coordinator that was away may have thousands: they give way to others in between."""
    results: dict[int, dict[TopicPartition, ErrorCode]] = {}
    waits: list[tuple[int, TopicPartition, Covered]] = []
    pace = Pace(node.world.clock)
    for marker in markers:
        for where in _partitions_of(marker):
            codes = results.setdefault(marker.producer_id, {})
            await pace()
            try:
                covered = append_marker(node, where, *_ending(marker))
            except KafkaError as error:
                codes[where] = error.code
            else:
                codes[where] = ErrorCode.NONE
                waits.append((marker.producer_id, where, covered))
    return await _await_markers(node, results, waits)


def _partitions_of(marker: WritableTxnMarker) -> Iterable[TopicPartition]:
    """The partitions of a marker, each once."""
    return dict.fromkeys((t.name, index) for t in marker.topics for index in t.partition_indexes)


def _ending(marker: WritableTxnMarker) -> tuple[tuple[int, int], EndTxnMarker, int]:
    return (
        (marker.producer_id, marker.producer_epoch),
        EndTxnMarker(marker.transaction_result, marker.coordinator_epoch),
        marker.transaction_version,
    )


async def _await_markers(
    node: TransactionHandling,
    results: dict[int, dict[TopicPartition, ErrorCode]],
    waits: list[tuple[int, TopicPartition, Covered]],
) -> WriteTxnMarkersResponse:
    reached = [watermark.reach(end) for _, _, (watermark, end) in waits]
    if reached:
        # A coordinator waits for an answer for as long as a request may take: it gets it sooner. A
        # partition that stalls does not keep the others from being told for long.
        longest = node.settings.request_timeout_ms / 2000
        await asyncio.wait(reached, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        left = [future for future in reached if not future.done()]
        if left and len(left) < len(reached):
            await asyncio.wait(left, timeout=min(STRAGGLERS_MS / 1000, longest))
    for (producer_id, where, _), future in zip(waits, reached, strict=True):
        if not future.done():
            future.cancel()
            results[producer_id][where] = ErrorCode.REQUEST_TIMED_OUT
        elif (failure := future.exception()) is not None:
            code = failure.code if isinstance(failure, KafkaError) else None
            results[producer_id][where] = code or ErrorCode.UNKNOWN_SERVER_ERROR
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_marker_topics(codes))
            for producer_id, codes in results.items()
        ]
    )


def _marker_topics(
    codes: dict[TopicPartition, ErrorCode],
) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for (topic, index), code in codes.items():
        answer = topics.setdefault(topic, WritableTxnMarkerTopicResult(name=topic))
        answer.partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        )
    return list(topics.values())


def refuse_write_txn_markers(
    request: WriteTxnMarkersRequest, code: ErrorCode, text: str
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=_marker_topics(
                    {(t.name, index): code for t in marker.topics for index in t.partition_indexes}
                ),
            )
            for marker in request.markers
        ]
    )


# ---- DescribeTransactions, ListTransactions ----


def describe_transactions(
    node: TransactionHandling, ctx: Context, request: DescribeTransactionsRequest
) -> Deferred[DescribeTransactionsResponse]:
    return Deferred(_describe(node, ctx, request))


async def _describe(
    node: TransactionHandling, ctx: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    answers = [await _describe_one(node, ctx, tid) for tid in request.transactional_ids]
    for answer in answers:
        answer.topics = [
            topic
            for topic in answer.topics
            if node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.topic)
        ]
    return DescribeTransactionsResponse(transaction_states=answers)


async def _describe_one(
    node: TransactionHandling, ctx: Context, tid: str
) -> DescribeTransactionsResponseTransactionState:
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if node.access.allowed(ctx, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, tid):
        try:
            answer = await node.txn_coordinators.ask(
                tid, DescribeTransactionsRequest(transactional_ids=[tid]), ctx
            )
        except KafkaError as error:
            code = error.code
        else:
            assert isinstance(answer, DescribeTransactionsResponse)
            return answer.transaction_states[0]
    return DescribeTransactionsResponseTransactionState(transactional_id=tid, error_code=code)


def refuse_describe_transactions(
    request: DescribeTransactionsRequest, code: ErrorCode, text: str
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponseTransactionState(transactional_id=tid, error_code=code)
            for tid in request.transactional_ids
        ]
    )


def list_transactions(
    node: TransactionHandling, ctx: Context, request: ListTransactionsRequest
) -> Deferred[ListTransactionsResponse]:
    return Deferred(_list(node, ctx, request))


async def _list(
    node: TransactionHandling, ctx: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """All that this broker coordinates: the client asks every broker."""
    pattern = request.transactional_id_pattern
    expression = Expression(pattern) if pattern else None
    merged = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in BY_LABEL]
    )
    for index in node.txn_coordinators.partitions_led():
        try:
            part = await node.txn_coordinators.ask_partition(index, request, ctx)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_COORDINATOR:
                continue  # it has moved, and its new coordinator lists what it has
            raise
        assert isinstance(part, ListTransactionsResponse)
        merged.transaction_states += part.transaction_states
    names = [state.transactional_id for state in merged.transaction_states]
    wanted = set(names) if expression is None else _matching(expression, names)
    merged.transaction_states = [
        state
        for state in merged.transaction_states
        if state.transactional_id in wanted
        and node.access.allowed(
            ctx, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, state.transactional_id
        )
    ]
    return merged


def _matching(expression: Expression, names: list[str]) -> set[str]:
    """Expressions are of ASCII: to them any other character is one that `.` stands for."""
    plain = {name: "".join(c if c < "\x80" else "\x7f" for c in name) for name in names}
    found = matching(expression, plain.values())
    return {name for name in names if plain[name] in found}
