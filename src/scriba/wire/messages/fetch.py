"""Fetch and its companions: reading a log, finding an offset, finding where an epoch ended."""

from scriba.wire.schema import (
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


class ReplicaState(Struct):
    replica_id: Int32 = field("15+", default=-1)
    replica_epoch: Int64 = field("15+", default=-1)


class FetchPartition(Struct):
    partition: Int32 = field("0+")
    current_leader_epoch: Int32 = field("9+", default=-1, ignorable=True)
    fetch_offset: Int64 = field("0+")
    last_fetched_epoch: Int32 = field("12+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    partition_max_bytes: Int32 = field("0+")
    replica_directory_id: Uuid = field("17+", tag=0, ignorable=True)
    high_watermark: Int64 = field("18+", default=9223372036854775807, tag=1, ignorable=True)


class FetchTopic(Struct):
    topic: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[FetchPartition] = field("0+")


class ForgottenTopic(Struct):
    topic: Str = field("7-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[Int32] = field("7+")


class FetchRequest(Message, key=1, versions="4-18", flexible="12+"):
    cluster_id: NullableStr = field("12+", default=None, tag=0, ignorable=True)
    replica_id: Int32 = field("0-14", default=-1)
    replica_state: ReplicaState = field("15+", tag=1)
    max_wait_ms: Int32 = field("0+")
    min_bytes: Int32 = field("0+")
    max_bytes: Int32 = field("3+", default=2147483647)
    isolation_level: Int8 = field("4+")
    session_id: Int32 = field("7+", ignorable=True)
    session_epoch: Int32 = field("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = field("0+")
    forgotten_topics_data: list[ForgottenTopic] = field("7+")
    rack_id: Str = field("11+", ignorable=True)


class FetchResponseEpochEndOffset(Struct):
    epoch: Int32 = field("12+", default=-1)
    end_offset: Int64 = field("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("12+", default=-1)
    leader_epoch: Int32 = field("12+", default=-1)


class SnapshotId(Struct):
    end_offset: Int64 = field("0+", default=-1)
    epoch: Int32 = field("0+", default=-1)


class AbortedTransaction(Struct):
    producer_id: Int64 = field("4+")
    first_offset: Int64 = field("4+")


class PartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    high_watermark: Int64 = field("0+")
    last_stable_offset: Int64 = field("4+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    diverging_epoch: FetchResponseEpochEndOffset = field("12+", tag=0)
    current_leader: LeaderIdAndEpoch = field("12+", tag=1)
    snapshot_id: SnapshotId = field("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field("4+")
    preferred_read_replica: Int32 = field("11+", default=-1)
    records: SendableRecords = field("0+")


class FetchableTopicResponse(Struct):
    topic: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[PartitionData] = field("0+")


class NodeEndpoint(Struct):
    node_id: Int32 = field("16+")
    host: Str = field("16+")
    port: Int32 = field("16+")
    rack: NullableStr = field("16+", default=None)


class FetchResponse(Message, key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field("7+", ignorable=True)
    session_id: Int32 = field("7+")
    responses: list[FetchableTopicResponse] = field("0+")
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0)


class ListOffsetsPartition(Struct):
    partition_index: Int32 = field("0+")
    current_leader_epoch: Int32 = field("4+", default=-1, ignorable=True)
    timestamp: Int64 = field("0+")


class ListOffsetsTopic(Struct):
    name: Str = field("0+")
    partitions: list[ListOffsetsPartition] = field("0+")


class ListOffsetsRequest(Message, key=2, versions="1-11", flexible="6+"):
    replica_id: Int32 = field("0+")
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsTopic] = field("0+")
    timeout_ms: Int32 = field("10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    timestamp: Int64 = field("1+", default=-1)
    offset: Int64 = field("1+", default=-1)
    leader_epoch: Int32 = field("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: Str = field("0+")
    partitions: list[ListOffsetsPartitionResponse] = field("0+")


class ListOffsetsResponse(Message, key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field("0+")


class OffsetForLeaderPartition(Struct):
    partition: Int32 = field("0+")
    current_leader_epoch: Int32 = field("2+", default=-1)
    leader_epoch: Int32 = field("0+")


class OffsetForLeaderTopic(Struct):
    topic: Str = field("0+")
    partitions: list[OffsetForLeaderPartition] = field("0+")


class OffsetForLeaderEpochRequest(Message, key=23, versions="2-4", flexible="4+"):
    replica_id: Int32 = field("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field("0+")


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: Int16 = field("0+")
    partition: Int32 = field("0+")
    leader_epoch: Int32 = field("1+", default=-1)
    end_offset: Int64 = field("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: Str = field("0+")
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset] = field("0+")


class OffsetForLeaderEpochResponse(Message, key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: Int32 = field("2+")
    topics: list[OffsetForLeaderTopicResult] = field("0+")
