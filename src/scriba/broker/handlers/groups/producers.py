"""Producer ids, for idempotent and for transactional producers, and who writes to a partition."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.handlers.groups.txn import fenced_as
from scriba.broker.request import Context, Deferred, at_once_or_deferred
from scriba.controller.topics import is_legal_name
from scriba.errors import ErrorCode, KafkaError
from scriba.txn.messages import InitProducerIdWith, ProducerIdNeeded
from scriba.wire.messages.txn import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import ProducerIdentity
    from scriba.storage.producers.state import ActiveProducer

AT_ONCE: Final = 20
"""Producers that are told of in one step: tens of microseconds."""

NO_PRODUCER: Final = -1
FIRST_WITH_FENCED: Final = 4
"""Older clients know INVALID_PRODUCER_EPOCH, not PRODUCER_FENCED (KIP-588)."""


def init_producer_id(
    node: ProducerIdentity, ctx: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    code = _refuse_id(node, ctx, request)
    if code is not None:
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER)
    if request.transactional_id is None:
        return Deferred(_new_id(node))
    return Deferred(_new_epoch(node, ctx, request, request.transactional_id))


def _refuse_id(
    node: ProducerIdentity, ctx: Context, request: InitProducerIdRequest
) -> ErrorCode | None:
    tid = request.transactional_id
    if tid is not None:
        if not node.access.allowed(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not node.access.allowed(
        ctx, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME
    ) and not _writes_any_topic(node, ctx):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER):
        return ErrorCode.INVALID_REQUEST  # half a producer
    if tid == "":
        return ErrorCode.INVALID_REQUEST
    return None


def _writes_any_topic(node: ProducerIdentity, ctx: Context) -> bool:
    """Whether the caller may write somewhere: reason enough for a producer id (KIP-679)."""
    return any(
        node.access.allowed(ctx, Operation.WRITE, Resource.TOPIC, name)
        for name in node.image.topics_by_name
    )


async def _new_id(node: ProducerIdentity) -> InitProducerIdResponse:
    # Without a transactional id there is nothing to bump: every call gets an id of its own.
    return InitProducerIdResponse(producer_id=await node.producer_ids.next(), producer_epoch=0)


async def _new_epoch(
    node: ProducerIdentity, ctx: Context, request: InitProducerIdRequest, tid: str
) -> InitProducerIdResponse:
    try:
        answer = await node.txn_coordinators.ask(tid, request, ctx)
    except ProducerIdNeeded:
        fresh = await node.producer_ids.next()
        again = InitProducerIdWith(request=request, fresh_producer_id=fresh)
        answer = await node.txn_coordinators.ask(tid, again, ctx)
    assert isinstance(answer, InitProducerIdResponse)
    answer.error_code = fenced_as(answer.error_code, ctx.version >= FIRST_WITH_FENCED)
    return answer


def refuse_init_producer_id(
    request: InitProducerIdRequest, code: ErrorCode, text: str
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER)


def describe_producers(
    node: ProducerIdentity, ctx: Context, request: DescribeProducersRequest
) -> DescribeProducersResponse | Deferred[DescribeProducersResponse]:
    return at_once_or_deferred(_described(node, ctx, request), node.world.clock)


def _described(
    node: ProducerIdentity, ctx: Context, request: DescribeProducersRequest
) -> Generator[None, None, DescribeProducersResponse]:
    response = DescribeProducersResponse()
    for topic in request.topics:
        answers = TopicResponse(name=topic.name)
        response.topics.append(answers)
        refusal = _refuse_topic(node, ctx, topic.name)
        for index in topic.partition_indexes:
            answer = PartitionResponse(partition_index=index)
            answers.partitions.append(answer)
            if refusal is not None:
                answer.error_code = refusal
                answer.error_message = refusal.text
                continue
            try:
                partition = node.replicas.find(topic.name, index)
                partition.check_leader(-1)
                producers = partition.log.active_producers()
            except KafkaError as error:
                answer.error_code = error.code
                continue
            yield from _tell(producers, answer.active_producers)
    return response


def _tell(
    producers: Iterable[ActiveProducer], told: list[ProducerState]
) -> Generator[None, None, None]:
    for count, active in enumerate(producers, 1):
        told.append(
            ProducerState(
                producer_id=active.producer_id,
                producer_epoch=active.epoch,
                last_sequence=active.last_sequence,
                last_timestamp=active.last_timestamp,
                coordinator_epoch=active.coordinator_epoch,
                current_txn_start_offset=active.txn_start_offset,
            )
        )
        if count % AT_ONCE == 0:
            yield


def _refuse_topic(node: ProducerIdentity, ctx: Context, name: str) -> ErrorCode | None:
    if not is_legal_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not node.access.allowed(ctx, Operation.READ, Resource.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name not in node.image.topics_by_name:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return None


def refuse_describe_producers(
    request: DescribeProducersRequest, code: ErrorCode, text: str
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=code, error_message=text)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )
