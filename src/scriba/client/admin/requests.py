"""The requests of `Admin`, from what it is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from scriba.client.admin.model import (
    ConfigOp,
    ConfigResource,
    ElectionType,
    NewTopic,
    ResourceType,
)
from scriba.client.model import OffsetSpec, TopicPartition
from scriba.wire.messages import admin as wire
from scriba.wire.messages import configs as config_wire
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from scriba.wire.messages.txn import DescribeProducersRequest
from scriba.wire.messages.txn import TopicRequest as ProducersTopic

V = TypeVar("V")

LAST_FETCH_BY_NAME: Final = 12
_DEBUGGING: Final = -2
"""Who asks as this replica is told all that a replica has, whether it leads or not."""


def creatable(topic: NewTopic) -> wire.CreatableTopic:
    placed = topic.assignments
    return wire.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if placed is not None else topic.partitions,
        replication_factor=-1 if placed is not None else topic.replication_factor,
        assignments=[
            wire.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (placed or {}).items()
        ],
        configs=[
            wire.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def more_partitions(
    name: str, total: int, placed: Sequence[Sequence[int]] | None
) -> wire.CreatePartitionsTopic:
    return wire.CreatePartitionsTopic(
        name=name,
        count=total,
        assignments=None
        if placed is None
        else [wire.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in placed],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def ends_of_replicas(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=_DEBUGGING,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=at, timestamp=OffsetSpec.LATEST)
                    for at in indexes
                ],
            )
            for topic, indexes in _by_topic(partitions).items()
        ],
    )


def fetch_of_replicas(ends: Mapping[TopicPartition, int]) -> FetchRequest:
    """Asks for what is behind the ends, which is nothing, so that only watermarks are told."""
    return FetchRequest(
        replica_id=_DEBUGGING,
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=at,
                        fetch_offset=ends[TopicPartition(topic, at)],
                        partition_max_bytes=1,
                    )
                    for at in indexes
                ],
            )
            for topic, indexes in _by_topic(ends).items()
        ],
    )


def delete_records(
    offsets: Mapping[TopicPartition, int], part: list[TopicPartition], timeout_ms: int
) -> wire.DeleteRecordsRequest:
    return wire.DeleteRecordsRequest(
        topics=[
            wire.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    wire.DeleteRecordsPartition(
                        partition_index=index, offset=offsets[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(part).items()
        ],
        timeout_ms=timeout_ms,
    )


def describe_producers(part: list[TopicPartition]) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[
            ProducersTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in _by_topic(part).items()
        ]
    )


def describe_configs(
    resources: Iterable[ConfigResource], names: list[str] | None, documentation: bool
) -> config_wire.DescribeConfigsRequest:
    return config_wire.DescribeConfigsRequest(
        resources=[
            config_wire.DescribeConfigsResource(
                resource_type=r.type, resource_name=r.name, configuration_keys=names
            )
            for r in resources
        ],
        include_synonyms=True,
        include_documentation=documentation,
    )


def _text(name: str, value: V) -> V:
    """The value of a setting, which is text also where it stands for a number."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: the value of a setting is a str")
    return value


def change_configs(
    resources: Iterable[ConfigResource],
    changes: Mapping[ConfigResource, Sequence[tuple[str, ConfigOp, str | None]]],
    validate_only: bool,
) -> config_wire.IncrementalAlterConfigsRequest:
    return config_wire.IncrementalAlterConfigsRequest(
        resources=[
            config_wire.IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=r.type,
                resource_name=r.name,
                configs=[
                    config_wire.IncrementalAlterConfigsRequestAlterableConfig(
                        name=name, config_operation=op, value=_text(name, value)
                    )
                    for name, op, value in changes[r]
                ],
            )
            for r in resources
        ],
        validate_only=validate_only,
    )


def replace_configs(
    resources: Iterable[ConfigResource],
    configs: Mapping[ConfigResource, Mapping[str, str]],
    validate_only: bool,
) -> config_wire.AlterConfigsRequest:
    return config_wire.AlterConfigsRequest(
        resources=[
            config_wire.AlterConfigsRequestAlterConfigsResource(
                resource_type=r.type,
                resource_name=r.name,
                configs=[
                    config_wire.AlterConfigsRequestAlterableConfig(
                        name=name, value=_text(name, value)
                    )
                    for name, value in configs[r].items()
                ],
            )
            for r in resources
        ],
        validate_only=validate_only,
    )


def by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Only a broker itself knows all of its settings; everything else any broker knows."""
    found: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        node = int(resource.name) if own and resource.name else None
        found.setdefault(node, []).append(resource)
    return found


def alter_reassignments(
    moves: Mapping[TopicPartition, Sequence[int] | None],
    factor_may_change: bool,
    timeout_ms: int,
) -> wire.AlterPartitionReassignmentsRequest:
    topics: dict[str, wire.ReassignableTopic] = {}
    for where, replicas in moves.items():
        if where.topic not in topics:
            topics[where.topic] = wire.ReassignableTopic(name=where.topic)
        topics[where.topic].partitions.append(
            wire.ReassignablePartition(
                partition_index=where.partition,
                replicas=None if replicas is None else list(replicas),
            )
        )
    return wire.AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        allow_replication_factor_change=factor_may_change,
        topics=list(topics.values()),
    )


def describe_log_dirs(partitions: Iterable[TopicPartition] | None) -> wire.DescribeLogDirsRequest:
    """Of these partitions, or of all."""
    if partitions is None:
        return wire.DescribeLogDirsRequest(topics=None)
    topics: dict[str, list[int]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    return wire.DescribeLogDirsRequest(
        topics=[
            wire.DescribableLogDirTopic(topic=topic, partitions=numbers)
            for topic, numbers in topics.items()
        ]
    )


def alter_log_dirs(moves: Mapping[TopicPartition, str]) -> wire.AlterReplicaLogDirsRequest:
    dirs: dict[str, dict[str, list[int]]] = {}
    for where, path in moves.items():
        dirs.setdefault(path, {}).setdefault(where.topic, []).append(where.partition)
    return wire.AlterReplicaLogDirsRequest(
        dirs=[
            wire.AlterReplicaLogDir(
                path=path,
                topics=[
                    wire.AlterReplicaLogDirTopic(name=topic, partitions=partitions)
                    for topic, partitions in topics.items()
                ],
            )
            for path, topics in dirs.items()
        ]
    )


def list_reassignments(
    partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> wire.ListPartitionReassignmentsRequest:
    """For all partitions where none is named."""
    topics: dict[str, list[int]] = {}
    for where in partitions or ():
        topics.setdefault(where.topic, []).append(where.partition)
    return wire.ListPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        topics=None
        if partitions is None
        else [
            wire.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in topics.items()
        ],
    )


def elect_leaders(
    partitions: Iterable[TopicPartition] | None, kind: ElectionType, timeout_ms: int
) -> wire.ElectLeadersRequest:
    """For all partitions where none is named."""
    topics: dict[str, list[int]] = {}
    for where in partitions or ():
        topics.setdefault(where.topic, []).append(where.partition)
    return wire.ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if partitions is None
        else [
            wire.TopicPartitions(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
        ],
        timeout_ms=timeout_ms,
    )
