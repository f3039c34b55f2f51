"""From the answers of brokers to what `Admin` gives back."""

from collections.abc import Iterable, Mapping

from scriba.client.admin.model import (
    ActiveProducer,
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    CreatedTopic,
    Endpoint,
    Feature,
    LogDir,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    ReplicaLog,
    ReplicaOffsets,
)
from scriba.client.cluster import Node
from scriba.client.model import TopicPartition
from scriba.config import Kind, Source
from scriba.errors import ErrorCode, error_code
from scriba.wire.messages.admin import CreatableTopicResult, DescribeLogDirsResult
from scriba.wire.messages.configs import DescribeConfigsResourceResult
from scriba.wire.messages.fetch import FetchResponse, ListOffsetsResponse
from scriba.wire.messages.metadata import (
    ApiVersionsResponse,
    DescribeClusterResponse,
    DescribeTopicPartitionsResponsePartition,
)
from scriba.wire.messages.quorum import DescribeQuorumResponsePartitionData, ReplicaState
from scriba.wire.messages.quorum import Node as QuorumNode
from scriba.wire.messages.txn import ProducerState
from scriba.wire.uuids import to_text


def read_created(said: CreatableTopicResult) -> CreatedTopic:
    return CreatedTopic(
        said.name,
        to_text(said.topic_id),
        said.num_partitions,
        said.replication_factor,
        {config.name: config.value for config in said.configs or []},
    )


def read_partition(said: DescribeTopicPartitionsResponsePartition) -> PartitionDescription:
    eligible, last = said.eligible_leader_replicas, said.last_known_elr
    return PartitionDescription(
        said.partition_index,
        said.leader_id if said.leader_id >= 0 else None,
        said.leader_epoch,
        tuple(said.replica_nodes),
        tuple(said.isr_nodes),
        tuple(said.offline_replicas),
        None if eligible is None else tuple(eligible),
        None if last is None else tuple(last),
    )


def _source(number: int) -> Source | int:
    """Kafka has kinds of sources that no broker here has; they stay numbers."""
    try:
        return Source(number)
    except ValueError:
        return number


def _kind(number: int) -> Kind | None:
    try:
        return Kind(number)
    except ValueError:
        return None


def read_config(said: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        said.name,
        said.value,
        _source(said.config_source),
        said.read_only,
        said.is_sensitive,
        _kind(said.config_type),
        said.documentation,
        tuple(ConfigSynonym(s.name, s.value, _source(s.source)) for s in said.synonyms),
    )


def read_cluster(said: DescribeClusterResponse) -> ClusterDescription:
    return ClusterDescription(
        said.cluster_id,
        said.controller_id if said.controller_id >= 0 else None,
        tuple(Node(b.broker_id, b.host, b.port, b.rack) for b in said.brokers),
        tuple(b.broker_id for b in said.brokers if b.is_fenced),
    )


def read_log_dir(said: DescribeLogDirsResult) -> LogDir:
    return LogDir(
        said.log_dir,
        {
            TopicPartition(topic.name, p.partition_index): ReplicaLog(
                p.partition_size, p.offset_lag, p.is_future_key
            )
            for topic in said.topics
            for p in topic.partitions
        },
        said.total_bytes if said.total_bytes >= 0 else None,
        said.usable_bytes if said.usable_bytes >= 0 else None,
        said.is_cordoned,
        error_code(said.error_code) if said.error_code else None,
    )


def read_features(said: ApiVersionsResponse) -> dict[str, Feature]:
    supported = {f.name: (f.min_version, f.max_version) for f in said.supported_features}
    finalized = {f.name: f.max_version_level for f in said.finalized_features}
    return {
        name: Feature(name, supported.get(name), finalized.get(name))
        for name in sorted({*supported, *finalized})
    }


def _replica(said: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        said.replica_id,
        to_text(said.replica_directory_id),
        said.log_end_offset,
        said.last_fetch_timestamp,
        said.last_caught_up_timestamp,
    )


def read_quorum(
    said: DescribeQuorumResponsePartitionData, nodes: Iterable[QuorumNode] = ()
) -> QuorumDescription:
    return QuorumDescription(
        said.leader_id,
        said.leader_epoch,
        said.high_watermark,
        tuple(_replica(voter) for voter in said.current_voters),
        tuple(_replica(observer) for observer in said.observers),
        {
            node.node_id: tuple(Endpoint(end.name, end.host, end.port) for end in node.listeners)
            for node in nodes
        },
    )


def read_active_producer(said: ProducerState) -> ActiveProducer:
    start = said.current_txn_start_offset
    return ActiveProducer(
        said.producer_id,
        said.producer_epoch,
        said.last_sequence,
        said.last_timestamp,
        start if start >= 0 else None,
        said.coordinator_epoch,
    )


def read_ends(said: ListOffsetsResponse) -> dict[TopicPartition, tuple[int, int] | ErrorCode]:
    """The offset and the leader epoch at the end of each."""
    return {
        TopicPartition(topic.name, p.partition_index): error_code(p.error_code)
        if p.error_code
        else (p.offset, p.leader_epoch)
        for topic in said.topics
        for p in topic.partitions
    }


def read_replicas(
    wanted: Iterable[TopicPartition],
    ends: Mapping[TopicPartition, tuple[int, int] | ErrorCode],
    said: FetchResponse,
) -> dict[TopicPartition, ReplicaOffsets]:
    marks = {
        TopicPartition(topic.topic, p.partition_index): p
        for topic in said.responses
        for p in topic.partitions
    }
    found: dict[TopicPartition, ReplicaOffsets] = {}
    for where in wanted:
        end = ends.get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
        mark = marks.get(where)
        if isinstance(end, ErrorCode):
            found[where] = ReplicaOffsets(-1, -1, -1, end)
            continue
        start = mark_at = -1
        if mark is not None and not mark.error_code:
            start, mark_at = mark.log_start_offset, mark.high_watermark
        found[where] = ReplicaOffsets(start, end[0], mark_at, epoch=end[1])
    return found
