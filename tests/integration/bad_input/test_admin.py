"""Requests for what cannot be: names, counts, settings; the codes that Kafka gives."""

import uuid
from typing import Any

import pytest
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import LATEST, Closed, Connection, Message, fetch, fetched, list_offset

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC = 1, 3, 17
UNSUPPORTED_VERSION, EXISTS, PARTITIONS, REPLICATION, ASSIGNMENT = 35, 36, 37, 38, 39
CONFIG, REQUEST, POLICY = 40, 42, 44
SESSION_NOT_FOUND, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 70, 75, 100

BROKER, TOPIC = 4, 2
SET, DELETE, APPEND = 0, 1, 2

Creatable = CreateTopicsRequest.CreatableTopic


def creatable(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    settings: dict[str, str | None] | None = None,
) -> Message:
    return Creatable(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            Creatable.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            Creatable.CreatableTopicConfig(name=key, value=value)
            for key, value in (settings or {}).items()
        ],
    )


def creation(connection: Connection, *topics: Message) -> list[int]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=9000, validate_only=False)
    return [topic.error_code for topic in connection.call(request, 7).topics]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "é", "a\0b", "../../etc/passwd", "x" * 250]
)
def test_illegal_names(bystander: Connection, name: str) -> None:
    assert creation(bystander, creatable(name)) == [INVALID_TOPIC]
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
    assert [t.error_code for t in bystander.call(request, 9).topics] == [INVALID_TOPIC]


def test_names_that_are_taken(bystander: Connection, topic: str) -> None:
    assert creation(bystander, creatable(topic)) == [EXISTS]
    assert creation(bystander, creatable(topic + ".x")) == [0]
    assert creation(bystander, creatable(topic + "_x")) == [INVALID_TOPIC]
    assert creation(bystander, creatable("__cluster_metadata")) == [REQUEST]
    twice = creatable(topic + "-twice")
    assert creation(bystander, twice, twice) == [REQUEST]


@pytest.mark.parametrize(
    ("partitions", "code"),
    [(0, PARTITIONS), (-2, PARTITIONS), (10_001, POLICY), (2**31 - 1, POLICY)],
)
def test_partition_counts_out_of_range(
    bystander: Connection, topic: str, partitions: int, code: int
) -> None:
    assert creation(bystander, creatable(topic + "-n", partitions)) == [code]


@pytest.mark.parametrize("replicas", [0, -2, 2, 32767])
def test_replication_out_of_range(bystander: Connection, topic: str, replicas: int) -> None:
    assert creation(bystander, creatable(topic + "-r", replicas=replicas)) == [REPLICATION]


def test_assignments_that_cannot_be(bystander: Connection, topic: str) -> None:
    (here,) = bystander.call(MetadataRequest(topics=[]), 9).brokers
    node = here.node_id

    def attempt(assignments: dict[int, list[int]], count: int = -1) -> list[int]:
        return creation(bystander, creatable(topic + "-a", count, count, assignments))

    assert attempt({0: [99]}) == [ASSIGNMENT]
    assert attempt({0: [node, node]}) == [ASSIGNMENT]
    assert attempt({0: []}) == [ASSIGNMENT]
    assert attempt({1: [node]}) == [ASSIGNMENT]
    assert attempt({0: [node]}, count=1) == [REQUEST]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", None),
        ("no.such.setting", "1"),
        ("segment.bytes", "5"),
        ("segment.bytes", "99999999999"),
        ("cleanup.policy", "zap"),
        ("compression.type", "rar"),
        ("min.insync.replicas", "0"),
        ("max.message.bytes", "-1"),
    ],
)
def test_settings_that_cannot_be(
    bystander: Connection, topic: str, name: str, value: str | None
) -> None:
    assert creation(bystander, creatable(topic + "-c", settings={name: value})) == [CONFIG]


def test_changes_of_settings_that_cannot_be(bystander: Connection, topic: str) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    (here,) = bystander.call(MetadataRequest(topics=[]), 9).brokers

    def change(kind: int, name: str, key: str, value: str | None, operation: int = SET) -> int:
        entry = resource.AlterableConfig(name=key, config_operation=operation, value=value)
        wanted = resource(resource_type=kind, resource_name=name, configs=[entry])
        request = IncrementalAlterConfigsRequest(resources=[wanted])
        code: int = bystander.call(request, 1).responses[0].error_code
        return code

    assert change(TOPIC, "never-made", "retention.ms", "5") == UNKNOWN_TOPIC
    assert change(TOPIC, topic, "retention.ms", "soon") == CONFIG
    assert change(TOPIC, topic, "retention.ms", None) == REQUEST
    assert change(TOPIC, topic, "retention.ms", "5", APPEND) == CONFIG
    assert change(TOPIC, topic, "no.such.setting", "5") == CONFIG
    assert change(BROKER, "99", "log.retention.ms", "5") == REQUEST
    assert change(BROKER, str(here.node_id), "node.id", "7") == REQUEST
    assert change(BROKER, str(here.node_id), "log.retention.ms", "soon") == REQUEST
    assert change(99, topic, "retention.ms", "5") == REQUEST


def test_descriptions_of_what_is_not_there(bystander: Connection) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource

    def describe(kind: int, name: str) -> int:
        wanted = resource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[wanted])
        code: int = bystander.call(request, 4).results[0].error_code
        return code

    assert describe(TOPIC, "never-made") == UNKNOWN_TOPIC
    assert describe(TOPIC, "a/b") == INVALID_TOPIC
    assert describe(BROKER, "99") == REQUEST
    assert describe(BROKER, "one") == REQUEST
    assert describe(99, "x") == REQUEST


def test_partitions_are_only_ever_added(bystander: Connection, topic: str) -> None:
    wanted = CreatePartitionsRequest.CreatePartitionsTopic

    def grow(name: str, count: int) -> int:
        request = CreatePartitionsRequest(
            topics=[wanted(name=name, count=count, assignments=None)],
            timeout_ms=9000,
            validate_only=False,
        )
        code: int = bystander.call(request, 3).results[0].error_code
        return code

    for count in (0, -1, 1):
        assert grow(topic, count) == PARTITIONS
    assert grow("never-made", 3) == UNKNOWN_TOPIC
    assert grow(topic, 2**31 - 1) != 0


def test_deleting_what_is_not_there(bystander: Connection, topic: str) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(
        topics=[state(name="never-made"), state(name=None, topic_id=uuid.uuid4())],
        timeout_ms=9000,
    )
    answers = bystander.call(request, 6).responses
    assert {a.name: a.error_code for a in answers} == {
        "never-made": UNKNOWN_TOPIC,
        None: UNKNOWN_TOPIC_ID,
    }
    records = DeleteRecordsRequest.DeleteRecordsTopic

    def cut(name: str, offset: int, partition: int = 0) -> int:
        part = records.DeleteRecordsPartition(partition_index=partition, offset=offset)
        wanted = DeleteRecordsRequest(topics=[records(name=name, partitions=[part])])
        code: int = bystander.call(wanted, 1).topics[0].partitions[0].error_code
        return code

    assert cut(topic, 2) == OFFSET_OUT_OF_RANGE
    assert cut(topic, -2) == OFFSET_OUT_OF_RANGE
    assert cut("never-made", 0) == UNKNOWN_TOPIC
    assert cut(topic, 0, partition=9) == UNKNOWN_TOPIC


def test_reading_what_is_not_there(bystander: Connection, topic: str) -> None:
    def read(offset: int, name: str = topic, **fields: Any) -> int:
        code: int = fetched(bystander.call(fetch(offset, name, **fields), 12)).error_code
        return code

    assert read(2) == OFFSET_OUT_OF_RANGE
    assert read(-1) == OFFSET_OUT_OF_RANGE
    assert read(0, "never-made") == UNKNOWN_TOPIC
    assert read(0, partitions=[9]) == UNKNOWN_TOPIC
    by_id = fetched(bystander.call(fetch(0, topic_id=uuid.uuid4()), 13))
    assert by_id.error_code == UNKNOWN_TOPIC_ID
    ahead = fetch(0, topic)
    ahead.topics[0].partitions[0].current_leader_epoch = 9
    assert fetched(bystander.call(ahead, 12)).error_code == UNKNOWN_LEADER_EPOCH
    lost = fetch(0, topic)
    lost.session_id, lost.session_epoch = 123_456, 5
    assert bystander.call(lost, 12).error_code == SESSION_NOT_FOUND
    assert list_offset(bystander, "never-made", 0, LATEST).error_code == UNKNOWN_TOPIC
    assert list_offset(bystander, topic, 9, LATEST).error_code == UNKNOWN_TOPIC
    assert list_offset(bystander, topic, 0, -99).error_code == UNSUPPORTED_VERSION


def test_metadata_of_what_is_not_there(bystander: Connection, topic: str) -> None:
    wanted = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[wanted(name=topic + "-x")], allow_auto_topic_creation=False)
    assert [t.error_code for t in bystander.call(request, 9).topics] == [UNKNOWN_TOPIC]
    request = MetadataRequest(topics=[wanted(name=None, topic_id=uuid.uuid4())])
    assert [t.error_code for t in bystander.call(request, 12).topics] == [UNKNOWN_TOPIC_ID]
    request = MetadataRequest(topics=[wanted(name=topic), wanted(name=topic)])
    assert [t.error_code for t in bystander.call(request, 9).topics] == [0]


@pytest.mark.usefixtures("bystander")
def test_an_isolation_level_that_does_not_exist(cluster: Broker, topic: str) -> None:
    """Kafka answers with an unknown error; closing is as good. Nothing may be read."""
    wanted = fetch(0, topic)
    wanted.isolation_level = 7
    with Connection(cluster.port) as connection:
        try:
            answer = connection.call(wanted, 12)
        except Closed:
            return
        assert answer.error_code != 0
