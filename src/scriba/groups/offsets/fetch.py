"""Reading and deleting committed offsets: OffsetFetch and OffsetDelete.

Whoever asks for all offsets of a group is told of those that there were in one step. They are
copied in it, and the answer is put together from the copy while commits go on.
"""

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import refuse
from scriba.groups.facts import NO_TOPIC_ID
from scriba.groups.refusals import refused
from scriba.groups.state import State
from scriba.groups.store import Committed, Group, TopicPartition, offset_tombstone
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Telling, Token, at_once, nothing
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
from scriba.wire.schema import Message

SEVERAL_GROUPS_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10
GROUP_ERROR_FROM: Final = 2
AT_ONCE: Final = 250
"""Offsets of a group that are told in one go."""
PAGE: Final = 50
"""Offsets that are told in one step, where there are more."""


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


class Copy(NamedTuple):
    """All offsets of a group at one moment, and how many transactions have one pending where."""

    offsets: Mapping[TopicPartition, Committed]
    unstable: Mapping[TopicPartition, int]


def fetch(
    state: State, request: OffsetFetchRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    groups: list[OffsetFetchResponseGroup] = []
    copies: list[tuple[OffsetFetchResponseGroup, Copy]] = []
    for wanted in _wanted(request, caller.version):
        found, copy = _fetch_group(state, wanted, request.require_stable, caller)
        groups.append(found)
        if copy is not None:
            copies.append((found, copy))
    telling = _tell(state, request, groups, copies, caller)
    if sum(len(copy.offsets) for _, copy in copies) > AT_ONCE:
        return Outcome(told=[(token, telling)])
    return Outcome(replies=[(token, at_once(telling))])


def _wanted(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """Only versions up to 7 ask for one group by the request's own fields."""
    if version >= SEVERAL_GROUPS_FROM:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _fetch_group(
    state: State, wanted: OffsetFetchRequestGroup, stable: bool, caller: Caller
) -> tuple[OffsetFetchResponseGroup, Copy | None]:
    """The answer for a group, or where all it has is asked for, a copy to complete it from."""
    found = OffsetFetchResponseGroup(group_id=wanted.group_id)
    group = state.store.groups.get(wanted.group_id)
    try:
        if group is not None:
            group.check_fetch(wanted.member_id, wanted.member_epoch)
    except KafkaError as e:
        found.error_code = e.code
        return found, None
    if wanted.topics is None:
        offsets = state.store.offsets.get(wanted.group_id, {}).copy()
        unstable = state.store.unstable.get(wanted.group_id, {}).copy() if stable else {}
        return found, Copy(offsets, unstable)
    by_id = caller.version >= TOPIC_IDS_FROM
    found.topics = [_fetch_topic(state, wanted.group_id, t, stable, by_id) for t in wanted.topics]
    return found, None


def _tell(
    state: State,
    request: OffsetFetchRequest,
    groups: list[OffsetFetchResponseGroup],
    copies: list[tuple[OffsetFetchResponseGroup, Copy]],
    caller: Caller,
) -> Telling:
    for group, copy in copies:
        group.topics = yield from _fetch_all(state, copy, caller)
    if caller.version >= SEVERAL_GROUPS_FROM:
        return OffsetFetchResponse(groups=groups)
    (found,) = groups
    error = ErrorCode(found.error_code)
    if error and caller.version < GROUP_ERROR_FROM:
        answer: Message = refused(request, error, caller.version)
        return answer
    response = OffsetFetchResponse(error_code=error)
    for topic in found.topics:
        old = yield from _as_old(topic)
        response.topics.append(old)
    return response


def _as_old(
    topic: OffsetFetchResponseTopics,
) -> Generator[None, None, OffsetFetchResponseTopic]:
    """Takes the partitions away one by one: as many at once would take long to let go of."""
    old = OffsetFetchResponseTopic(name=topic.name)
    topic.partitions.reverse()
    while topic.partitions:
        each = topic.partitions.pop()
        old.partitions.append(
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
        )
        if len(old.partitions) % PAGE == 0:
            yield
    return old


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
    topic = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
    for index in wanted.partition_indexes:
        committed = offsets.get((name, index))
        if committed is not None and not _is_of(topic, committed):
            committed = None
        unstable = not error and stable and state.store.is_pending(group_id, (name, index))
        topic.partitions.append(_partition(index, committed, error, unstable))
    topic.topic_id = wanted.topic_id
    return topic


def _fetch_all(
    state: State, copy: Copy, caller: Caller
) -> Generator[None, None, list[OffsetFetchResponseTopics]]:
    """Of the topics that the caller may know of."""
    by_id = caller.version >= TOPIC_IDS_FROM
    topics: dict[str, OffsetFetchResponseTopics | None] = {}
    for count, (place, committed) in enumerate(copy.offsets.items(), 1):
        if count % PAGE == 0:
            yield
        name, index = place
        if name not in topics:
            topics[name] = _topic(state, name, caller, by_id)
        topic = topics[name]
        if topic is not None and _is_of(topic, committed):
            unstable = place in copy.unstable
            topic.partitions.append(_partition(index, committed, ErrorCode.NONE, unstable))
    return [topic for topic in topics.values() if topic is not None]


def _topic(
    state: State, name: str, caller: Caller, by_id: bool
) -> OffsetFetchResponseTopics | None:
    """None for one that is not told of: what has no id cannot be, in ids."""
    if caller.sees is not None and not caller.sees(name):
        return None
    if not by_id:
        return OffsetFetchResponseTopics(name=name)
    facts = state.topics.get(name)
    return None if facts is None else OffsetFetchResponseTopics(name=name, topic_id=facts.id)


def _is_of(topic: OffsetFetchResponseTopics, committed: Committed) -> bool:
    """Whether the offset is not of a deleted namesake, where topics are told apart by id."""
    return NO_TOPIC_ID in (topic.topic_id, committed.topic_id) or (
        topic.topic_id == committed.topic_id
    )


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
