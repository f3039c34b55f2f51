"""Consumer groups: the classic protocol, the consumer protocol, committed offsets."""

from scriba.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    NullableStr,
    Str,
    Struct,
    Uuid,
    field,
)


class JoinGroupRequestProtocol(Struct):
    name: Str = field("0+")
    metadata: Bytes = field("0+")


class JoinGroupRequest(Message, key=11, versions="0-9", flexible="6+"):
    group_id: Str = field("0+")
    session_timeout_ms: Int32 = field("0+")
    rebalance_timeout_ms: Int32 = field("1+", default=-1, ignorable=True)
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("5+", default=None)
    protocol_type: Str = field("0+")
    protocols: list[JoinGroupRequestProtocol] = field("0+")
    reason: NullableStr = field("8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("5+", default=None, ignorable=True)
    metadata: Bytes = field("0+")


class JoinGroupResponse(Message, key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: Int32 = field("2+", ignorable=True)
    error_code: Int16 = field("0+")
    generation_id: Int32 = field("0+", default=-1)
    protocol_type: NullableStr = field("7+", default=None, ignorable=True)
    protocol_name: NullableStr = field("0+", nullable="7+")
    leader: Str = field("0+")
    skip_assignment: Bool = field("9+")
    member_id: Str = field("0+")
    members: list[JoinGroupResponseMember] = field("0+")


class SyncGroupRequestAssignment(Struct):
    member_id: Str = field("0+")
    assignment: Bytes = field("0+")


class SyncGroupRequest(Message, key=14, versions="0-5", flexible="4+"):
    group_id: Str = field("0+")
    generation_id: Int32 = field("0+")
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("3+", default=None)
    protocol_type: NullableStr = field("5+", default=None, ignorable=True)
    protocol_name: NullableStr = field("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field("0+")


class SyncGroupResponse(Message, key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    protocol_type: NullableStr = field("5+", default=None, ignorable=True)
    protocol_name: NullableStr = field("5+", default=None, ignorable=True)
    assignment: Bytes = field("0+")


class HeartbeatRequest(Message, key=12, versions="0-4", flexible="4+"):
    group_id: Str = field("0+")
    generation_id: Int32 = field("0+")
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("3+", default=None)


class HeartbeatResponse(Message, key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")


class MemberIdentity(Struct):
    member_id: Str = field("3+")
    group_instance_id: NullableStr = field("3+", default=None)
    reason: NullableStr = field("5+", default=None, ignorable=True)


class LeaveGroupRequest(Message, key=13, versions="0-5", flexible="4+"):
    group_id: Str = field("0+")
    member_id: Str = field("0-2")
    members: list[MemberIdentity] = field("3+")


class MemberResponse(Struct):
    member_id: Str = field("3+")
    group_instance_id: NullableStr = field("3+")
    error_code: Int16 = field("3+")


class LeaveGroupResponse(Message, key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    members: list[MemberResponse] = field("3+")


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = field("0+")
    committed_offset: Int64 = field("0+")
    committed_leader_epoch: Int32 = field("6+", default=-1, ignorable=True)
    committed_metadata: NullableStr = field("0+")


class OffsetCommitRequestTopic(Struct):
    name: Str = field("0-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field("0+")


class OffsetCommitRequest(Message, key=8, versions="2-10", flexible="8+"):
    group_id: Str = field("0+")
    generation_id_or_member_epoch: Int32 = field("1+", default=-1)
    member_id: Str = field("1+")
    group_instance_id: NullableStr = field("7+", default=None)
    retention_time_ms: Int64 = field("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field("0+")


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")


class OffsetCommitResponseTopic(Struct):
    name: Str = field("0-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field("0+")


class OffsetCommitResponse(Message, key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field("0+")


class OffsetFetchRequestTopic(Struct):
    name: Str = field("0-7")
    partition_indexes: list[Int32] = field("0-7")


class OffsetFetchRequestTopics(Struct):
    name: Str = field("8-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partition_indexes: list[Int32] = field("8+")


class OffsetFetchRequestGroup(Struct):
    group_id: Str = field("8+")
    member_id: NullableStr = field("9+", default=None, ignorable=True)
    member_epoch: Int32 = field("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = field("8+")


class OffsetFetchRequest(Message, key=9, versions="1-10", flexible="6+"):
    group_id: Str = field("0-7")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+")
    require_stable: Bool = field("7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = field("0-7")
    committed_offset: Int64 = field("0-7")
    committed_leader_epoch: Int32 = field("5-7", default=-1, ignorable=True)
    metadata: NullableStr = field("0-7")
    error_code: Int16 = field("0-7")


class OffsetFetchResponseTopic(Struct):
    name: Str = field("0-7")
    partitions: list[OffsetFetchResponsePartition] = field("0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32 = field("8+")
    committed_offset: Int64 = field("8+")
    committed_leader_epoch: Int32 = field("8+", default=-1, ignorable=True)
    metadata: NullableStr = field("8+")
    error_code: Int16 = field("8+")


class OffsetFetchResponseTopics(Struct):
    name: Str = field("8-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field("8+")


class OffsetFetchResponseGroup(Struct):
    group_id: Str = field("8+")
    topics: list[OffsetFetchResponseTopics] = field("8+")
    error_code: Int16 = field("8+")


class OffsetFetchResponse(Message, key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field("0-7")
    error_code: Int16 = field("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field("8+")


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = field("0+")


class OffsetDeleteRequestTopic(Struct):
    name: Str = field("0+")
    partitions: list[OffsetDeleteRequestPartition] = field("0+")


class OffsetDeleteRequest(Message, key=47, versions="0"):
    group_id: Str = field("0+")
    topics: list[OffsetDeleteRequestTopic] = field("0+")


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")


class OffsetDeleteResponseTopic(Struct):
    name: Str = field("0+")
    partitions: list[OffsetDeleteResponsePartition] = field("0+")


class OffsetDeleteResponse(Message, key=47, versions="0"):
    error_code: Int16 = field("0+")
    throttle_time_ms: Int32 = field("0+")
    topics: list[OffsetDeleteResponseTopic] = field("0+")


class DescribeGroupsRequest(Message, key=15, versions="0-6", flexible="5+"):
    groups: list[Str] = field("0+")
    include_authorized_operations: Bool = field("3+")


class DescribedGroupMember(Struct):
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("4+", default=None, ignorable=True)
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    member_metadata: Bytes = field("0+")
    member_assignment: Bytes = field("0+")


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("6+", default=None)
    group_id: Str = field("0+")
    group_state: Str = field("0+")
    protocol_type: Str = field("0+")
    protocol_data: Str = field("0+")
    members: list[DescribedGroupMember] = field("0+")
    authorized_operations: Int32 = field("3+", default=-2147483648)


class DescribeGroupsResponse(Message, key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    groups: list[DescribeGroupsResponseDescribedGroup] = field("0+")


class ListGroupsRequest(Message, key=16, versions="0-5", flexible="3+"):
    states_filter: list[Str] = field("4+")
    types_filter: list[Str] = field("5+")


class ListedGroup(Struct):
    group_id: Str = field("0+")
    protocol_type: Str = field("0+")
    group_state: Str = field("4+", ignorable=True)
    group_type: Str = field("5+", ignorable=True)


class ListGroupsResponse(Message, key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0+")
    groups: list[ListedGroup] = field("0+")


class DeleteGroupsRequest(Message, key=42, versions="0-2", flexible="2+"):
    groups_names: list[Str] = field("0+")


class DeletableGroupResult(Struct):
    group_id: Str = field("0+")
    error_code: Int16 = field("0+")


class DeleteGroupsResponse(Message, key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[DeletableGroupResult] = field("0+")


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ConsumerGroupHeartbeatRequest(Message, key=68, versions="0-1", flexible="0+"):
    group_id: Str = field("0+")
    member_id: Str = field("0+")
    member_epoch: Int32 = field("0+")
    instance_id: NullableStr = field("0+", default=None)
    rack_id: NullableStr = field("0+", default=None)
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    subscribed_topic_names: list[Str] | None = field("0+", default=None)
    subscribed_topic_regex: NullableStr = field("1+", default=None)
    server_assignor: NullableStr = field("0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = field(
        "0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = field("0+")


class ConsumerGroupHeartbeatResponse(Message, key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    member_id: NullableStr = field("0+", default=None)
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = field("0+", default=None)


class ConsumerGroupDescribeRequest(Message, key=69, versions="0-1", flexible="0+"):
    group_ids: list[Str] = field("0+")
    include_authorized_operations: Bool = field("0+")


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    topic_name: Str = field("0+")
    partitions: list[Int32] = field("0+")


class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = field("0+")


class Member(Struct):
    member_id: Str = field("0+")
    instance_id: NullableStr = field("0+", default=None)
    rack_id: NullableStr = field("0+", default=None)
    member_epoch: Int32 = field("0+")
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    subscribed_topic_names: list[Str] = field("0+")
    subscribed_topic_regex: NullableStr = field("0+", default=None)
    assignment: ConsumerGroupDescribeResponseAssignment = field("0+")
    target_assignment: ConsumerGroupDescribeResponseAssignment = field("0+")
    member_type: Int8 = field("1+", default=-1, ignorable=True)


class ConsumerGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    group_id: Str = field("0+")
    group_state: Str = field("0+")
    group_epoch: Int32 = field("0+")
    assignment_epoch: Int32 = field("0+")
    assignor_name: Str = field("0+")
    members: list[Member] = field("0+")
    authorized_operations: Int32 = field("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    groups: list[ConsumerGroupDescribeResponseDescribedGroup] = field("0+")


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: Str = field("1+")
    partitions: list[Int32] = field("1+")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[Str] = field("0+")
    user_data: NullableBytes = field("0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field("1+", ignorable=True)
    generation_id: Int32 = field("2+", default=-1, ignorable=True)
    rack_id: NullableStr = field("3+", default=None, ignorable=True)


class ConsumerProtocolAssignmentTopicPartition(Struct):
    topic: Str = field("0+")
    partitions: list[Int32] = field("0+")


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field("0+")
    user_data: NullableBytes = field("0+", default=None)
