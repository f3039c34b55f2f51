"""The records of a consumer group, as changes."""

from collections.abc import Iterable

from scriba.groups.assignors import Assignment
from scriba.groups.consumer.member import ConsumerMember
from scriba.outcome import Change
from scriba.wire.messages.stored_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMemberValueTopicPartition,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


def member(group_id: str, member: ConsumerMember) -> Change:
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return Change(key, member.metadata())


def current(group_id: str, member: ConsumerMember) -> Change:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return Change(key, member.holding())


def epoch(group_id: str, epoch: int, metadata_hash: int) -> Change:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Change(ConsumerGroupMetadataKey(group_id=group_id), value)


def target(group_id: str, member_id: str, target: Assignment) -> Change:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            ConsumerGroupTargetAssignmentMemberValueTopicPartition(
                topic_id=topic, partitions=sorted(target[topic])
            )
            for topic in sorted(target)
        ]
    )
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return Change(key, value)


def target_epoch(group_id: str, epoch: int, wall_ms: int) -> Change:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=wall_ms
    )
    return Change(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def regex(group_id: str, regex: str, topics: Iterable[str], version: int, wall_ms: int) -> Change:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(topics), version=version, timestamp=wall_ms
    )
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return Change(key, value)


def no_regex(group_id: str, regex: str) -> Change:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return Change(key, None)


def no_partition_metadata(group_id: str) -> Change:
    """What Kafka before 4.1 stored in place of the hash."""
    return Change(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def no_member(group_id: str, member_id: str) -> list[Change]:
    """In the order in which Kafka demands them when it reads them back."""
    return [
        Change(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        Change(
            ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        ),
        Change(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def no_group(group_id: str, members: Iterable[str], regexes: Iterable[str]) -> list[Change]:
    ids = sorted(members)
    return [
        *(
            Change(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=id), None)
            for id in ids
        ),
        *(
            Change(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=id), None)
            for id in ids
        ),
        Change(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(
            Change(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=id), None)
            for id in ids
        ),
        *(no_regex(group_id, regex) for regex in sorted(regexes)),
        no_partition_metadata(group_id),
        Change(ConsumerGroupMetadataKey(group_id=group_id), None),
    ]
