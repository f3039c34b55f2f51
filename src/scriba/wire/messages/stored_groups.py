"""Records of `__consumer_offsets`: keys and values of every kind of group."""

from scriba.wire.schema import (
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Str,
    Struct,
    UInt16,
    Uuid,
    field,
)


class LegacyOffsetCommitKey(Message, key=0, versions="0"):
    group: Str = field("0")
    topic: Str = field("0")
    partition: Int32 = field("0")


class LegacyOffsetCommitValue(Message, key=0, versions="0"):
    offset: Int64 = field("0")
    metadata: Str = field("0")
    commit_timestamp: Int64 = field("0")


class OffsetCommitKey(Message, key=1, versions="0"):
    group: Str = field("0")
    topic: Str = field("0")
    partition: Int32 = field("0")


class OffsetCommitValue(Message, key=1, versions="0-4", flexible="4+"):
    offset: Int64 = field("0+")
    leader_epoch: Int32 = field("3+", default=-1, ignorable=True)
    metadata: Str = field("0+")
    commit_timestamp: Int64 = field("0+")
    expire_timestamp: Int64 = field("1", default=-1, ignorable=True)
    topic_id: Uuid = field("4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, key=2, versions="0"):
    group: Str = field("0")


class MemberMetadata(Struct):
    member_id: Str = field("0+")
    group_instance_id: NullableStr = field("3+", default=None, ignorable=True)
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    rebalance_timeout: Int32 = field("1+", default=-1, ignorable=True)
    session_timeout: Int32 = field("0+")
    subscription: Bytes = field("0+")
    assignment: Bytes = field("0+")


class GroupMetadataValue(Message, key=2, versions="0-4", flexible="4+"):
    protocol_type: Str = field("0+")
    generation: Int32 = field("0+")
    protocol: NullableStr = field("0+")
    leader: NullableStr = field("0+")
    current_state_timestamp: Int64 = field("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = field("0+")


class ConsumerGroupMetadataKey(Message, key=3, versions="0"):
    group_id: Str = field("0")


class ConsumerGroupMetadataValue(Message, key=3, versions="0", flexible="0+"):
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+", tag=0)


class ConsumerGroupPartitionMetadataKey(Message, key=4, versions="0"):
    group_id: Str = field("0")


class PartitionMetadata(Struct):
    partition: Int32 = field("0+")
    racks: list[Str] = field("0+")


class TopicMetadata(Struct):
    topic_id: Uuid = field("0+")
    topic_name: Str = field("0+")
    num_partitions: Int32 = field("0+")
    partition_metadata: list[PartitionMetadata] = field("0+")


class ConsumerGroupPartitionMetadataValue(Message, key=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = field("0+")


class ConsumerGroupMemberMetadataKey(Message, key=5, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ClassicProtocol(Struct):
    name: Str = field("0+")
    metadata: Bytes = field("0+")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = field("0+")
    supported_protocols: list[ClassicProtocol] = field("0+")


class ConsumerGroupMemberMetadataValue(Message, key=5, versions="0", flexible="0+"):
    instance_id: NullableStr = field("0+")
    rack_id: NullableStr = field("0+")
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    subscribed_topic_names: list[Str] = field("0+")
    subscribed_topic_regex: NullableStr = field("0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    server_assignor: NullableStr = field("0+")
    classic_member_metadata: ClassicMemberMetadata | None = field("0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, key=6, versions="0"):
    group_id: Str = field("0")


class ConsumerGroupTargetAssignmentMetadataValue(Message, key=6, versions="0", flexible="0+"):
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, key=7, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ConsumerGroupTargetAssignmentMemberValueTopicPartition(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, key=7, versions="0", flexible="0+"):
    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValueTopicPartition] = field("0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, key=8, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")
    assignment_epochs: list[Int32] | None = field("0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, key=8, versions="0", flexible="0+"):
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = field(
        "0+"
    )
    partitions_pending_revocation: list[
        ConsumerGroupCurrentMemberAssignmentValueTopicPartitions
    ] = field("0+")


class ShareGroupMemberMetadataKey(Message, key=10, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ShareGroupMemberMetadataValue(Message, key=10, versions="0", flexible="0+"):
    rack_id: NullableStr = field("0+")
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    subscribed_topic_names: list[Str] = field("0+")


class ShareGroupMetadataKey(Message, key=11, versions="0"):
    group_id: Str = field("0")


class ShareGroupMetadataValue(Message, key=11, versions="0", flexible="0+"):
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+")


class ShareGroupTargetAssignmentMetadataKey(Message, key=12, versions="0"):
    group_id: Str = field("0")


class ShareGroupTargetAssignmentMetadataValue(Message, key=12, versions="0", flexible="0+"):
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, key=13, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ShareGroupTargetAssignmentMemberValueTopicPartition(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ShareGroupTargetAssignmentMemberValue(Message, key=13, versions="0", flexible="0+"):
    topic_partitions: list[ShareGroupTargetAssignmentMemberValueTopicPartition] = field("0+")


class ShareGroupCurrentMemberAssignmentKey(Message, key=14, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class ShareGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ShareGroupCurrentMemberAssignmentValue(Message, key=14, versions="0", flexible="0+"):
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValueTopicPartitions] = field("0+")


class ShareGroupStatePartitionMetadataKey(Message, key=15, versions="0"):
    group_id: Str = field("0")


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: Str = field("0+")
    partitions: list[Int32] = field("0+")


class ShareGroupStatePartitionMetadataValueTopicInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: Str = field("0+")


class ShareGroupStatePartitionMetadataValue(Message, key=15, versions="0", flexible="0+"):
    initializing_topics: list[TopicPartitionsInfo] = field("0+")
    initialized_topics: list[TopicPartitionsInfo] = field("0+")
    deleting_topics: list[ShareGroupStatePartitionMetadataValueTopicInfo] = field("0+")


class ConsumerGroupRegularExpressionKey(Message, key=16, versions="0"):
    group_id: Str = field("0")
    regular_expression: Str = field("0")


class ConsumerGroupRegularExpressionValue(Message, key=16, versions="0", flexible="0+"):
    topics: list[Str] = field("0+")
    version: Int64 = field("0+")
    timestamp: Int64 = field("0+")


class StreamsGroupMetadataKey(Message, key=17, versions="0"):
    group_id: Str = field("0")


class LastAssignmentConfig(Struct):
    key: Str = field("0+")
    value: Str = field("0+")


class StreamsGroupMetadataValue(Message, key=17, versions="0", flexible="0+"):
    epoch: Int32 = field("0+")
    metadata_hash: Int64 = field("0+")
    validated_topology_epoch: Int32 = field("0+", default=-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = field("0+", tag=1)


class StreamsGroupMemberMetadataKey(Message, key=19, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class Endpoint(Struct):
    host: Str = field("0+")
    port: UInt16 = field("0+")


class KeyValue(Struct):
    key: Str = field("0+")
    value: Str = field("0+")


class StreamsGroupMemberMetadataValue(Message, key=19, versions="0", flexible="0+"):
    instance_id: NullableStr = field("0+")
    rack_id: NullableStr = field("0+")
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    topology_epoch: Int32 = field("0+")
    process_id: Str = field("0+")
    user_endpoint: Endpoint | None = field("0+", default=None)
    client_tags: list[KeyValue] = field("0+")


class StreamsGroupTargetAssignmentMetadataKey(Message, key=20, versions="0"):
    group_id: Str = field("0")


class StreamsGroupTargetAssignmentMetadataValue(Message, key=20, versions="0", flexible="0+"):
    assignment_epoch: Int32 = field("0+")
    assignment_timestamp: Int64 = field("0+", tag=0)


class StreamsGroupTargetAssignmentMemberKey(Message, key=21, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class StreamsGroupTargetAssignmentMemberValueTaskIds(Struct):
    subtopology_id: Str = field("0+")
    partitions: list[Int32] = field("0+")


class StreamsGroupTargetAssignmentMemberValue(Message, key=21, versions="0", flexible="0+"):
    active_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = field("0+")
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = field("0+")
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = field("0+")


class StreamsGroupCurrentMemberAssignmentKey(Message, key=22, versions="0"):
    group_id: Str = field("0")
    member_id: Str = field("0")


class StreamsGroupCurrentMemberAssignmentValueTaskIds(Struct):
    subtopology_id: Str = field("0+")
    partitions: list[Int32] = field("0+")
    assignment_epochs: list[Int32] | None = field("0+", tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Message, key=22, versions="0", flexible="0+"):
    member_epoch: Int32 = field("0+")
    previous_member_epoch: Int32 = field("0+")
    state: Int8 = field("0+")
    active_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field("0+")
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field("0+")
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field("0+")
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field(
        "0+"
    )
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field(
        "0+"
    )
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = field(
        "0+"
    )


class StreamsGroupTopologyKey(Message, key=23, versions="0"):
    group_id: Str = field("0")


class TopicConfig(Struct):
    key: Str = field("0+")
    value: Str = field("0+")


class StreamsGroupTopologyValueTopicInfo(Struct):
    name: Str = field("0+")
    partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    topic_configs: list[TopicConfig] = field("0+")


class CopartitionGroup(Struct):
    source_topics: list[Int16] = field("0+")
    source_topic_regex: list[Int16] = field("0+")
    repartition_source_topics: list[Int16] = field("0+")


class Subtopology(Struct):
    subtopology_id: Str = field("0+")
    source_topics: list[Str] = field("0+")
    source_topic_regex: list[Str] = field("0+")
    state_changelog_topics: list[StreamsGroupTopologyValueTopicInfo] = field("0+")
    repartition_sink_topics: list[Str] = field("0+")
    repartition_source_topics: list[StreamsGroupTopologyValueTopicInfo] = field("0+")
    copartition_groups: list[CopartitionGroup] = field("0+")


class StreamsGroupTopologyValue(Message, key=23, versions="0", flexible="0+"):
    epoch: Int32 = field("0+")
    subtopologies: list[Subtopology] = field("0+")
