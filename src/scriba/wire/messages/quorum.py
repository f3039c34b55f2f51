"""The metadata quorum: elections, snapshots, voters."""

from scriba.wire.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    SendableRecords,
    Str,
    Struct,
    UInt16,
    Uuid,
    field,
)


class VoteRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")
    replica_epoch: Int32 = field("0+")
    replica_id: Int32 = field("0+")
    replica_directory_id: Uuid = field("1+", ignorable=True)
    voter_directory_id: Uuid = field("1+", ignorable=True)
    last_offset_epoch: Int32 = field("0+")
    last_offset: Int64 = field("0+")
    pre_vote: Bool = field("2+")


class VoteRequestTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[VoteRequestPartitionData] = field("0+")


class VoteRequest(Message, key=52, versions="0-2", flexible="0+"):
    cluster_id: NullableStr = field("0+", default=None)
    voter_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = field("0+")


class VoteResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    vote_granted: Bool = field("0+")


class VoteResponseTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[VoteResponsePartitionData] = field("0+")


class VoteResponseNodeEndpoint(Struct):
    node_id: Int32 = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class VoteResponse(Message, key=52, versions="0-2", flexible="0+"):
    error_code: Int16 = field("0+")
    topics: list[VoteResponseTopicData] = field("0+")
    node_endpoints: list[VoteResponseNodeEndpoint] = field("1+", tag=0)


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")
    voter_directory_id: Uuid = field("1+", ignorable=True)
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[BeginQuorumEpochRequestPartitionData] = field("0+")


class BeginQuorumEpochRequestLeaderEndpoint(Struct):
    name: Str = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class BeginQuorumEpochRequest(Message, key=53, versions="0-1", flexible="1+"):
    cluster_id: NullableStr = field("0+", default=None)
    voter_id: Int32 = field("1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = field("0+")
    leader_endpoints: list[BeginQuorumEpochRequestLeaderEndpoint] = field("1+", ignorable=True)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[BeginQuorumEpochResponsePartitionData] = field("0+")


class BeginQuorumEpochResponseNodeEndpoint(Struct):
    node_id: Int32 = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class BeginQuorumEpochResponse(Message, key=53, versions="0-1", flexible="1+"):
    error_code: Int16 = field("0+")
    topics: list[BeginQuorumEpochResponseTopicData] = field("0+")
    node_endpoints: list[BeginQuorumEpochResponseNodeEndpoint] = field("1+", tag=0)


class ReplicaInfo(Struct):
    candidate_id: Int32 = field("1+")
    candidate_directory_id: Uuid = field("1+")


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    preferred_successors: list[Int32] = field("0", ignorable=True)
    preferred_candidates: list[ReplicaInfo] = field("1+", ignorable=True)


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[EndQuorumEpochRequestPartitionData] = field("0+")


class EndQuorumEpochRequestLeaderEndpoint(Struct):
    name: Str = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class EndQuorumEpochRequest(Message, key=54, versions="0-1", flexible="1+"):
    cluster_id: NullableStr = field("0+", default=None)
    topics: list[EndQuorumEpochRequestTopicData] = field("0+")
    leader_endpoints: list[EndQuorumEpochRequestLeaderEndpoint] = field("1+", ignorable=True)


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[EndQuorumEpochResponsePartitionData] = field("0+")


class EndQuorumEpochResponseNodeEndpoint(Struct):
    node_id: Int32 = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class EndQuorumEpochResponse(Message, key=54, versions="0-1", flexible="1+"):
    error_code: Int16 = field("0+")
    topics: list[EndQuorumEpochResponseTopicData] = field("0+")
    node_endpoints: list[EndQuorumEpochResponseNodeEndpoint] = field("1+", tag=0)


class FetchSnapshotRequestSnapshotId(Struct):
    end_offset: Int64 = field("0+")
    epoch: Int32 = field("0+")


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: Int32 = field("0+")
    current_leader_epoch: Int32 = field("0+")
    snapshot_id: FetchSnapshotRequestSnapshotId = field("0+")
    position: Int64 = field("0+")
    replica_directory_id: Uuid = field("1+", tag=0, ignorable=True)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: Str = field("0+")
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field("0+")


class FetchSnapshotRequest(Message, key=59, versions="0-1", flexible="0+"):
    cluster_id: NullableStr = field("0+", default=None, tag=0)
    replica_id: Int32 = field("0+", default=-1)
    max_bytes: Int32 = field("0+", default=2147483647)
    topics: list[FetchSnapshotRequestTopicSnapshot] = field("0+")


class FetchSnapshotResponseSnapshotId(Struct):
    end_offset: Int64 = field("0+")
    epoch: Int32 = field("0+")


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    snapshot_id: FetchSnapshotResponseSnapshotId = field("0+")
    current_leader: LeaderIdAndEpoch = field("0+", tag=0)
    size: Int64 = field("0+")
    position: Int64 = field("0+")
    unaligned_records: SendableRecords = field("0+", nullable="none")


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: Str = field("0+")
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field("0+")


class FetchSnapshotResponseNodeEndpoint(Struct):
    node_id: Int32 = field("1+")
    host: Str = field("1+")
    port: UInt16 = field("1+")


class FetchSnapshotResponse(Message, key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    topics: list[FetchSnapshotResponseTopicSnapshot] = field("0+")
    node_endpoints: list[FetchSnapshotResponseNodeEndpoint] = field("1+", tag=0)


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")


class DescribeQuorumRequestTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[DescribeQuorumRequestPartitionData] = field("0+")


class DescribeQuorumRequest(Message, key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = field("0+")


class ReplicaState(Struct):
    replica_id: Int32 = field("0+")
    replica_directory_id: Uuid = field("2+")
    log_end_offset: Int64 = field("0+")
    last_fetch_timestamp: Int64 = field("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: Int64 = field("1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("2+", ignorable=True)
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    high_watermark: Int64 = field("0+")
    current_voters: list[ReplicaState] = field("0+")
    observers: list[ReplicaState] = field("0+")


class DescribeQuorumResponseTopicData(Struct):
    topic_name: Str = field("0+")
    partitions: list[DescribeQuorumResponsePartitionData] = field("0+")


class DescribeQuorumResponseListener(Struct):
    name: Str = field("2+")
    host: Str = field("2+")
    port: UInt16 = field("2+")


class Node(Struct):
    node_id: Int32 = field("2+")
    listeners: list[DescribeQuorumResponseListener] = field("2+")


class DescribeQuorumResponse(Message, key=55, versions="0-2", flexible="0+"):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = field("0+")
    nodes: list[Node] = field("2+")


class AddRaftVoterRequestListener(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")


class AddRaftVoterRequest(Message, key=80, versions="0-1", flexible="0+"):
    cluster_id: NullableStr = field("0+")
    timeout_ms: Int32 = field("0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")
    listeners: list[AddRaftVoterRequestListener] = field("0+")
    ack_when_committed: Bool = field("1+", default=True)


class AddRaftVoterResponse(Message, key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class RemoveRaftVoterRequest(Message, key=81, versions="0", flexible="0+"):
    cluster_id: NullableStr = field("0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")


class RemoveRaftVoterResponse(Message, key=81, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class UpdateRaftVoterRequestListener(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")


class KRaftVersionFeature(Struct):
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class UpdateRaftVoterRequest(Message, key=82, versions="0", flexible="0+"):
    cluster_id: NullableStr = field("0+")
    current_leader_epoch: Int32 = field("0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")
    listeners: list[UpdateRaftVoterRequestListener] = field("0+")
    kraft_version_feature: KRaftVersionFeature = field("0+")


class CurrentLeader(Struct):
    leader_id: Int32 = field("0+", default=-1)
    leader_epoch: Int32 = field("0+", default=-1)
    host: Str = field("0+")
    port: Int32 = field("0+")


class UpdateRaftVoterResponse(Message, key=82, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    current_leader: CurrentLeader = field("0+", tag=0)
