"""Configs of topics, brokers and groups: what may be set, and how lists grow and shrink (KIP-339).

A topic's configs are checked as a whole, as they would be after the change. A broker's configs are
checked against what a running node can take; those for all brokers have the empty name.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from scriba.config import ConfigError, Kind, Settings
from scriba.controller.image import BROKER, ELIGIBLE_VERSION, GROUP, TOPIC
from scriba.controller.partitions.elections import (
    CHECKED_AT_ONCE,
    MIN_ISR,
    check_observers,
    observe,
    reckon_eligible,
)
from scriba.controller.partitions.placement import check_racks
from scriba.controller.plans import BARRIER, Step
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.settings import GroupConfigs, NodeSettings, TopicSettings
from scriba.settings.placement import PLACEMENT
from scriba.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from scriba.wire.messages.stored import ConfigRecord
from scriba.wire.schema import Message

MAX_VALUE_LENGTH: Final = (1 << 15) - 1


class Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def incremental_alter_configs(
    state: State, request: IncrementalAlterConfigsRequest, version: int, now: Instant
) -> Result:
    response = IncrementalAlterConfigsResponse()
    answer = IncrementalAlterConfigsResponseAlterConfigsResourceResponse
    plan = _each_resource(
        request.resources,
        lambda resource: _incremental(
            state, resource.resource_type, resource.resource_name, resource.configs
        ),
        lambda **outcome: response.responses.append(answer(**outcome)),
    )
    return _result(plan, response, request.validate_only)


def alter_configs(state: State, request: AlterConfigsRequest, version: int, now: Instant) -> Result:
    """The older request replaces everything: what it does not name goes back to its default."""

    def replace_all(resource: Any) -> Iterable[Step]:
        wanted = {config.name: config.value for config in resource.configs}
        key = (resource.resource_type, resource.resource_name)
        dropped = dict.fromkeys(name for name in state.image.config(*key) if name not in wanted)
        return _changes(state, *key, wanted | dropped)

    response = AlterConfigsResponse()
    answer = AlterConfigsResponseAlterConfigsResourceResponse
    plan = _each_resource(
        request.resources,
        replace_all,
        lambda **outcome: response.responses.append(answer(**outcome)),
    )
    return _result(plan, response, request.validate_only)


def _result(plan: Iterator[Step], response: Message, validate_only: bool) -> Result:
    return Result(_unwritten(plan) if validate_only else plan, response)


def _unwritten(plan: Iterator[Step]) -> Iterator[Step]:
    """The plan without its records, in slices like it."""
    for number, step in enumerate(plan, 1):
        if step is BARRIER or number % CHECKED_AT_ONCE == 0:
            yield BARRIER


def _each_resource(
    resources: Sequence[Any],
    alter: Callable[[Any], Iterable[Step]],
    answer: Callable[..., None],
) -> Iterator[Step]:
    """One resource's error does not touch the others.

    Settings of all brokers and those of a topic may concern the same partitions, so they are
    written apart. Topics have none in common.
    """
    seen: dict[tuple[int, str], int] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        seen[key] = seen.get(key, 0) + 1
    apart = False
    for position, resource in enumerate(resources):
        of_all_brokers = resource.resource_type == BROKER and not resource.resource_name
        if position and (of_all_brokers or apart):
            yield BARRIER
        apart = of_all_brokers
        key = (resource.resource_type, resource.resource_name)
        code, message = ErrorCode.NONE, None
        try:
            if seen[key] > 1:
                fail(
                    ErrorCode.INVALID_REQUEST,
                    f"the request names resource {resource.resource_name!r} {seen[key]} times; "
                    "put its changes together",
                )
            _refuse_ambiguous(resource.configs)
            yield from alter(resource)
        except KafkaError as error:
            code, message = error.code, error.message
        answer(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )


def _refuse_ambiguous(configs: Iterable[Any]) -> None:
    configs = list(configs)
    counts = Counter(config.name for config in configs)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        fail(
            ErrorCode.INVALID_REQUEST, f"given more than once: {', '.join(repeated)}; give one each"
        )
    nothing = [
        config.name
        for config in configs
        if config.value is None
        and getattr(config, "config_operation", Operation.SET) != Operation.DELETE
    ]
    if nothing:
        fail(
            ErrorCode.INVALID_REQUEST,
            f"no value for {', '.join(nothing)}; to return to the default, delete the key",
        )


def _incremental(
    state: State,
    resource_type: int,
    name: str,
    configs: Iterable[IncrementalAlterConfigsRequestAlterableConfig],
) -> Iterable[Step]:
    current = state.image.config(resource_type, name)
    wanted: dict[str, str | None] = {}
    for config in configs:
        value = config.value
        match config.config_operation:
            case Operation.SET:
                wanted[config.name] = value
            case Operation.DELETE:
                wanted[config.name] = None
            case Operation.APPEND | Operation.SUBTRACT as operation:
                old = current.get(config.name)
                if old is None:
                    old = _default(state, resource_type, config.name)
                wanted[config.name] = _edited_list(
                    resource_type, config.name, old, value or "", Operation(operation)
                )
            case unknown:
                fail(
                    ErrorCode.INVALID_REQUEST,
                    f"{config.name}: {unknown} is no operation; they go from 0 (set) to 3 "
                    "(subtract)",
                )
    return _changes(state, resource_type, name, wanted)


def _edited_list(
    resource_type: int, name: str, old: str | None, change: str, operation: Operation
) -> str:
    declaration = _table(resource_type).table.get(name)
    if declaration is None or declaration.kind is not Kind.LIST:
        fail(
            ErrorCode.INVALID_CONFIG,
            f"{name}: {operation.name} is for lists only; use SET",
        )
    items = [item for item in (old or "").split(",") if item]
    for item in change.split(","):
        if operation is Operation.SUBTRACT:
            if item in items:
                items.remove(item)
        elif item not in items:
            items.append(item)
    return ",".join(items)


def _default(state: State, resource_type: int, name: str) -> str | None:
    declaration = _table(resource_type).table.get(name)
    if declaration is None:
        return None
    holder: Settings = state.settings
    if resource_type == TOPIC:
        holder = state.settings.topic_defaults
    return declaration.render(holder.value(name))


def _table(resource_type: int) -> type[Settings]:
    return {TOPIC: TopicSettings, GROUP: GroupConfigs}.get(resource_type, NodeSettings)


def _changes(
    state: State, resource_type: int, name: str, wanted: Mapping[str, str | None]
) -> Iterable[Step]:
    """The records that bring the resource to `wanted` (None: back to the default), checked.

    Of partitions there may be many: those are made as they are pulled.
    """
    current = state.image.config(resource_type, name)
    after = {key: value for key, value in current.items() if key not in wanted}
    after |= {key: value for key, value in wanted.items() if value is not None}
    refuse_long(after)
    if resource_type == TOPIC:
        _check_topic(state, name, after)
    elif resource_type == BROKER:
        _check_broker(state, name, after, wanted)
    elif resource_type == GROUP:
        _check_group(state, name, after)
    else:
        fail(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} has no settings here; topics are {TOPIC}, brokers "
            f"{BROKER}, groups {GROUP}",
        )
    # A broker's config is written even if it stays the same: that makes a broker read files
    # named by it again.
    records: list[Message] = [
        ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)
        for key, value in wanted.items()
        if value != current.get(key) or resource_type == BROKER
    ]
    if PLACEMENT in wanted and resource_type == TOPIC:
        check_racks(state, after.get(PLACEMENT))
        topic = state.image.topics_by_name[name]
        checked = check_observers(state, topic, after)
        return chain(checked, records, observe(state, topic, after))
    if MIN_ISR in wanted and resource_type == TOPIC:
        min_isr = TopicSettings.resolve(after, state.settings).min_insync_replicas
        return chain(records, reckon_eligible(state, name, min_isr))
    if MIN_ISR in wanted and resource_type == BROKER and not name:
        own = after.get(MIN_ISR)
        min_isr = (
            NodeSettings.table[MIN_ISR].parse(own) if own else state.settings.min_insync_replicas
        )
        return chain(records, reckon_eligible(state, None, min_isr))
    return records


def refuse_long(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if len(value) > MAX_VALUE_LENGTH:
            fail(
                ErrorCode.INVALID_CONFIG,
                f"{name}: its value has {len(value)} characters, {MAX_VALUE_LENGTH} are allowed",
            )


def _check_topic(state: State, name: str, after: Mapping[str, str]) -> None:
    if not name:
        fail(
            ErrorCode.INVALID_REQUEST,
            "the topic has no name; what holds for all topics is set on the brokers",
        )
    try:
        TopicSettings.checked(after, state.settings)
    except ConfigError as error:
        fail(ErrorCode.INVALID_CONFIG, str(error))
    if name not in state.image.topics_by_name:
        fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name} to configure")


def _check_group(state: State, name: str, after: Mapping[str, str]) -> None:
    if not name:
        fail(
            ErrorCode.INVALID_REQUEST,
            "the group has no name; what holds for all groups is set on the brokers",
        )
    try:
        GroupConfigs.resolve(after, state.settings)
    except ConfigError as error:
        fail(ErrorCode.INVALID_CONFIG, str(error))


def _check_broker(
    state: State, name: str, after: Mapping[str, str], wanted: Mapping[str, str | None]
) -> None:
    if name:
        broker_id = _broker_id(name)
        if broker_id not in state.image.brokers:
            fail(ErrorCode.INVALID_REQUEST, f"there is no broker {name} to configure")
    changes = {key: value for key, value in wanted.items() if value is not None}
    if MIN_ISR in wanted and state.image.features.get(ELIGIBLE_VERSION):
        if name:
            fail(
                ErrorCode.INVALID_CONFIG,
                f"{MIN_ISR} is one for all brokers while there are eligible leader replicas "
                f"({ELIGIBLE_VERSION}); set it for the topic, or for all brokers",
            )
        if MIN_ISR not in after:
            fail(
                ErrorCode.INVALID_CONFIG,
                f"{MIN_ISR} of the cluster is needed while there are eligible leader replicas "
                f"({ELIGIBLE_VERSION}); set another value instead",
            )
    try:
        NodeSettings.check_dynamic(changes, cluster=not name)
        if name in ("", str(state.node_id)):
            cluster = state.image.config(BROKER, "") if name else after
            own = after if name else state.image.config(BROKER, str(state.node_id))
            state.settings.with_dynamic(cluster, own)
    except ConfigError as error:
        fail(ErrorCode.INVALID_REQUEST, str(error))


def _broker_id(name: str) -> int:
    try:
        broker_id = int(name)
    except ValueError:
        fail(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} is no broker id; give a whole number, or nothing for all brokers",
        )
    if broker_id < 0:
        fail(ErrorCode.INVALID_REQUEST, f"{broker_id} is no broker id; they begin at 0")
    return broker_id
