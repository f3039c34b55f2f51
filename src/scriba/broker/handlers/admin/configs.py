"""Settings of topics, brokers and groups: shown here, changed by the controller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.request import Context, Deferred, at_once_or_deferred
from scriba.config import ConfigError, ConfigRow
from scriba.controller.configs import Operation as ConfigOperation
from scriba.controller.topics import is_legal_name
from scriba.errors import ErrorCode, KafkaError
from scriba.settings import describe_broker, describe_cluster, describe_group, describe_topic
from scriba.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import ConfigAdministration
    from scriba.controller.image import ClusterImage

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
LISTED: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
CORDONS: Final = "cordoned.log.dirs"
AT_ONCE: Final = 20
"""Resources that are listed in one step: tens of microseconds."""

ADDING: Final = (ConfigOperation.SET, ConfigOperation.APPEND)


# ---- describing ----


def describe_configs(
    node: ConfigAdministration, ctx: Context, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    for asked in request.resources:
        answer = DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        response.results.append(answer)
        try:
            rows = _in_order(_describe(node, ctx, asked), asked.configuration_keys)
            answer.configs = [_shown(row, request) for row in rows]
        except KafkaError as error:
            answer.error_code = error.code
            answer.error_message = error.message
    return response


def _in_order(rows: list[ConfigRow], keys: list[str] | None) -> list[ConfigRow]:
    """Those that were asked for by name, in the order asked; each once."""
    if not keys:
        return rows
    by_name = {row.name: row for row in rows}
    return [by_name[key] for key in dict.fromkeys(keys) if key in by_name]


def _describe(
    node: ConfigAdministration, ctx: Context, asked: DescribeConfigsResource
) -> list[ConfigRow]:
    name = asked.resource_name
    # An empty list of keys means all of them, as null does (KAFKA-15695).
    keys = frozenset(asked.configuration_keys or ()) or None
    if asked.resource_type == TOPIC:
        if not node.access.allowed(ctx, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if not is_legal_name(name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} is no topic name")
        if name not in node.image.topics_by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(node.image.config(TOPIC, name), node.settings, keys)
    if asked.resource_type == GROUP:
        if not node.access.allowed(ctx, Operation.DESCRIBE_CONFIGS, Resource.GROUP, name):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the group has no name")
        try:
            return describe_group(node.image.config(GROUP, name), node.settings, keys)
        except ConfigError as error:  # the node's bounds have moved since it was set
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if not node.access.allowed(ctx, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if asked.resource_type == BROKER:
        if not name:
            return describe_cluster(node.settings, keys)
        if name != str(node.id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"broker {name} was asked for at broker {node.id}: ask that broker itself",
            )
        return describe_broker(node.settings, keys)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"settings of resource type {asked.resource_type} are not served",
    )


def _shown(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    shown = DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=row.is_sensitive,
        config_type=row.kind,
        documentation=row.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        shown.synonyms = [
            DescribeConfigsSynonym(name=word.name, value=word.value, source=word.source)
            for word in row.synonyms
        ]
    return shown


def refuse_describe_configs(
    request: DescribeConfigsRequest, code: ErrorCode, text: str
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=code,
                error_message=text,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked in request.resources
        ]
    )


def list_config_resources(
    node: ConfigAdministration, ctx: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Deferred[ListConfigResourcesResponse]:
    if not node.access.allowed(ctx, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    # Version 0 only knew the resources of client metrics, of which there are none.
    wanted = request.resource_types if ctx.version >= 1 else [CLIENT_METRICS]
    if any(kind not in LISTED for kind in wanted):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    kinds = sorted(set(wanted) or LISTED)
    return at_once_or_deferred(_listed(node.image, kinds), node.world.clock)


def _listed(
    image: ClusterImage, kinds: Iterable[int]
) -> Generator[None, None, ListConfigResourcesResponse]:
    response = ListConfigResourcesResponse()
    for kind in kinds:
        for count, name in enumerate(_names(image, kind), 1):
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
            if count % AT_ONCE == 0:
                yield
    return response


def _names(image: ClusterImage, kind: int) -> list[str]:
    """Those of one moment."""
    if kind == TOPIC:
        return sorted(image.topics_by_name)
    if kind in (BROKER, BROKER_LOGGER):
        return [str(broker) for broker in sorted(image.brokers)]
    return sorted(name for of, name in image.configs if of == GROUP == kind)


# ---- changing ----


def alter_configs(
    node: ConfigAdministration, ctx: Context, request: AlterConfigsRequest
) -> Deferred[AlterConfigsResponse]:
    return Deferred(_alter(node, ctx, request, AlterConfigsResponse(), _refused_alter))


def incremental_alter_configs(
    node: ConfigAdministration, ctx: Context, request: IncrementalAlterConfigsRequest
) -> Deferred[IncrementalAlterConfigsResponse]:
    return Deferred(
        _alter(node, ctx, request, IncrementalAlterConfigsResponse(), _refused_incremental)
    )


async def _alter(
    node: ConfigAdministration,
    ctx: Context,
    request: Any,
    response: Any,
    refused: Callable[[Any, ErrorCode, str], Any],
) -> Any:
    """Both requests have one shape; what differs is decided by the controller."""
    refusals = []
    allowed = []
    for resource in request.resources:
        code = _refuse_alter(node, ctx, resource.resource_type, resource.resource_name)
        if code is None and (why := _cordon_refusal(node, ctx, resource)):
            refusals.append(refused(resource, ErrorCode.INVALID_REQUEST, why))
        elif code is None:
            allowed.append(resource)
        else:
            text = code.text
            if code is ErrorCode.INVALID_REQUEST:
                text = f"settings of resource type {resource.resource_type} are not served"
            refusals.append(refused(resource, code, text))
    request.resources = allowed
    if allowed:
        response = await node.controller.call(request, ctx.version, ctx)
    response.responses.extend(refusals)
    return response


def _refuse_alter(
    node: ConfigAdministration, ctx: Context, kind: int, name: str
) -> ErrorCode | None:
    if kind == TOPIC:
        if not node.access.allowed(ctx, Operation.ALTER_CONFIGS, Resource.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        # Without a name it is the request that is wrong, which the controller says.
        if name and not is_legal_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return None
    if kind == BROKER:
        if not node.access.allowed(ctx, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return None
    if kind == GROUP:
        if not node.access.allowed(ctx, Operation.ALTER_CONFIGS, Resource.GROUP, name):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None
    return ErrorCode.INVALID_REQUEST


def _cordon_refusal(node: ConfigAdministration, ctx: Context, resource: Any) -> str:
    """Why a broker's cordons cannot be as they are asked for; empty where they can.

    Which directories there are only that broker knows, so it is asked itself (KIP-1066). What was
    forwarded was looked at by it before.
    """
    asked = [
        path.strip()
        for each in resource.configs
        if each.name == CORDONS and getattr(each, "config_operation", ConfigOperation.SET) in ADDING
        for path in (each.value or "").split(",")
    ]
    named = [path for path in asked if path]
    if resource.resource_type != BROKER or not resource.resource_name or not named:
        return ""
    if ctx.connection is None:
        return ""
    if resource.resource_name != str(node.id):
        return f"{CORDONS} of broker {resource.resource_name} is set at that broker itself"
    try:
        node.settings.check_cordons(named)
    except ConfigError as error:
        return str(error)
    return ""


def _refused_alter(
    resource: Any, code: ErrorCode, text: str
) -> AlterConfigsResponseAlterConfigsResourceResponse:
    return AlterConfigsResponseAlterConfigsResourceResponse(
        error_code=code,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _refused_incremental(
    resource: Any, code: ErrorCode, text: str
) -> IncrementalAlterConfigsResponseAlterConfigsResourceResponse:
    return IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
        error_code=code,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def refuse_alter_configs(
    request: AlterConfigsRequest, code: ErrorCode, text: str
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[_refused_alter(resource, code, text) for resource in request.resources]
    )


def refuse_incremental(
    request: IncrementalAlterConfigsRequest, code: ErrorCode, text: str
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_refused_incremental(resource, code, text) for resource in request.resources]
    )
