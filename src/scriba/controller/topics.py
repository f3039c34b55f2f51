"""Topics and partitions are made and go: the requests of administrators."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from scriba.config import ConfigError, Source
from scriba.controller.configs import refuse_long
from scriba.controller.image import TOPIC, PartitionImage, TopicImage, partition_record
from scriba.controller.partitions.elections import MIN_ISR, Rules, rules
from scriba.controller.partitions.placement import (
    check_placement,
    check_racks,
    check_replicas,
    place,
    refuse_replicas,
)
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.settings import NodeSettings, TopicSettings, describe_topic
from scriba.settings.placement import PLACEMENT, ReplicaPlacement
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from scriba.wire.messages.stored import ConfigRecord, RemoveTopicRecord, TopicRecord
from scriba.wire.schema import Message
from scriba.wire.uuids import ZERO, to_text

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
TOO_MANY: Final = f"one request makes at most {MAX_PARTITIONS_PER_REQUEST} partitions; send several"
MAX_NAME_LENGTH: Final = 249
MAX_REMEMBERED: Final = 64
FACTOR: Final = "default.replication.factor"
SAFE_FACTOR: Final = 3
SAFE_MIN_ISR: Final = 2
"""One replica may be lost and one more be away, and nothing acknowledged is gone."""
METADATA_TOPIC: Final = "__cluster_metadata"
_LEGAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_name(name: str) -> None:
    """The rules for a topic's name, which becomes part of a directory's name."""
    if not name:
        complaint = "a topic needs a name"
    elif name in (".", ".."):
        complaint = f"{name!r} is no topic name, for it already means a directory"
    elif len(name) > MAX_NAME_LENGTH:
        complaint = f"a topic name has up to {MAX_NAME_LENGTH} characters, not {len(name)}"
    elif not _LEGAL.issuperset(name):
        complaint = f"{name!r} is no topic name; use a-z, A-Z, 0-9, '.', '_' and '-' only"
    else:
        return
    fail(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)


def is_legal_name(name: str) -> bool:
    try:
        check_name(name)
    except KafkaError:
        return False
    return True


def metric_form(name: str) -> str | None:
    """The name as metrics write it, if that may be another topic's, too: '.' becomes '_'."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def _refuse_collision(state: State, name: str) -> None:
    form = metric_form(name)
    other = state.metric_forms.get(form) if form else None
    if other is not None:
        fail(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"metrics could not tell {name} from the topic {other}, for they write '.' as '_'; "
            "choose another name",
        )


# ---- CreateTopics ----


def create_topics(state: State, request: CreateTopicsRequest, version: int, now: Instant) -> Result:
    response = CreateTopicsResponse()
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    asked = [t for t in request.topics if counts[t.name] == 1 and t.name != METADATA_TOPIC]
    for name, count in counts.items():
        if count > 1:
            why = _repeated(name)
        elif name == METADATA_TOPIC:
            why = f"{METADATA_TOPIC} is the controllers' own; take another name"
        else:
            continue
        response.topics.append(_refusal(name, ErrorCode.INVALID_REQUEST, why))
    records = _create_each(state, asked, response, request.validate_only)
    return Result(list(records) if request.validate_only else records, response)


def _create_each(
    state: State,
    asked: list[CreatableTopic],
    response: CreateTopicsResponse,
    validate_only: bool,
) -> Iterator[Message]:
    """The records of each topic that can be made; one that cannot does not spoil the others."""
    refused = _too_many_partitions(state.settings, asked)
    for topic in asked:
        try:
            if refused:
                fail(ErrorCode.POLICY_VIOLATION, TOO_MANY)
            result, records = _create_topic(state, topic)
        except KafkaError as error:
            response.topics.append(_refusal(topic.name, error.code, error.message))
            continue
        response.topics.append(result)
        if not validate_only:
            yield from records


def check_created(settings: NodeSettings, request: CreateTopicsRequest) -> None:
    """KafkaError where the request makes more partitions than one may; before it is cut up."""
    if _too_many_partitions(settings, request.topics):
        fail(ErrorCode.POLICY_VIOLATION, TOO_MANY)


def _too_many_partitions(settings: NodeSettings, topics: Iterable[CreatableTopic]) -> bool:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == -1:
            total += settings.num_partitions
        else:
            total += max(topic.num_partitions, 0)
    return total > MAX_PARTITIONS_PER_REQUEST


def _create_topic(
    state: State, topic: CreatableTopic
) -> tuple[CreatableTopicResult, Iterator[Message]]:
    """Checks in the order in which Kafka does, since the first error is the one told."""
    check_name(topic.name)
    if topic.name in state.image.topics_by_name:
        fail(ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic.name} is taken: the topic already exists")
    _refuse_collision(state, topic.name)
    configs = _checked_configs(state, topic)
    placement = check_racks(state, configs.get(PLACEMENT))
    if topic.assignments:
        replicas = _manual_assignment(state, topic, placement)
        count, factor = len(replicas), len(replicas[0])
        placed: Iterator[tuple[int, ...]] = iter(replicas)
    else:
        count, factor = _sizes(state, topic, placement)
        placed = _placed(state, factor, placement)
        if topic.replication_factor == -1:
            voters = factor if placement is None else placement.voter_count
            configs = _with_min_isr(state, configs, voters)
    topic_id = state.uuid()
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=factor,
        configs=_described(state, configs),
    )
    return result, _topic_records(state, topic.name, topic_id, configs, islice(placed, count))


def _sizes(
    state: State, topic: CreatableTopic, placement: ReplicaPlacement | None
) -> tuple[int, int]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.replication_factor} is no replication factor; give 1 or more, or -1 to get "
            f"the default ({_default_factor(state)})",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        fail(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.num_partitions} is no number of partitions; give 1 or more, or -1 to get "
            f"num.partitions ({state.settings.num_partitions})",
        )
    count, factor = topic.num_partitions, topic.replication_factor
    if placement is not None and factor not in (-1, placement.total):
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{PLACEMENT} asks for {placement.total} replicas, the request for {factor}; leave the "
            "replication factor out (-1), or give the same",
        )
    default = _default_factor(state) if placement is None else placement.total
    return (
        state.settings.num_partitions if count == -1 else count,
        default if factor == -1 else factor,
    )


def _default_factor(state: State) -> int:
    """As many replicas as a cluster of this size should have, unless somebody has chosen.

    Brokers that are fenced count: a topic that is made while one restarts is to be like the others.
    """
    if state.settings.is_given(FACTOR):
        return state.settings.default_replication_factor
    return max(min(SAFE_FACTOR, len(state.image.brokers)), 1)


def _with_min_isr(state: State, configs: dict[str, str], factor: int) -> dict[str, str]:
    """Three replicas are of use to acks=all only if more than one must have a record."""
    settings = state.settings
    chosen = (
        settings.is_given(FACTOR)
        or MIN_ISR in configs
        or MIN_ISR in settings.layer(Source.STATIC_BROKER_CONFIG)
        # A cluster has this written down from its founding; somebody chose what is not the default.
        or settings.min_insync_replicas != settings.table[MIN_ISR].default
    )
    if factor < SAFE_FACTOR or chosen:
        return configs
    return configs | {MIN_ISR: str(SAFE_MIN_ISR)}


def _placed(
    state: State, factor: int, placement: ReplicaPlacement | None
) -> Iterator[tuple[int, ...]]:
    try:
        return place(state.image.brokers.values(), factor, state.below, placement)
    except KafkaError as error:
        fail(error.code, f"replication factor {factor} is out of reach: {error.message}")


def _checked_configs(state: State, topic: CreatableTopic) -> dict[str, str]:
    nothing = [config.name for config in topic.configs if config.value is None]
    if nothing:
        fail(
            ErrorCode.INVALID_CONFIG,
            f"no value for {', '.join(nothing)}; to get the default, leave the key out",
        )
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    refuse_long(configs)
    try:
        TopicSettings.checked(configs, state.settings)
    except ConfigError as error:
        fail(ErrorCode.INVALID_CONFIG, str(error))
    return configs


def _manual_assignment(
    state: State, topic: CreatableTopic, placement: ReplicaPlacement | None
) -> list[tuple[int, ...]]:
    if topic.replication_factor != -1:
        fail(
            ErrorCode.INVALID_REQUEST,
            "the replicas are listed, so the replication factor must be -1, not "
            f"{topic.replication_factor}",
        )
    if topic.num_partitions != -1:
        fail(
            ErrorCode.INVALID_REQUEST,
            "the replicas are listed, so the number of partitions must be -1, not "
            f"{topic.num_partitions}",
        )
    by_index: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in by_index:
            fail(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {index} is listed twice",
            )
        _check_new(state, assignment.broker_ids, factor, index, placement)
        factor = len(assignment.broker_ids)
        by_index[index] = tuple(assignment.broker_ids)
    for index in range(len(by_index)):
        if index not in by_index:
            fail(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {index} is not listed; number them from 0 without a gap",
            )
    return [by_index[index] for index in range(len(by_index))]


def _check_new(
    state: State,
    brokers: Sequence[int],
    factor: int | None,
    index: int,
    placement: ReplicaPlacement | None,
) -> None:
    """A new partition's replicas: as many as the others have, and one can lead at once."""
    about = f"partition {index}"
    check_replicas(state, brokers, about)
    if factor is not None and len(brokers) != factor:
        refuse_replicas(
            about,
            f"names {len(brokers)} brokers, those before it {factor}; all need the same number",
        )
    observing = check_placement(state, brokers, about, placement)
    if not any(state.active(broker) for broker in brokers if broker not in observing):
        refuse_replicas(
            about, "names only brokers that are fenced or shutting down; add one that is active"
        )


def _described(state: State, configs: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    """Every config of the new topic. Most topics are like another one, so this is remembered."""
    key = tuple(sorted(configs.items()))
    rows = state.described.get(key)
    if rows is None:
        rows = [
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=row.is_sensitive,
            )
            for row in sorted(describe_topic(configs, state.settings))
        ]
        if len(state.described) >= MAX_REMEMBERED:
            state.described.clear()
        state.described[key] = rows
    return rows.copy()


def _topic_records(
    state: State,
    name: str,
    topic_id: bytes,
    configs: Mapping[str, str],
    placed: Iterable[tuple[int, ...]],
) -> Iterator[Message]:
    yield TopicRecord(name=name, topic_id=topic_id)
    for key, value in configs.items():
        yield ConfigRecord(resource_type=TOPIC, resource_name=name, name=key, value=value)
    yield from _partition_records(state, topic_id, 0, placed, rules(state, name, configs))


def _partition_records(
    state: State, topic_id: bytes, first: int, placed: Iterable[tuple[int, ...]], rules: Rules
) -> Iterator[Message]:
    images: dict[tuple[int, ...], PartitionImage] = {}
    for index, replicas in enumerate(placed, first):
        image = images.get(replicas)
        if image is None:
            image = images[replicas] = _new_partition(state, replicas, rules.observing)
        yield partition_record(topic_id, index, image)


def _new_partition(
    state: State, replicas: tuple[int, ...], observing: frozenset[int]
) -> PartitionImage:
    isr = tuple(b for b in replicas if state.active(b) and b not in observing)
    return PartitionImage(
        replicas=replicas,
        directories=tuple(state.image.brokers[broker].default_directory() for broker in replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def _repeated(name: str) -> str:
    return f"the request names {name} more than once; put it there once"


def _refusal(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


# ---- DeleteTopics ----


def delete_topics(state: State, request: DeleteTopicsRequest, version: int, now: Instant) -> Result:
    if not state.settings.delete_topic_enable:
        code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        fail(code, "delete.topic.enable is false on this controller")
    response = DeleteTopicsResponse()
    names: dict[str, int] = {}
    ids: dict[bytes, int] = {}
    for name in request.topic_names:
        names[name] = names.get(name, 0) + 1
    for topic in request.topics:
        if topic.name is None and topic.topic_id == ZERO:
            response.responses.append(
                _undeleted(None, ZERO, "which topic is not said; give its name or its id")
            )
        elif topic.name is None:
            ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
        elif topic.topic_id == ZERO:
            names[topic.name] = names.get(topic.name, 0) + 1
        else:
            response.responses.append(
                _undeleted(topic.name, topic.topic_id, "give a topic's name or its id, not both")
            )
    doomed = _find_doomed(state, names, ids, response)
    response.responses.extend(
        DeletableTopicResult(name=topic.name, topic_id=topic.id) for topic in doomed
    )
    return Result([RemoveTopicRecord(topic_id=topic.id) for topic in doomed], response)


def _find_doomed(
    state: State,
    names: Mapping[str, int],
    ids: Mapping[bytes, int],
    response: DeleteTopicsResponse,
) -> list[TopicImage]:
    """The topics to delete; a topic named by name and by id is a duplicate, too."""
    results = response.responses
    found: dict[bytes, TopicImage] = {}
    for topic_id, count in ids.items():
        topic = state.image.topics_by_id.get(topic_id)
        if count > 1:
            results.append(_undeleted(None, topic_id, _repeated(to_text(topic_id))))
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(
                DeletableTopicResult(
                    name=None, topic_id=topic_id, error_code=code, error_message=code.text
                )
            )
        else:
            found[topic.id] = topic
    for name, count in names.items():
        topic = state.image.topics_by_name.get(name)
        if count > 1:
            results.append(_undeleted(name, ZERO, _repeated(name)))
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(
                DeletableTopicResult(
                    name=name, topic_id=ZERO, error_code=code, error_message=code.text
                )
            )
        elif topic.id in found:
            del found[topic.id]
            why = f"the request names {name} by its id as well; give one of the two"
            results.append(_undeleted(name, topic.id, why))
        else:
            found[topic.id] = topic
    return list(found.values())


def _undeleted(name: str | None, topic_id: bytes, why: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=ErrorCode.INVALID_REQUEST, error_message=why
    )


# ---- CreatePartitions ----


def create_partitions(
    state: State, request: CreatePartitionsRequest, version: int, now: Instant
) -> Result:
    response = CreatePartitionsResponse()
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    plans: list[Iterator[Message]] = []
    for name, count in counts.items():
        if count > 1:
            response.results.append(
                CreatePartitionsTopicResult(
                    name=name,
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=_repeated(name),
                )
            )
    room = MAX_PARTITIONS_PER_REQUEST
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        result = CreatePartitionsTopicResult(name=topic.name, error_message=None)
        response.results.append(result)
        try:
            added, records = _create_partitions(state, topic, room)
            room -= added
            plans.append(records)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
    if request.validate_only:
        return Result([], response)
    return Result((record for plan in plans for record in plan), response)


def _create_partitions(
    state: State, topic: CreatePartitionsTopic, room: int
) -> tuple[int, Iterator[Message]]:
    image = state.image.topics_by_name.get(topic.name)
    if image is None:
        fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(image.partitions)
    if topic.count == present:
        fail(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is at {present} partitions; ask for more than that",
        )
    if topic.count < present:
        fail(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is at {present} partitions and cannot shrink to {topic.count}; ask for "
            "more",
        )
    added = topic.count - present
    if topic.assignments is not None and len(topic.assignments) != added:
        fail(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} new partitions need as many lists of replicas, not {len(topic.assignments)}",
        )
    if added > room:
        fail(ErrorCode.POLICY_VIOLATION, TOO_MANY)
    placement = state.image.placement(topic.name)
    factor = len(next(iter(image.partitions.values())).target)
    if placement is not None:
        factor = placement.total
    if topic.assignments is not None:
        for index, assignment in enumerate(topic.assignments, present):
            _check_new(state, assignment.broker_ids, factor, index, placement)
        placed: Iterator[tuple[int, ...]] = (tuple(a.broker_ids) for a in topic.assignments)
    else:
        placed = _placed(state, factor, placement)
    of_topic = rules(state, topic.name)
    return added, _partition_records(state, image.id, present, islice(placed, added), of_topic)
