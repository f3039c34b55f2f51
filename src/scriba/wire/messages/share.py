"""Share groups: members, acknowledgements, and the state their coordinator keeps."""

from scriba.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    SendableRecords,
    Str,
    Struct,
    Uuid,
    field,
)


class ShareGroupHeartbeatRequest(Message, key=76, versions="1", flexible="0+"):
    group_id: Str = field("0+")
    member_id: Str = field("0+")
    member_epoch: Int32 = field("0+")
    rack_id: NullableStr = field("0+", default=None)
    subscribed_topic_names: list[Str] | None = field("0+", default=None)


class ShareGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ShareGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions] = field("0+")


class ShareGroupHeartbeatResponse(Message, key=76, versions="1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    member_id: NullableStr = field("0+", default=None)
    member_epoch: Int32 = field("0+")
    heartbeat_interval_ms: Int32 = field("0+")
    assignment: ShareGroupHeartbeatResponseAssignment | None = field("0+", default=None)


class ShareGroupDescribeRequest(Message, key=77, versions="1", flexible="0+"):
    group_ids: list[Str] = field("0+")
    include_authorized_operations: Bool = field("0+")


class ShareGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    topic_name: Str = field("0+")
    partitions: list[Int32] = field("0+")


class ShareGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions] = field("0+")


class Member(Struct):
    member_id: Str = field("0+")
    rack_id: NullableStr = field("0+", default=None)
    member_epoch: Int32 = field("0+")
    client_id: Str = field("0+")
    client_host: Str = field("0+")
    subscribed_topic_names: list[Str] = field("0+")
    assignment: ShareGroupDescribeResponseAssignment = field("0+")


class DescribedGroup(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    group_id: Str = field("0+")
    group_state: Str = field("0+")
    group_epoch: Int32 = field("0+")
    assignment_epoch: Int32 = field("0+")
    assignor_name: Str = field("0+")
    members: list[Member] = field("0+")
    authorized_operations: Int32 = field("0+", default=-2147483648)


class ShareGroupDescribeResponse(Message, key=77, versions="1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    groups: list[DescribedGroup] = field("0+")


class ShareFetchRequestAcknowledgementBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    acknowledge_types: list[Int8] = field("0+")


class FetchPartition(Struct):
    partition_index: Int32 = field("0+")
    partition_max_bytes: Int32 = field("0")
    acknowledgement_batches: list[ShareFetchRequestAcknowledgementBatch] = field("0+")


class FetchTopic(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[FetchPartition] = field("0+")


class ForgottenTopic(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[Int32] = field("0+")


class ShareFetchRequest(Message, key=78, versions="1-2", flexible="0+"):
    group_id: NullableStr = field("0+", default=None)
    member_id: NullableStr = field("0+")
    share_session_epoch: Int32 = field("0+")
    max_wait_ms: Int32 = field("0+")
    min_bytes: Int32 = field("0+")
    max_bytes: Int32 = field("0+", default=2147483647)
    max_records: Int32 = field("1+")
    batch_size: Int32 = field("1+")
    share_acquire_mode: Int8 = field("2+", ignorable=True)
    is_renew_ack: Bool = field("2+")
    topics: list[FetchTopic] = field("0+")
    forgotten_topics_data: list[ForgottenTopic] = field("0+")


class ShareFetchResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class AcquiredRecords(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    delivery_count: Int16 = field("0+")


class ShareFetchResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    acknowledge_error_code: Int16 = field("0+")
    acknowledge_error_message: NullableStr = field("0+", default=None)
    current_leader: ShareFetchResponseLeaderIdAndEpoch = field("0+")
    records: SendableRecords = field("0+", nullable="0")
    acquired_records: list[AcquiredRecords] = field("0+")


class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ShareFetchResponsePartitionData] = field("0+")


class ShareFetchResponseNodeEndpoint(Struct):
    node_id: Int32 = field("0+")
    host: Str = field("0+")
    port: Int32 = field("0+")
    rack: NullableStr = field("0+", default=None)


class ShareFetchResponse(Message, key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    acquisition_lock_timeout_ms: Int32 = field("1+")
    responses: list[ShareFetchableTopicResponse] = field("0+")
    node_endpoints: list[ShareFetchResponseNodeEndpoint] = field("0+")


class ShareAcknowledgeRequestAcknowledgementBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    acknowledge_types: list[Int8] = field("0+")


class AcknowledgePartition(Struct):
    partition_index: Int32 = field("0+")
    acknowledgement_batches: list[ShareAcknowledgeRequestAcknowledgementBatch] = field("0+")


class AcknowledgeTopic(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[AcknowledgePartition] = field("0+")


class ShareAcknowledgeRequest(Message, key=79, versions="1-2", flexible="0+"):
    group_id: NullableStr = field("0+", default=None)
    member_id: NullableStr = field("0+")
    share_session_epoch: Int32 = field("0+")
    is_renew_ack: Bool = field("2+")
    topics: list[AcknowledgeTopic] = field("0+")


class ShareAcknowledgeResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class ShareAcknowledgeResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    current_leader: ShareAcknowledgeResponseLeaderIdAndEpoch = field("0+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ShareAcknowledgeResponsePartitionData] = field("0+")


class ShareAcknowledgeResponseNodeEndpoint(Struct):
    node_id: Int32 = field("0+")
    host: Str = field("0+")
    port: Int32 = field("0+")
    rack: NullableStr = field("0+", default=None)


class ShareAcknowledgeResponse(Message, key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    acquisition_lock_timeout_ms: Int32 = field("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = field("0+")
    node_endpoints: list[ShareAcknowledgeResponseNodeEndpoint] = field("0+")


class InitializeShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = field("0+")
    state_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")


class InitializeStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[InitializeShareGroupStateRequestPartitionData] = field("0+")


class InitializeShareGroupStateRequest(Message, key=83, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[InitializeStateData] = field("0+")


class InitializeShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class InitializeStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[InitializeShareGroupStateResponsePartitionResult] = field("0+")


class InitializeShareGroupStateResponse(Message, key=83, versions="0", flexible="0+"):
    results: list[InitializeStateResult] = field("0+")


class ReadShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class ReadStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ReadShareGroupStateRequestPartitionData] = field("0+")


class ReadShareGroupStateRequest(Message, key=84, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[ReadStateData] = field("0+")


class ReadShareGroupStateResponseStateBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    delivery_state: Int8 = field("0+")
    delivery_count: Int16 = field("0+")


class ReadShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    state_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    state_batches: list[ReadShareGroupStateResponseStateBatch] = field("0+")


class ReadStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ReadShareGroupStateResponsePartitionResult] = field("0+")


class ReadShareGroupStateResponse(Message, key=84, versions="0", flexible="0+"):
    results: list[ReadStateResult] = field("0+")


class WriteShareGroupStateRequestStateBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    delivery_state: Int8 = field("0+")
    delivery_count: Int16 = field("0+")


class WriteShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = field("0+")
    state_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)
    state_batches: list[WriteShareGroupStateRequestStateBatch] = field("0+")


class WriteStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[WriteShareGroupStateRequestPartitionData] = field("0+")


class WriteShareGroupStateRequest(Message, key=85, versions="0-1", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[WriteStateData] = field("0+")


class WriteShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class WriteStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[WriteShareGroupStateResponsePartitionResult] = field("0+")


class WriteShareGroupStateResponse(Message, key=85, versions="0-1", flexible="0+"):
    results: list[WriteStateResult] = field("0+")


class DeleteShareGroupStateRequestPartitionData(Struct):
    partition: Int32 = field("0+")


class DeleteStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[DeleteShareGroupStateRequestPartitionData] = field("0+")


class DeleteShareGroupStateRequest(Message, key=86, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[DeleteStateData] = field("0+")


class DeleteShareGroupStateResponsePartitionResult(Struct):
    partition: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class DeleteStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[DeleteShareGroupStateResponsePartitionResult] = field("0+")


class DeleteShareGroupStateResponse(Message, key=86, versions="0", flexible="0+"):
    results: list[DeleteStateResult] = field("0+")


class ReadShareGroupStateSummaryRequestPartitionData(Struct):
    partition: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class ReadStateSummaryData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ReadShareGroupStateSummaryRequestPartitionData] = field("0+")


class ReadShareGroupStateSummaryRequest(Message, key=87, versions="0-1", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[ReadStateSummaryData] = field("0+")


class ReadShareGroupStateSummaryResponsePartitionResult(Struct):
    partition: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    state_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[ReadShareGroupStateSummaryResponsePartitionResult] = field("0+")


class ReadShareGroupStateSummaryResponse(Message, key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = field("0+")


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = field("0+")
    partitions: list[Int32] = field("0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: Str = field("0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field("0+")


class DescribeShareGroupOffsetsRequest(Message, key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field("0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    leader_epoch: Int32 = field("0+")
    lag: Int64 = field("1+", default=-1, ignorable=True)
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = field("0+")
    topic_id: Uuid = field("0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field("0+")


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: Str = field("0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field("0+")


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: Int32 = field("0+")
    start_offset: Int64 = field("0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = field("0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field("0+")


class AlterShareGroupOffsetsRequest(Message, key=91, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = field("0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = field("0+")
    topic_id: Uuid = field("0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field("0+")


class AlterShareGroupOffsetsResponse(Message, key=91, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field("0+")


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = field("0+")


class DeleteShareGroupOffsetsRequest(Message, key=92, versions="0", flexible="0+"):
    group_id: Str = field("0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field("0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = field("0+")
    topic_id: Uuid = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, key=92, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field("0+")
