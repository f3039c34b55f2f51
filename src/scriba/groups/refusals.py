"""The answer that refuses a whole request, for every request that groups take.

Where Kafka reports errors by group, topic or partition, the one error is repeated in each. The
coordinator uses these answers for its own errors; whoever runs it, for a shard that is loading or
led elsewhere.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from scriba.errors import ErrorCode
from scriba.wire.messages import groups as wire
from scriba.wire.messages.txn import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from scriba.wire.schema import Message


def refuses(request: Message) -> bool:
    """Whether it is a request that groups take."""
    return type(request) in _REFUSALS


def refused(request: Message, error: ErrorCode, version: int) -> Message:
    return _REFUSALS[type(request)](request, error, version)


def _join(request: wire.JoinGroupRequest, error: ErrorCode, version: int) -> Message:
    name = None if version >= 7 else ""
    return wire.JoinGroupResponse(error_code=error, member_id=request.member_id, protocol_name=name)


def _heartbeat(request: wire.HeartbeatRequest, error: ErrorCode, version: int) -> Message:
    # While a shard loads, no session is counted, so its members need not hear of it.
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.NONE
    return wire.HeartbeatResponse(error_code=error)


def _leave(request: wire.LeaveGroupRequest, error: ErrorCode, version: int) -> Message:
    if error is not ErrorCode.UNKNOWN_MEMBER_ID or version < 3:
        return wire.LeaveGroupResponse(error_code=error)
    members = [
        wire.MemberResponse(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error
        )
        for member in request.members
    ]
    return wire.LeaveGroupResponse(members=members)


def _commit(request: wire.OffsetCommitRequest, error: ErrorCode, version: int) -> Message:
    return wire.OffsetCommitResponse(
        topics=[
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    wire.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _txn_commit(request: TxnOffsetCommitRequest, error: ErrorCode, version: int) -> Message:
    # The producers that send the first two versions do not know the error of a shard that loads.
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < 2:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _fetch(request: wire.OffsetFetchRequest, error: ErrorCode, version: int) -> Message:
    if version >= 8:
        groups = [
            wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
            for group in request.groups
        ]
        return wire.OffsetFetchResponse(groups=groups)
    if version >= 2:
        return wire.OffsetFetchResponse(error_code=error)
    topics = [
        wire.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                wire.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, error_code=error
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return wire.OffsetFetchResponse(topics=topics)


def _describe(request: wire.DescribeGroupsRequest, error: ErrorCode, version: int) -> Message:
    groups = [
        wire.DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error)
        for group_id in request.groups
    ]
    return wire.DescribeGroupsResponse(groups=groups)


def _describe_consumer(
    request: wire.ConsumerGroupDescribeRequest, error: ErrorCode, version: int
) -> Message:
    groups = [
        wire.ConsumerGroupDescribeResponseDescribedGroup(group_id=group_id, error_code=error)
        for group_id in request.group_ids
    ]
    return wire.ConsumerGroupDescribeResponse(groups=groups)


def _delete(request: wire.DeleteGroupsRequest, error: ErrorCode, version: int) -> Message:
    results = [
        wire.DeletableGroupResult(group_id=group_id, error_code=error)
        for group_id in request.groups_names
    ]
    return wire.DeleteGroupsResponse(results=results)


_REFUSALS: Final[Mapping[type[Message], Callable[[Any, ErrorCode, int], Message]]] = {
    wire.JoinGroupRequest: _join,
    wire.SyncGroupRequest: lambda _, error, __: wire.SyncGroupResponse(error_code=error),
    wire.HeartbeatRequest: _heartbeat,
    wire.LeaveGroupRequest: _leave,
    wire.OffsetCommitRequest: _commit,
    wire.OffsetFetchRequest: _fetch,
    wire.OffsetDeleteRequest: lambda _, error, __: wire.OffsetDeleteResponse(error_code=error),
    TxnOffsetCommitRequest: _txn_commit,
    wire.DescribeGroupsRequest: _describe,
    wire.ListGroupsRequest: lambda _, error, __: wire.ListGroupsResponse(error_code=error),
    wire.DeleteGroupsRequest: _delete,
    wire.ConsumerGroupHeartbeatRequest: lambda _, error, __: wire.ConsumerGroupHeartbeatResponse(
        error_code=error
    ),
    wire.ConsumerGroupDescribeRequest: _describe_consumer,
}
