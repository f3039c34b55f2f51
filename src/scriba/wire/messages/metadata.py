"""What a client asks first: which APIs there are, who leads what, who coordinates."""

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
    Uuid,
    field,
)


class ApiVersionsRequest(Message, key=18, versions="0-4", flexible="3+"):
    client_software_name: Str = field("3+", ignorable=True)
    client_software_version: Str = field("3+", ignorable=True)


class ApiVersion(Struct):
    api_key: Int16 = field("0+")
    min_version: Int16 = field("0+")
    max_version: Int16 = field("0+")


class SupportedFeatureKey(Struct):
    name: Str = field("3+")
    min_version: Int16 = field("3+")
    max_version: Int16 = field("3+")


class FinalizedFeatureKey(Struct):
    name: Str = field("3+")
    max_version_level: Int16 = field("3+")
    min_version_level: Int16 = field("3+")


class ApiVersionsResponse(Message, key=18, versions="0-4", flexible="3+"):
    error_code: Int16 = field("0+")
    api_keys: list[ApiVersion] = field("0+")
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, ignorable=True)
    finalized_features_epoch: Int64 = field("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, ignorable=True)
    zk_migration_ready: Bool = field("3+", tag=3, ignorable=True)


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field("10+", ignorable=True)
    name: NullableStr = field("0+", nullable="10+")


class MetadataRequest(Message, key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field("0+", nullable="1+")
    allow_auto_topic_creation: Bool = field("4+", default=True)
    include_cluster_authorized_operations: Bool = field("8-10")
    include_topic_authorized_operations: Bool = field("8+")


class MetadataResponseBroker(Struct):
    node_id: Int32 = field("0+")
    host: Str = field("0+")
    port: Int32 = field("0+")
    rack: NullableStr = field("1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: Int16 = field("0+")
    partition_index: Int32 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("7+", default=-1, ignorable=True)
    replica_nodes: list[Int32] = field("0+")
    isr_nodes: list[Int32] = field("0+")
    offline_replicas: list[Int32] = field("5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: Int16 = field("0+")
    name: NullableStr = field("0+", nullable="12+")
    topic_id: Uuid = field("10+", ignorable=True)
    is_internal: Bool = field("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = field("0+")
    topic_authorized_operations: Int32 = field("8+", default=-2147483648)


class MetadataResponse(Message, key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = field("0+")
    cluster_id: NullableStr = field("2+", default=None, ignorable=True)
    controller_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = field("0+")
    cluster_authorized_operations: Int32 = field("8-10", default=-2147483648)
    error_code: Int16 = field("13+", ignorable=True)


class DescribeClusterRequest(Message, key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: Bool = field("0+")
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: Bool = field("2+")


class DescribeClusterBroker(Struct):
    broker_id: Int32 = field("0+")
    host: Str = field("0+")
    port: Int32 = field("0+")
    rack: NullableStr = field("0+", default=None)
    is_fenced: Bool = field("2+")


class DescribeClusterResponse(Message, key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+", default=None)
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: Str = field("0+")
    controller_id: Int32 = field("0+", default=-1)
    brokers: list[DescribeClusterBroker] = field("0+")
    cluster_authorized_operations: Int32 = field("0+", default=-2147483648)


class TopicRequest(Struct):
    name: Str = field("0+")


class DescribeTopicPartitionsRequestCursor(Struct):
    topic_name: Str = field("0+")
    partition_index: Int32 = field("0+")


class DescribeTopicPartitionsRequest(Message, key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field("0+")
    response_partition_limit: Int32 = field("0+", default=2000)
    cursor: DescribeTopicPartitionsRequestCursor | None = field("0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = field("0+")
    partition_index: Int32 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+", default=-1)
    replica_nodes: list[Int32] = field("0+")
    isr_nodes: list[Int32] = field("0+")
    eligible_leader_replicas: list[Int32] | None = field("0+", default=None)
    last_known_elr: list[Int32] | None = field("0+", default=None)
    offline_replicas: list[Int32] = field("0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = field("0+")
    name: NullableStr = field("0+")
    topic_id: Uuid = field("0+")
    is_internal: Bool = field("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = field("0+")
    topic_authorized_operations: Int32 = field("0+", default=-2147483648)


class DescribeTopicPartitionsResponseCursor(Struct):
    topic_name: Str = field("0+")
    partition_index: Int32 = field("0+")


class DescribeTopicPartitionsResponse(Message, key=75, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = field("0+")
    next_cursor: DescribeTopicPartitionsResponseCursor | None = field("0+", default=None)


class FindCoordinatorRequest(Message, key=10, versions="0-6", flexible="3+"):
    key: Str = field("0-3")
    key_type: Int8 = field("1+")
    coordinator_keys: list[Str] = field("4+")


class Coordinator(Struct):
    key: Str = field("4+")
    node_id: Int32 = field("4+")
    host: Str = field("4+")
    port: Int32 = field("4+")
    error_code: Int16 = field("4+")
    error_message: NullableStr = field("4+", ignorable=True)


class FindCoordinatorResponse(Message, key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: Int32 = field("1+", ignorable=True)
    error_code: Int16 = field("0-3")
    error_message: NullableStr = field("1-3", ignorable=True)
    node_id: Int32 = field("0-3")
    host: Str = field("0-3")
    port: Int32 = field("0-3")
    coordinators: list[Coordinator] = field("4+")
