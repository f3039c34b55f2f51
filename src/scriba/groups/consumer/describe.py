"""ConsumerGroupDescribe; replay of the records of consumer groups; topics that change."""

from collections.abc import Generator, Iterable
from typing import Final

from scriba.errors import ErrorCode
from scriba.groups.consumer.group import ConsumerGroup
from scriba.groups.consumer.member import ConsumerMember
from scriba.groups.state import State
from scriba.instant import Instant
from scriba.outcome import Caller, Origin, Outcome, Token, at_once
from scriba.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseTopicPartitions,
    Member,
)
from scriba.wire.messages.stored_groups import ConsumerGroupMetadataKey
from scriba.wire.schema import Message

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
AT_ONCE: Final = 250
"""Members, and partitions assigned to them, that are described in one go."""


def describe(
    state: State,
    request: ConsumerGroupDescribeRequest,
    token: Token,
    caller: Caller,
    now: Instant,
) -> Outcome:
    known = (state.store.groups.get(group_id) for group_id in request.group_ids)
    much = sum(_weight(group) for group in known if isinstance(group, ConsumerGroup)) > AT_ONCE
    work = _describe_all(state, request, token)
    return Outcome(work=work) if much else at_once(work)


def _weight(group: ConsumerGroup) -> int:
    targets = (partitions for topics in group.target.values() for partitions in topics.values())
    return len(group.members) + sum(map(len, targets))


def _describe_all(
    state: State, request: ConsumerGroupDescribeRequest, token: Token
) -> Generator[None, None, Outcome]:
    groups = []
    for group_id in request.group_ids:
        described = yield from _describe(state, group_id)
        groups.append(described)
    return Outcome(replies=[(token, ConsumerGroupDescribeResponse(groups=groups))])


def _describe(
    state: State, group_id: str
) -> Generator[None, None, ConsumerGroupDescribeResponseDescribedGroup]:
    group = state.store.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return ConsumerGroupDescribeResponseDescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
        )
    described = ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(state.settings.consumer_assignors),
    )
    for member in group.members.values():
        described.members.append(_member(state, group, member))
        yield
    return described


def _member(state: State, group: ConsumerGroup, member: ConsumerMember) -> Member:
    """What it must give up counts as its own until it has."""
    held: dict[bytes, list[int]] = {}
    for topic, partition in member.places():
        held.setdefault(topic, []).append(partition)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(state, held.items()),
        target_assignment=_assignment(state, group.target.get(member.member_id, {}).items()),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(
    state: State, places: Iterable[tuple[bytes, Iterable[int]]]
) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
            )
            for topic_id, partitions in places
            if (topic := state.topics.by_id(topic_id)) is not None
        ]
    )


def replay(state: State, key: Message, value: Message | None, origin: Origin) -> None:
    """Any record makes the group, since a compacted log may hold them in any order; only the
    tombstone of its epoch ends it. A group that went over to the other protocol lives there
    already, and takes no notice of what clears it away here."""
    group_id: str = key.group_id  # type: ignore[attr-defined]
    groups = state.store.groups
    group = groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        group = groups[group_id] = ConsumerGroup(group_id)
    if value is None and isinstance(key, ConsumerGroupMetadataKey):
        del groups[group_id]
        return
    group.apply(key, value)


def on_topics_changed(state: State, names: Iterable[str], now: Instant) -> Outcome:
    """The next heartbeat in each group finds out whether this changes what it shares."""
    changed = frozenset(names)
    for group in state.store.groups.values():
        if isinstance(group, ConsumerGroup):
            group.stale |= not changed.isdisjoint(group.topics())
            group.topics_came |= bool(group.regexes)
    return Outcome()
