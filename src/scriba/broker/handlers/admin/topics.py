"""Making, widening and deleting topics: authorised here, decided by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.coordinators.internal_topics import internal_topic
from scriba.broker.ports import CLIENTS_WAIT_MS
from scriba.broker.request import Context, Deferred
from scriba.controller.topics import is_legal_name
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from scriba.wire.uuids import ZERO

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import TopicAdministration

USE_DEFAULT: Final = -1


# ---- CreateTopics ----


def create_topics(
    node: TopicAdministration, ctx: Context, request: CreateTopicsRequest
) -> Deferred[CreateTopicsResponse]:
    return Deferred(_create_topics(node, ctx, request))


async def _create_topics(
    node: TopicAdministration, ctx: Context, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    anywhere = node.access.allowed(ctx, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    allowed: list[CreatableTopic] = []
    refused: dict[str, CreatableTopicResult] = {}
    for topic in request.topics:
        if anywhere or node.access.allowed(ctx, Operation.CREATE, Resource.TOPIC, topic.name):
            allowed.append(topic)
        else:
            refused[topic.name] = CreatableTopicResult(
                name=topic.name,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message="not allowed to create this topic",
            )
    order = [topic.name for topic in request.topics]
    request.topics = allowed
    response = CreateTopicsResponse()
    if allowed:
        response = await node.controller.call(request, ctx.version, ctx)
    made = {result.name: result for result in response.topics}
    made.update(refused)
    response.topics = [made[name] for name in dict.fromkeys(order) if name in made]
    for result in response.topics:
        _hide_configs(node, ctx, result)
    return response


def _hide_configs(node: TopicAdministration, ctx: Context, result: CreatableTopicResult) -> None:
    if result.error_code or node.access.allowed(
        ctx, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, result.name
    ):
        return
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = -1
    result.configs = []


async def auto_create(
    node: TopicAdministration, ctx: Context, names: list[str]
) -> dict[str, ErrorCode]:
    """Makes topics that a client asked about; returns why for those it could not."""
    failed: dict[str, ErrorCode] = {}
    wanted = CreateTopicsRequest(timeout_ms=node.settings.request_timeout_ms)
    anywhere = node.access.allowed(ctx, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
    for name in names:
        if not is_legal_name(name):
            failed[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not anywhere and not node.access.allowed(ctx, Operation.CREATE, Resource.TOPIC, name):
            failed[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            try:
                wanted.topics.append(_by_default(node, name))
            except KafkaError:  # more brokers are awaited
                failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
    if wanted.topics:
        try:
            response = await node.controller.call(wanted, None, ctx, leaderless_ms=CLIENTS_WAIT_MS)
        except KafkaError as error:  # of these alone: others are asked about in the same request
            # A client takes that for an error that passes, and asks again.
            away = error.code is ErrorCode.REQUEST_TIMED_OUT
            code = ErrorCode.LEADER_NOT_AVAILABLE if away else error.code
            return failed | {topic.name: code for topic in wanted.topics}
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                failed[result.name] = error_code(result.error_code)
    return failed


def _by_default(node: TopicAdministration, name: str) -> CreatableTopic:
    if name in node.internal_topics:
        # Whoever asks first, it is to be fit for its coordinators.
        return internal_topic(name, node)
    settings = node.settings
    return CreatableTopic(
        name=name,
        num_partitions=settings.num_partitions
        if settings.is_given("num.partitions")
        else USE_DEFAULT,
        replication_factor=settings.default_replication_factor
        if settings.is_given("default.replication.factor")
        else USE_DEFAULT,
    )


def refuse_create_topics(
    request: CreateTopicsRequest, code: ErrorCode, text: str
) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=text)
            for topic in request.topics
        ]
    )


# ---- CreatePartitions ----


def create_partitions(
    node: TopicAdministration, ctx: Context, request: CreatePartitionsRequest
) -> Deferred[CreatePartitionsResponse]:
    return Deferred(_create_partitions(node, ctx, request))


async def _create_partitions(
    node: TopicAdministration, ctx: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    refused: list[CreatePartitionsTopicResult] = []
    allowed = []
    for topic in request.topics:
        if node.access.allowed(ctx, Operation.ALTER, Resource.TOPIC, topic.name):
            allowed.append(topic)
        else:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(CreatePartitionsTopicResult(name=topic.name, error_code=code))
    request.topics = allowed
    response = CreatePartitionsResponse()
    if allowed:
        response = await node.controller.call(request, ctx.version, ctx)
    response.results.extend(refused)
    return response


def refuse_create_partitions(
    request: CreatePartitionsRequest, code: ErrorCode, text: str
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text)
            for topic in request.topics
        ]
    )


# ---- DeleteTopics ----


def delete_topics(
    node: TopicAdministration, ctx: Context, request: DeleteTopicsRequest
) -> Deferred[DeleteTopicsResponse]:
    return Deferred(_delete_topics(node, ctx, request))


async def _delete_topics(
    node: TopicAdministration, ctx: Context, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    if not node.settings.delete_topic_enable:
        # Clients before version 3 do not know the newer code.
        old = ctx.version < 3
        code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
        raise KafkaError(code, "delete.topic.enable is false on this broker")
    refused: list[DeletableTopicResult] = []
    allowed: list[DeleteTopicState] = []
    for topic in _asked(request):
        refusal = _refuse_delete(node, ctx, topic)
        if refusal is None:
            allowed.append(topic)
        else:
            refused.append(refusal)
    if ctx.version < 6:  # it is forwarded in the version that it came in
        request.topic_names = [topic.name for topic in allowed if topic.name is not None]
    else:
        request.topics = allowed
    response = DeleteTopicsResponse()
    if allowed:
        response = await node.controller.call(request, ctx.version, ctx)
    response.responses.extend(refused)
    return response


def _asked(request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    """The topics to delete. Before version 6 they are named and nothing else."""
    return request.topics or [DeleteTopicState(name=name) for name in request.topic_names]


def _refuse_delete(
    node: TopicAdministration, ctx: Context, topic: DeleteTopicState
) -> DeletableTopicResult | None:
    """Why the caller may not delete it; a name it may not see is not given away by an id."""
    name = topic.name
    by_id = name is None
    if by_id:
        if topic.topic_id == ZERO:
            return DeletableTopicResult(
                name=None, topic_id=ZERO, error_code=ErrorCode.INVALID_REQUEST
            )
        found = node.image.topics_by_id.get(topic.topic_id)
        if found is None:
            return None
        name = found.name
    elif topic.topic_id != ZERO:
        return DeletableTopicResult(
            name=name,
            topic_id=topic.topic_id,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="give a topic's name or its id, not both",
        )
    assert name is not None
    if node.access.allowed(ctx, Operation.DELETE, Resource.TOPIC, name):
        return None
    visible = node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name)
    return DeletableTopicResult(
        name=name if visible or not by_id else None,
        topic_id=topic.topic_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


def refuse_delete_topics(
    request: DeleteTopicsRequest, code: ErrorCode, text: str
) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=text
            )
            for topic in _asked(request)
        ]
    )
