"""What the cluster looks like: brokers, topics, partitions, and what this broker can do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource, allowed_operations
from scriba.broker.handlers.admin.topics import auto_create
from scriba.broker.request import Context, Deferred
from scriba.controller.topics import is_legal_name
from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from scriba.wire.messages.metadata import DescribeTopicPartitionsResponseCursor as Cursor
from scriba.wire.packed import Packed
from scriba.wire.uuids import ZERO

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import MetadataDescription
    from scriba.controller.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

    Living = dict[int, BrokerImage]
    """Brokers that clients of a listener can be sent to, by id."""

FIRST_BY_ID: Final = 12
"""Ids are in Metadata from version 10 on, but may be asked for only from this one on."""

SHORT: Final = 1000
"""Partitions that one slice of the loop can list."""

PAGE: Final = 500
"""Partitions of one topic between two looks at the clock."""

_ALL: Final = slice(None)

FIRST_WITH_OFFLINE: Final = 1
"""Version 0 has no other way to tell of replicas that are away than to leave them out."""
FIRST_WITH_LISTENERS: Final = 6
"""Older clients do not know LISTENER_NOT_FOUND."""

BROKERS: Final = 1
CONTROLLERS: Final = 2
SOFTWARE_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


# ---- ApiVersions ----


def api_versions(
    node: MetadataDescription, ctx: Context, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    if ctx.version >= 3 and not (
        _is_software(request.client_software_name) and _is_software(request.client_software_version)
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    image = node.image
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.low, max_version=api.high)
            for api in node.api_table(ctx.listener).values()
        ],
    )
    if ctx.version >= 3:
        response.supported_features = [
            # Before version 4 a minimum of 0 cannot be told (KIP-1022): such features are left out.
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in sorted(node.supported_features.items())
            if low > 0 or ctx.version >= 4
        ]
        response.finalized_features_epoch = image.last_offset
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items())
            if level > 0
        ]
    return response


def _is_software(text: str) -> bool:
    return (
        bool(text)
        and all(letter in SOFTWARE_NAME for letter in text)
        and text[0] not in "-."
        and text[-1] not in "-."
    )


def refuse_api_versions(
    request: ApiVersionsRequest | None, code: ErrorCode, text: str
) -> ApiVersionsResponse:
    response = ApiVersionsResponse(error_code=code)
    if code is ErrorCode.UNSUPPORTED_VERSION:
        response.api_keys = [ApiVersion(api_key=18, min_version=0, max_version=4)]
    return response


# ---- Metadata ----


def metadata(
    node: MetadataDescription, ctx: Context, request: MetadataRequest
) -> MetadataResponse | Deferred[MetadataResponse]:
    if _is_long(node, ctx, request):
        return Deferred(_list_slowly(node, ctx, request))
    asked = at_once(_asked_once(ctx, request))
    missing = [t.name or "" for t in asked if _may_be_made(node, ctx, request, t)]
    if missing:
        return Deferred(_create_then_answer(node, ctx, request, asked, missing))
    return _metadata(node, ctx, request, asked, {})


def _is_long(node: MetadataDescription, ctx: Context, request: MetadataRequest) -> bool:
    """Whether the answer is too much for one slice of the loop."""
    image, count = node.image, 0
    if _wants_all(ctx, request):
        for known in image.topics_by_name.values():
            count += len(known.partitions)
            if count > SHORT:
                return True
        return False
    topics = request.topics or ()
    if len(topics) > SHORT:
        return True
    for asked in topics:
        if asked.name is None:
            topic = image.topics_by_id.get(asked.topic_id)
        else:
            topic = image.topics_by_name.get(asked.name)
        if topic is not None:
            count += len(topic.partitions)
    return count > SHORT


async def _list_slowly(
    node: MetadataDescription, ctx: Context, request: MetadataRequest
) -> MetadataResponse:
    """As `_metadata`, a slice at a time. Every topic, where all are asked for, as of one moment."""
    pace = Pace(node.world.clock)
    response = _frame(node, ctx, request)
    listed = Packed(MetadataResponse, "topics", ctx.version)
    response.topics = listed  # type: ignore[assignment]
    if _wants_all(ctx, request):
        image = node.image.copy()
        living = _living(image, ctx)
        for name in sorted(image.topics_by_name):
            if node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
                topic = await _topic_slowly(node, ctx, image.topics_by_name[name], living, pace)
                _add_operations(node, ctx, request, topic)
                await in_slices(listed.adding((topic,)), pace)
            await pace()
        return response
    asked = await in_slices(_asked_once(ctx, request), pace)
    failed = await _create_slowly(node, ctx, request, asked, pace)
    living = _living(node.image, ctx)
    for each in asked:
        topic = _named(node, ctx, each, living, failed, slice(0, 0))
        if not topic.error_code and topic.name is not None:
            known = node.image.topics_by_name[topic.name]
            topic = await _topic_slowly(node, ctx, known, living, pace)
        _add_operations(node, ctx, request, topic)
        await in_slices(listed.adding((topic,)), pace)
        await pace()
    return response


async def _topic_slowly(
    node: MetadataDescription, ctx: Context, topic: TopicImage, living: Living, pace: Pace
) -> MetadataResponseTopic:
    answer = _topic(node, ctx, topic, living, slice(0, PAGE))
    for start in range(PAGE, len(topic.partitions), PAGE):
        await pace()
        page = _topic(node, ctx, topic, living, slice(start, start + PAGE))
        answer.partitions += page.partitions
    return answer


async def _create_slowly(
    node: MetadataDescription,
    ctx: Context,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    pace: Pace,
) -> dict[str, ErrorCode]:
    failed: dict[str, ErrorCode] = {}
    missing: list[str] = []
    for each in asked:
        if _may_be_made(node, ctx, request, each):
            missing.append(each.name or "")
        await pace()
    for start in range(0, len(missing), PAGE):
        failed.update(await auto_create(node, ctx, missing[start : start + PAGE]))
    return failed


async def _create_then_answer(
    node: MetadataDescription,
    ctx: Context,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    missing: list[str],
) -> MetadataResponse:
    return _metadata(node, ctx, request, asked, await auto_create(node, ctx, missing))


def _wants_all(ctx: Context, request: MetadataRequest) -> bool:
    return request.topics is None or (ctx.version == 0 and not request.topics)


def _may_be_made(
    node: MetadataDescription, ctx: Context, request: MetadataRequest, asked: MetadataRequestTopic
) -> bool:
    """Whether it is a topic asked for by name that may be made on the spot."""
    return bool(
        asked.name
        and asked.name not in node.image.topics_by_name
        and node.settings.auto_create_topics_enable
        and request.allow_auto_topic_creation
        and node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, asked.name)
    )


def _metadata(
    node: MetadataDescription,
    ctx: Context,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    failed: dict[str, ErrorCode],
) -> MetadataResponse:
    image = node.image
    response = _frame(node, ctx, request)
    living = _living(image, ctx)
    if _wants_all(ctx, request):
        for name in sorted(image.topics_by_name):
            if node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
                response.topics.append(_topic(node, ctx, image.topics_by_name[name], living))
    else:
        for each in asked:
            response.topics.append(_named(node, ctx, each, living, failed))
    for topic in response.topics:
        _add_operations(node, ctx, request, topic)
    return response


def _frame(node: MetadataDescription, ctx: Context, request: MetadataRequest) -> MetadataResponse:
    """The answer without its topics."""
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.id, host=host, port=port, rack=broker.rack)
            for broker, host, port in node.image.brokers_on(ctx.listener)
        ],
        cluster_id=node.cluster_id,
        controller_id=_controller(node, ctx),
    )
    if 8 <= ctx.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = allowed_operations(
            node.access, ctx, Resource.CLUSTER, CLUSTER_NAME
        )
    return response


def _living(image: ClusterImage, ctx: Context) -> Living:
    return {broker.id: broker for broker, _, _ in image.brokers_on(ctx.listener)}


def _controller(node: MetadataDescription, ctx: Context) -> int:
    """Where clients send what a controller decides: to a broker, for they reach no other node.

    Any broker passes such requests on. The active controller's own needs no further hop.
    """
    if node.is_controller_listener(ctx.listener):
        return node.active_controller_id
    living = _living(node.image, ctx)
    for candidate in (node.active_controller_id, node.id):
        if candidate in living:
            return candidate
    return min(living, default=-1)


def _add_operations(
    node: MetadataDescription, ctx: Context, request: MetadataRequest, topic: MetadataResponseTopic
) -> None:
    if (
        request.include_topic_authorized_operations
        and topic.name
        and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    ):
        topic.topic_authorized_operations = allowed_operations(
            node.access, ctx, Resource.TOPIC, topic.name
        )


def _asked_once(
    ctx: Context, request: MetadataRequest
) -> Generator[None, None, list[MetadataRequestTopic]]:
    """Each topic once. Where one is asked for by its id, the request is one by ids throughout."""
    named: dict[tuple[str | None, bytes], MetadataRequestTopic] = {}
    ids: dict[bytes, None] = {}
    for topic in request.topics or ():
        named[topic.name, topic.topic_id] = topic
        if topic.topic_id != ZERO and ctx.version >= FIRST_BY_ID:
            ids[topic.topic_id] = None
        yield
    if ids:
        return [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids]
    return list(named.values())


def _named(
    node: MetadataDescription,
    ctx: Context,
    asked: MetadataRequestTopic,
    living: Living,
    failed: dict[str, ErrorCode],
    page: slice = _ALL,
) -> MetadataResponseTopic:
    image = node.image
    if asked.name is None:
        topic = image.topics_by_id.get(asked.topic_id)
        if ctx.version < FIRST_BY_ID:
            code: ErrorCode = ErrorCode.INVALID_REQUEST
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return _topic(node, ctx, topic, living, page)
        name = None if ctx.version >= FIRST_BY_ID else ""
        return MetadataResponseTopic(error_code=code, name=name, topic_id=asked.topic_id)
    if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, asked.name):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif (topic := image.topics_by_name.get(asked.name)) is not None:
        return _topic(node, ctx, topic, living, page)
    elif not is_legal_name(asked.name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = failed.get(asked.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return MetadataResponseTopic(
        error_code=code,
        name=asked.name,
        topic_id=ZERO,
        is_internal=asked.name in node.internal_topics,
    )


def _topic(
    node: MetadataDescription,
    ctx: Context,
    topic: TopicImage,
    living: Living,
    page: slice = _ALL,
) -> MetadataResponseTopic:
    """A topic with those of its partitions, in order, that are on the page."""
    answer = MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=topic.name in node.internal_topics
    )
    for index in sorted(topic.partitions)[page]:
        partition = topic.partitions[index]
        replicas, isr = list(partition.replicas), list(partition.isr)
        if ctx.version < FIRST_WITH_OFFLINE:
            replicas = [broker for broker in replicas if broker in living]
            isr = [broker for broker in isr if broker in living]
        leader, code = _leader(node.image, partition, living, ctx.version)
        if not code and (len(replicas), len(isr)) < (len(partition.replicas), len(partition.isr)):
            code = ErrorCode.REPLICA_NOT_AVAILABLE
        answer.partitions.append(
            MetadataResponsePartition(
                error_code=code,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=_offline(partition, living),
            )
        )
    return answer


def _leader(
    image: ClusterImage, partition: PartitionImage, living: Living, version: int
) -> tuple[int, ErrorCode]:
    if partition.leader in living:
        return partition.leader, ErrorCode.NONE
    if partition.leader in image.brokers and version >= FIRST_WITH_LISTENERS:
        return -1, ErrorCode.LISTENER_NOT_FOUND
    return -1, ErrorCode.LEADER_NOT_AVAILABLE


def _offline(partition: PartitionImage, living: Living) -> list[int]:
    """Replicas that are out of reach, or in a directory that failed (KIP-858)."""
    return [
        replica
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
        if (broker := living.get(replica)) is None or not broker.holds(directory)
    ]


# ---- DescribeTopicPartitions ----


def describe_topic_partitions(
    node: MetadataDescription, ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Deferred[DescribeTopicPartitionsResponse]:
    """Pages through topics in the order of their names, as a cursor needs (KIP-966)."""
    work = _describe_page(node, ctx, request)
    if len(request.topics or node.image.topics_by_name) > SHORT:
        return Deferred(in_slices(work, Pace(node.world.clock)))
    return at_once(work)


def _describe_page(
    node: MetadataDescription, ctx: Context, request: DescribeTopicPartitionsRequest
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    image = node.image
    cursor = request.cursor
    names = sorted({topic.name for topic in request.topics} or image.topics_by_name)
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if request.topics and cursor.topic_name not in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        names = names[bisect_left(names, cursor.topic_name) :]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    limit = request.response_partition_limit
    # Whatever the limit, a page holds one partition, or paging would never end.
    left = max(min(limit, node.settings.max_request_partition_size_limit), 1)
    response = DescribeTopicPartitionsResponse()
    living = _living(image, ctx)
    for name in names:
        yield
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        page = slice(first, first + left)
        answer = _described(node, ctx, name, living, bool(request.topics), page)
        if answer is None:
            continue
        response.topics.append(answer)
        left -= len(answer.partitions)
        next_index = first + len(answer.partitions)
        if not answer.error_code and next_index < len(image.topics_by_name[name].partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=next_index)
            break
        first = 0
    return response


def _described(
    node: MetadataDescription,
    ctx: Context,
    name: str,
    living: Living,
    named: bool,
    page: slice,
) -> DescribeTopicPartitionsResponseTopic | None:
    answer = DescribeTopicPartitionsResponseTopic(name=name)
    if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer if named else None
    answer.is_internal = name in node.internal_topics
    answer.topic_authorized_operations = allowed_operations(node.access, ctx, Resource.TOPIC, name)
    topic = node.image.topics_by_name.get(name)
    if topic is None:
        answer.error_code = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_legal_name(name)
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        return answer
    answer.topic_id = topic.id
    for index in sorted(topic.partitions)[page]:
        partition = topic.partitions[index]
        answer.partitions.append(
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=partition.leader if partition.leader in living else -1,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.eligible_leader_replicas),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=_offline(partition, living),
            )
        )
    return answer


# ---- DescribeCluster ----


def describe_cluster(
    node: MetadataDescription, ctx: Context, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    asks_controller = request.endpoint_type == CONTROLLERS
    if asks_controller != node.is_controller_listener(ctx.listener):
        other = "broker" if asks_controller else "controller"
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, f"this is a {other}'s listener")
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=_controller(node, ctx),
        endpoint_type=request.endpoint_type,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id,
                host=host,
                port=port,
                rack=broker.rack,
                is_fenced=broker.fenced if ctx.version >= 2 else False,
            )
            for broker, host, port in node.image.brokers_on(
                ctx.listener, fenced=request.include_fenced_brokers
            )
        ],
    )
    if asks_controller:
        response.brokers = [
            DescribeClusterBroker(broker_id=controller_id, host=host, port=port)
            for controller_id, host, port in node.controllers_on(ctx.listener)
        ]
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = allowed_operations(
            node.access, ctx, Resource.CLUSTER, CLUSTER_NAME
        )
    return response


# ---- a whole request refused ----


def refuse_metadata(request: MetadataRequest, code: ErrorCode, text: str) -> MetadataResponse:
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
    )


def refuse_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, code: ErrorCode, text: str
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name)
            for topic in request.topics
        ]
    )
