"""Topics, partitions, replicas and the directories they live in."""

from scriba.wire.schema import (
    OWN_TAGS,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Str,
    Struct,
    Uuid,
    field,
)


class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = field("0+")
    broker_ids: list[Int32] = field("0+")


class CreatableTopicConfig(Struct):
    name: Str = field("0+")
    value: NullableStr = field("0+")


class CreatableTopic(Struct):
    name: Str = field("0+")
    num_partitions: Int32 = field("0+")
    replication_factor: Int16 = field("0+")
    assignments: list[CreatableReplicaAssignment] = field("0+")
    configs: list[CreatableTopicConfig] = field("0+")


class CreateTopicsRequest(Message, key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = field("0+")
    timeout_ms: Int32 = field("0+", default=60000)
    validate_only: Bool = field("1+")


class CreatableTopicConfigs(Struct):
    name: Str = field("5+")
    value: NullableStr = field("5+")
    read_only: Bool = field("5+")
    config_source: Int8 = field("5+", default=-1, ignorable=True)
    is_sensitive: Bool = field("5+")


class CreatableTopicResult(Struct):
    name: Str = field("0+")
    topic_id: Uuid = field("7+", ignorable=True)
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("1+")
    topic_config_error_code: Int16 = field("5+", tag=0, ignorable=True)
    num_partitions: Int32 = field("5+", default=-1, ignorable=True)
    replication_factor: Int16 = field("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field("5+", ignorable=True)


class CreateTopicsResponse(Message, key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: Int32 = field("2+")
    topics: list[CreatableTopicResult] = field("0+")


class DeleteTopicState(Struct):
    name: NullableStr = field("6+", default=None)
    topic_id: Uuid = field("6+")


class DeleteTopicsRequest(Message, key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = field("6+")
    topic_names: list[Str] = field("0-5", ignorable=True)
    timeout_ms: Int32 = field("0+")


class DeletableTopicResult(Struct):
    name: NullableStr = field("0+", nullable="6+")
    topic_id: Uuid = field("6+", ignorable=True)
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("5+", default=None, ignorable=True)


class DeleteTopicsResponse(Message, key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: Int32 = field("1+")
    responses: list[DeletableTopicResult] = field("0+")


class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = field("0+")


class CreatePartitionsTopic(Struct):
    name: Str = field("0+")
    count: Int32 = field("0+")
    assignments: list[CreatePartitionsAssignment] | None = field("0+")


class CreatePartitionsRequest(Message, key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = field("0+")
    timeout_ms: Int32 = field("0+")
    validate_only: Bool = field("0+")


class CreatePartitionsTopicResult(Struct):
    name: Str = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)


class CreatePartitionsResponse(Message, key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[CreatePartitionsTopicResult] = field("0+")


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = field("0+")
    offset: Int64 = field("0+")


class DeleteRecordsTopic(Struct):
    name: Str = field("0+")
    partitions: list[DeleteRecordsPartition] = field("0+")


class DeleteRecordsRequest(Message, key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = field("0+")
    timeout_ms: Int32 = field("0+")


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = field("0+")
    low_watermark: Int64 = field("0+")
    error_code: Int16 = field("0+")


class DeleteRecordsTopicResult(Struct):
    name: Str = field("0+")
    partitions: list[DeleteRecordsPartitionResult] = field("0+")


class DeleteRecordsResponse(Message, key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    topics: list[DeleteRecordsTopicResult] = field("0+")


class TopicPartitions(Struct):
    topic: Str = field("0+")
    partitions: list[Int32] = field("0+")


class ElectLeadersRequest(Message, key=43, versions="0-2", flexible="2+"):
    election_type: Int8 = field("1+")
    topic_partitions: list[TopicPartitions] | None = field("0+")
    timeout_ms: Int32 = field("0+", default=60000)


class PartitionResult(Struct):
    partition_id: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class ReplicaElectionResult(Struct):
    topic: Str = field("0+")
    partition_result: list[PartitionResult] = field("0+")


class ElectLeadersResponse(Message, key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = field("0+")


class ReassignablePartition(Struct):
    partition_index: Int32 = field("0+")
    replicas: list[Int32] | None = field("0+", default=None)


class ReassignableTopic(Struct):
    name: Str = field("0+")
    partitions: list[ReassignablePartition] = field("0+")


class AlterPartitionReassignmentsRequest(Message, key=45, versions="0-1", flexible="0+"):
    timeout_ms: Int32 = field("0+", default=60000)
    allow_replication_factor_change: Bool = field("1+", default=True)
    # Not Kafka's: a broker hands over, and what moves or has other replicas by now is left alone.
    order_only: Bool = field("0+", default=False, tag=OWN_TAGS, ignorable=True)
    topics: list[ReassignableTopic] = field("0+")


class ReassignablePartitionResponse(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class ReassignableTopicResponse(Struct):
    name: Str = field("0+")
    partitions: list[ReassignablePartitionResponse] = field("0+")


class AlterPartitionReassignmentsResponse(Message, key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    allow_replication_factor_change: Bool = field("1+", default=True, ignorable=True)
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    responses: list[ReassignableTopicResponse] = field("0+")


class ListPartitionReassignmentsTopics(Struct):
    name: Str = field("0+")
    partition_indexes: list[Int32] = field("0+")


class ListPartitionReassignmentsRequest(Message, key=46, versions="0", flexible="0+"):
    timeout_ms: Int32 = field("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field("0+", default=None)


class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = field("0+")
    replicas: list[Int32] = field("0+")
    adding_replicas: list[Int32] = field("0+")
    removing_replicas: list[Int32] = field("0+")


class OngoingTopicReassignment(Struct):
    name: Str = field("0+")
    partitions: list[OngoingPartitionReassignment] = field("0+")


class ListPartitionReassignmentsResponse(Message, key=46, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    topics: list[OngoingTopicReassignment] = field("0+")


class AlterReplicaLogDirTopic(Struct):
    name: Str = field("0+")
    partitions: list[Int32] = field("0+")


class AlterReplicaLogDir(Struct):
    path: Str = field("0+")
    topics: list[AlterReplicaLogDirTopic] = field("0+")


class AlterReplicaLogDirsRequest(Message, key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = field("0+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: Str = field("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = field("0+")


class AlterReplicaLogDirsResponse(Message, key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[AlterReplicaLogDirTopicResult] = field("0+")


class DescribableLogDirTopic(Struct):
    topic: Str = field("0+")
    partitions: list[Int32] = field("0+")


class DescribeLogDirsRequest(Message, key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field("0+")


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = field("0+")
    partition_size: Int64 = field("0+")
    offset_lag: Int64 = field("0+")
    is_future_key: Bool = field("0+")


class DescribeLogDirsTopic(Struct):
    name: Str = field("0+")
    partitions: list[DescribeLogDirsPartition] = field("0+")


class DescribeLogDirsResult(Struct):
    error_code: Int16 = field("0+")
    log_dir: Str = field("0+")
    topics: list[DescribeLogDirsTopic] = field("0+")
    total_bytes: Int64 = field("4+", default=-1, ignorable=True)
    usable_bytes: Int64 = field("4+", default=-1, ignorable=True)
    is_cordoned: Bool = field("5+", ignorable=True)


class DescribeLogDirsResponse(Message, key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field("0+")
