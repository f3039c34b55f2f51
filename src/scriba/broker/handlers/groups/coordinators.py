"""FindCoordinator: which broker answers for a group or a transactional id.

Its topic is made with the first such question. Kafka then answers that there is no coordinator yet
and lets the client ask again; here the topic is waited for, which takes less time than that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.broker.access import Operation, Resource
from scriba.broker.coordinators.internal_topics import make_internal_topic
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import CoordinatorLookup, Coordinators

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_FOR_SEVERAL: Final = 4


class Found(NamedTuple):
    error: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1


def find_coordinator(
    node: CoordinatorLookup, ctx: Context, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Deferred[FindCoordinatorResponse]:
    shards = _shards(node, request.key_type)
    if shards is None or shards.topic in node.image.topics_by_name:
        return _answer(node, ctx, request, shards)
    return Deferred(_make_and_answer(node, ctx, request, shards))


def _shards(node: CoordinatorLookup, key_type: int) -> Coordinators | None:
    """Coordinators of share groups are as unknown as those of any other number."""
    return {GROUP: node.group_coordinators, TRANSACTION: node.txn_coordinators}.get(key_type)


async def _make_and_answer(
    node: CoordinatorLookup,
    ctx: Context,
    request: FindCoordinatorRequest,
    shards: Coordinators,
) -> FindCoordinatorResponse:
    keys = _keys(ctx, request)
    if any(_allowed(node, ctx, request.key_type, key) is ErrorCode.NONE for key in keys):
        with suppress(KafkaError):  # noted where it failed; the answer says that there is none yet
            await make_internal_topic(node, shards.topic)
    return _answer(node, ctx, request, shards)


def _keys(ctx: Context, request: FindCoordinatorRequest) -> list[str]:
    return request.coordinator_keys if ctx.version >= FIRST_FOR_SEVERAL else [request.key]


def _answer(
    node: CoordinatorLookup,
    ctx: Context,
    request: FindCoordinatorRequest,
    shards: Coordinators | None,
) -> FindCoordinatorResponse:
    answers = [(key, _find(node, ctx, request, shards, key)) for key in _keys(ctx, request)]
    if ctx.version >= FIRST_FOR_SEVERAL:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key,
                    node_id=found.node_id,
                    host=found.host,
                    port=found.port,
                    error_code=found.error,
                    error_message="" if shards is not None else found.error.text,
                )
                for key, found in answers
            ]
        )
    found = answers[0][1]
    return FindCoordinatorResponse(
        error_code=found.error,
        error_message=found.error.name if found.error is ErrorCode.NONE else found.error.text,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _allowed(node: CoordinatorLookup, ctx: Context, key_type: int, key: str) -> ErrorCode:
    if key_type == GROUP:
        resource, refusal = Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        resource = Resource.TRANSACTIONAL_ID
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allowed = node.access.allowed(ctx, Operation.DESCRIBE, resource, key)
    return ErrorCode.NONE if allowed else refusal


def _find(
    node: CoordinatorLookup,
    ctx: Context,
    request: FindCoordinatorRequest,
    shards: Coordinators | None,
    key: str,
) -> Found:
    if shards is None:
        return Found(ErrorCode.INVALID_REQUEST)
    refusal = _allowed(node, ctx, request.key_type, key)
    if refusal is not ErrorCode.NONE:
        return Found(refusal)
    topic = node.image.topics_by_name.get(shards.topic)
    if topic is not None:
        leader = topic.partitions[shards.partition_of(key)].leader
        for broker, host, port in node.image.brokers_on(ctx.listener):
            if broker.id == leader:
                return Found(ErrorCode.NONE, broker.id, host, port)
    return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def refuse_find_coordinator(
    request: FindCoordinatorRequest, code: ErrorCode, text: str
) -> FindCoordinatorResponse:
    """Who names several is told of each; the others have one answer."""
    if request.coordinator_keys:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
                for key in request.coordinator_keys
            ]
        )
    return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, port=-1)
