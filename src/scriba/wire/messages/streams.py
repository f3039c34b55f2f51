"""Streams groups."""

from scriba.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Str,
    Struct,
    UInt16,
    field,
)


class StreamsGroupHeartbeatRequestKeyValue(Struct):
    key: Str = field("0+")
    value: Str = field("0+")


class StreamsGroupHeartbeatRequestTopicInfo(Struct):
    name: Str = field("0+")
    partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    topic_configs: list[StreamsGroupHeartbeatRequestKeyValue] = field("0+")


class CopartitionGroup(Struct):
    source_topics: list[Int16] = field("0+")
    source_topic_regex: list[Int16] = field("0+")
    repartition_source_topics: list[Int16] = field("0+")


class StreamsGroupHeartbeatRequestSubtopology(Struct):
    subtopology_id: Str = field("0+")
    source_topics: list[Str] = field("0+")
    source_topic_regex: list[Str] = field("0+")
    state_changelog_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = field("0+")
    repartition_sink_topics: list[Str] = field("0+")
    repartition_source_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = field("0+")
    copartition_groups: list[CopartitionGroup] = field("0+")


class StreamsGroupHeartbeatRequestTopology(Struct):
    epoch: Int32 = field("0+")
    subtopologies: list[StreamsGroupHeartbeatRequestSubtopology] = field("0+")


class StreamsGroupHeartbeatRequestTaskIds(Struct):
    subtopology_id: Str = field("0+")
    partitions: list[Int32] = field("0+")


class StreamsGroupHeartbeatRequestEndpoint(Struct):
    host: Str = field("0+")
    port: UInt16 = field("0+")


class StreamsGroupHeartbeatRequestTaskOffset(Struct):
    subtopology_id: Str = field("0+")
    partition: Int32 = field("0+")
    offset: Int64 = field("0+")


class StreamsGroupHeartbeatRequest(Message, key=88, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    member_id: Str = field("0+")
    member_epoch: Int32 = field("0+")
    endpoint_information_epoch: Int32 = field("0+")
    instance_id: NullableStr = field("0+", default=None)
    rack_id: NullableStr = field("0+", default=None)
    rebalance_timeout_ms: Int32 = field("0+", default=-1)
    topology: StreamsGroupHeartbeatRequestTopology | None = field("0+", default=None)
    active_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field("0+", default=None)
    standby_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field("0+", default=None)
    warmup_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = field("0+", default=None)
    process_id: NullableStr = field("0+", default=None)
    user_endpoint: StreamsGroupHeartbeatRequestEndpoint | None = field("0+", default=None)
    client_tags: list[StreamsGroupHeartbeatRequestKeyValue] | None = field("0+", default=None)
    task_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = field("0+", default=None)
    task_end_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = field(
        "0+", default=None
    )
    shutdown_application: Bool = field("0+")


class Status(Struct):
    status_code: Int8 = field("0+")
    status_detail: Str = field("0+")


class StreamsGroupHeartbeatResponseTaskIds(Struct):
    subtopology_id: Str = field("0+")
    partitions: list[Int32] = field("0+")


class StreamsGroupHeartbeatResponseEndpoint(Struct):
    host: Str = field("0+")
    port: UInt16 = field("0+")


class TopicPartition(Struct):
    topic: Str = field("0+")
    partitions: list[Int32] = field("0+")


class EndpointToPartitions(Struct):
    user_endpoint: StreamsGroupHeartbeatResponseEndpoint = field("0+")
    active_partitions: list[TopicPartition] = field("0+")
    standby_partitions: list[TopicPartition] = field("0+")


class StreamsGroupHeartbeatResponse(Message, key=88, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    member_id: Str = field("0+")
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")
    acceptable_recovery_lag: Int32 = field("0+")
    task_offset_interval_ms: Int32 = field("0+")
    status: list[Status] | None = field("0+")
    active_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field("0+", default=None)
    standby_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field("0+", default=None)
    warmup_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = field("0+", default=None)
    endpoint_information_epoch: Int32 = field("0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field("0+", default=None)


class StreamsGroupDescribeRequest(Message, key=89, versions="0", flexible="0+"):
    group_ids: list[Str] = field("0+")
    include_authorized_operations: Bool = field("0+")


class StreamsGroupDescribeResponseKeyValue(Struct):
    key: Str = field("0+")
    value: Str = field("0+")


class StreamsGroupDescribeResponseTopicInfo(Struct):
    name: Str = field("0+")
    partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    topic_configs: list[StreamsGroupDescribeResponseKeyValue] = field("0+")


class StreamsGroupDescribeResponseSubtopology(Struct):
    subtopology_id: Str = field("0+")
    source_topics: list[Str] = field("0+")
    repartition_sink_topics: list[Str] = field("0+")
    state_changelog_topics: list[StreamsGroupDescribeResponseTopicInfo] = field("0+")
    repartition_source_topics: list[StreamsGroupDescribeResponseTopicInfo] = field("0+")


class StreamsGroupDescribeResponseTopology(Struct):
    epoch: Int32 = field("0+")
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = field("0+", default=None)


class StreamsGroupDescribeResponseEndpoint(Struct):
    host: Str = field("0+")
    port: UInt16 = field("0+")


class StreamsGroupDescribeResponseTaskOffset(Struct):
    subtopology_id: Str = field("0+")
    partition: Int32 = field("0+")
    offset: Int64 = field("0+")


class StreamsGroupDescribeResponseTaskIds(Struct):
    subtopology_id: Str = field("0+")
    partitions: list[Int32] = field("0+")


class Assignment(Struct):
    active_tasks: list[StreamsGroupDescribeResponseTaskIds] = field("0+")
    standby_tasks: list[StreamsGroupDescribeResponseTaskIds] = field("0+")
    warmup_tasks: list[StreamsGroupDescribeResponseTaskIds] = field("0+")


class Member(Struct):
    member_id: Str = field("0+")
    member_epoch: Int32 = field("0+")
    instance_id: NullableStr = field("0+", default=None)
    rack_id: NullableStr = field("0+", default=None)
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    topology_epoch: Int32 = field("0+")
    process_id: Str = field("0+")
    user_endpoint: StreamsGroupDescribeResponseEndpoint | None = field("0+", default=None)
    client_tags: list[StreamsGroupDescribeResponseKeyValue] = field("0+")
    task_offsets: list[StreamsGroupDescribeResponseTaskOffset] = field("0+")
    task_end_offsets: list[StreamsGroupDescribeResponseTaskOffset] = field("0+")
    assignment: Assignment = field("0+")
    target_assignment: Assignment = field("0+")
    is_classic: Bool = field("0+")


class DescribedGroup(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    group_id: Str = field("0+")
    group_state: Str = field("0+")
    group_epoch: Int32 = field("0+")
    assignment_epoch: Int32 = field("0+")
    topology: StreamsGroupDescribeResponseTopology | None = field("0+", default=None)
    members: list[Member] = field("0+")
    authorized_operations: Int32 = field("0+", default=-2147483648)


class StreamsGroupDescribeResponse(Message, key=89, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    groups: list[DescribedGroup] = field("0+")
