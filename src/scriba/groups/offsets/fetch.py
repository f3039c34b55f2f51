"""Reading and deleting committed offsets: OffsetFetch and OffsetDelete."""

from collections.abc import Generator

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import refuse
from scriba.groups.facts import NO_TOPIC_ID
from scriba.groups.refusals import refused
from scriba.groups.state import State
from scriba.groups.store import Committed, Group, offset_tombstone
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, nothing
from scriba.wire.messages.groups import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

SEVERAL_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10
GROUP_ERROR_FROM = 2


# --- OffsetFetch ---


def check_asked_once(request: OffsetFetchRequest) -> Generator[None, None, None]:
    """KafkaError where a group is asked for all it has, again and again: few bytes of a request
    would have answers of millions of offsets. A step for each group."""
    seen: set[str] = set()
    for group in request.groups:
        yield
        if group.topics is None:
            if group.group_id in seen:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"group {group.group_id} is asked for all its offsets more than once",
                )
            seen.add(group.group_id)


def fetch(
    state: State, request: OffsetFetchRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Only versions up to 7 ask for one group by the request's own fields."""
    if caller.version >= SEVERAL_GROUPS_FROM:
        groups = [
            _fetch_group(state, group, request.require_stable, caller) for group in request.groups
        ]
        return Outcome(replies=[(token, OffsetFetchResponse(groups=groups))])
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    found = _fetch_group(state, group, request.require_stable, caller)
    error = ErrorCode(found.error_code)
    if error and caller.version < GROUP_ERROR_FROM:
        return Outcome(replies=[(token, refused(request, error, caller.version))])
    response = OffsetFetchResponse(error_code=error, topics=[_as_old(t) for t in found.topics])
    return Outcome(replies=[(token, response)])


def _as_old(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(
            partition_index=each.partition_index,
            committed_offset=each.committed_offset,
            committed_leader_epoch=each.committed_leader_epoch,
            metadata=each.metadata,
            error_code=each.error_code,
        )
        for each in topic.partitions
    ]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def _fetch_group(
    state: State, wanted: OffsetFetchRequestGroup, stable: bool, caller: Caller
) -> OffsetFetchResponseGroup:
    group = state.store.groups.get(wanted.group_id)
    try:
        if group is not None:
            group.check_fetch(wanted.member_id, wanted.member_epoch)
    except KafkaError as e:
        return OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=e.code)
    by_id = caller.version >= TOPIC_IDS_FROM
    if wanted.topics is None:
        topics = _fetch_all(state, wanted.group_id, stable, by_id)
    else:
        topics = [_fetch_topic(state, wanted.group_id, t, stable, by_id) for t in wanted.topics]
    return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics)


def _fetch_topic(
    state: State, group_id: str, wanted: OffsetFetchRequestTopics, stable: bool, by_id: bool
) -> OffsetFetchResponseTopics:
    """Offsets are kept by name, whether the topic still exists or not; by id only existing topics
    can be asked for, and an offset of a namesake that was deleted is none."""
    name, topic_id = wanted.name, NO_TOPIC_ID
    error = ErrorCode.NONE
    if by_id:
        facts = state.topics.by_id(wanted.topic_id)
        if facts is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name, topic_id = facts.name, facts.id
    offsets = {} if error else state.store.offsets.get(group_id, {})
    partitions = []
    for index in wanted.partition_indexes:
        committed = offsets.get((name, index))
        if committed is not None and topic_id != NO_TOPIC_ID != committed.topic_id != topic_id:
            committed = None
        unstable = not error and stable and state.store.is_pending(group_id, (name, index))
        partitions.append(_partition(index, committed, error, unstable))
    return OffsetFetchResponseTopics(name=name, topic_id=wanted.topic_id, partitions=partitions)


def _fetch_all(
    state: State, group_id: str, stable: bool, by_id: bool
) -> list[OffsetFetchResponseTopics]:
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for (name, index), committed in state.store.offsets.get(group_id, {}).items():
        topic = topics.get(name)
        if topic is None:
            facts = state.topics.get(name) if by_id else None
            topic_id = NO_TOPIC_ID if facts is None else facts.id
            topic = topics[name] = OffsetFetchResponseTopics(
                name=name, topic_id=topic_id, partitions=[]
            )
        unstable = stable and state.store.is_pending(group_id, (name, index))
        topic.partitions.append(_partition(index, committed, ErrorCode.NONE, unstable))
    # What has no id cannot be told to a client that speaks in ids.
    return [t for t in topics.values() if not by_id or t.topic_id != NO_TOPIC_ID]


def _partition(
    index: int, committed: Committed | None, error: ErrorCode, unstable: bool
) -> OffsetFetchResponsePartitions:
    if unstable:
        committed, error = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=-1, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# --- OffsetDelete ---


def delete(
    state: State, request: OffsetDeleteRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Also of a group with members, but only what nobody in it subscribes to."""
    out = Outcome(instead=nothing)
    try:
        group = _deletable(state, request.group_id)
    except KafkaError as e:
        out.replies.append((token, refused(request, e.code, caller.version)))
        return out
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in request.topics:
        facts = state.topics.get(topic.name)
        count = facts.partitions if facts is not None else 0
        partitions = []
        for index in (partition.partition_index for partition in topic.partitions):
            error = ErrorCode.NONE
            place = (topic.name, index)
            if not 0 <= index < count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group.subscribed(topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif state.store.has_offset(request.group_id, place):
                out.records.append(offset_tombstone(request.group_id, place))
            partitions.append(
                OffsetDeleteResponsePartition(partition_index=index, error_code=error)
            )
        if partitions or facts is None:
            answer = OffsetDeleteResponseTopic(name=topic.name)
            topics.setdefault(topic.name, answer).partitions += partitions
    out.replies.append((token, OffsetDeleteResponse(topics=[*topics.values()])))
    return out


def _deletable(state: State, group_id: str) -> Group:
    if not group_id:
        refuse(ErrorCode.INVALID_GROUP_ID)
    group = state.store.groups.get(group_id)
    if group is None:
        refuse(ErrorCode.GROUP_ID_NOT_FOUND)
    group.check_offset_delete()
    return group
