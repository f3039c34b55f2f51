"""The same requests, encoded by clients that other people wrote."""

from typing import Any

import aiokafka.protocol.fetch as aio_fetch
import aiokafka.protocol.group as aio_group
import aiokafka.protocol.metadata as aio_metadata
import aiokafka.protocol.produce as aio_produce
import pytest
from kafka.protocol.admin import CreateTopicsRequest as TheirCreateTopics
from kafka.protocol.consumer import FetchRequest as TheirFetch
from kafka.protocol.metadata import ApiVersionsResponse as TheirApiVersions
from kafka.protocol.metadata import MetadataResponse as TheirMetadata
from kafka.protocol.producer import ProduceRequest as TheirProduce

from scriba.wire.messages import admin, fetch, groups, metadata, produce
from scriba.wire.schema import Message, Struct

FETCH = fetch.FetchRequest(
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    isolation_level=1,
    session_id=7,
    session_epoch=3,
    topics=[
        fetch.FetchTopic(
            topic="events",
            partitions=[
                fetch.FetchPartition(
                    partition=2, current_leader_epoch=4, fetch_offset=99, partition_max_bytes=4096
                )
            ],
        )
    ],
    forgotten_topics_data=[fetch.ForgottenTopic(topic="old", partitions=[0, 1, 2])],
    rack_id="rack-1",
)
PRODUCE = produce.ProduceRequest(
    acks=-1,
    timeout_ms=30_000,
    topic_data=[
        produce.TopicProduceData(
            name="events",
            partition_data=[produce.PartitionProduceData(index=1, records=b"batch" * 50)],
        )
    ],
)
METADATA = metadata.MetadataResponse(
    brokers=[metadata.MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
    cluster_id="cluster",
    controller_id=1,
    topics=[
        metadata.MetadataResponseTopic(
            name="events",
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=0, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]
                )
            ],
        )
    ],
)
VERSIONS = metadata.ApiVersionsResponse(
    api_keys=[metadata.ApiVersion(api_key=k, min_version=0, max_version=k) for k in range(100)],
    finalized_features_epoch=5,
    finalized_features=[
        metadata.FinalizedFeatureKey(
            name="metadata.version", max_version_level=20, min_version_level=20
        )
    ],
)
TOPICS = admin.CreateTopicsRequest(
    topics=[
        admin.CreatableTopic(
            name="events",
            num_partitions=3,
            replication_factor=1,
            configs=[admin.CreatableTopicConfig(name="retention.ms", value="1000")],
        )
    ],
    timeout_ms=1000,
)


def test_aiokafka_encodes_produce_alike() -> None:
    theirs = aio_produce.ProduceRequest_v7(
        None, -1, 30_000, [("events", [(1, b"batch" * 50)])]
    ).encode()
    assert PRODUCE.encode(7) == theirs


def test_aiokafka_encodes_fetch_alike() -> None:
    theirs = aio_fetch.FetchRequest_v11(
        -1,
        500,
        1,
        1 << 20,
        1,
        7,
        3,
        [("events", [(2, 4, 99, -1, 4096)])],
        [("old", [0, 1, 2])],
        "rack-1",
    ).encode()
    assert FETCH.encode(11) == theirs


def test_aiokafka_reads_our_metadata() -> None:
    theirs = aio_metadata.MetadataResponse_v5.decode(METADATA.encode(5))
    assert theirs.brokers == [(1, "localhost", 9092, None)]
    assert theirs.cluster_id == "cluster"
    assert theirs.topics == [(0, "events", False, [(0, 0, 1, [1, 2], [1], [])])]
    assert theirs.encode() == METADATA.encode(5)


def test_aiokafka_encodes_join_group_alike() -> None:
    theirs = aio_group.JoinGroupRequest_v5(
        "group", 10_000, 60_000, "", None, "consumer", [("range", b"subscription")]
    ).encode()
    ours = groups.JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"subscription")],
    )
    assert ours.encode(5) == theirs


@pytest.mark.parametrize(
    ("ours", "their_class", "versions"),
    [
        (PRODUCE, TheirProduce, range(3, 13)),
        (FETCH, TheirFetch, range(11, 13)),
        (METADATA, TheirMetadata, range(5, 10)),
        (VERSIONS, TheirApiVersions, range(5)),
        (TOPICS, TheirCreateTopics, range(2, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else None,
)
def test_kafka_python_encodes_alike(ours: Message, their_class: Any, versions: range) -> None:
    for version in versions:
        theirs = rebuilt(ours, their_class)
        assert ours.encode(version) == bytes(theirs.encode(version=version))


def rebuilt(ours: Struct, their_class: Any) -> Any:
    """The same values in their classes, which nest as ours are named."""
    given = {}
    for field in ours.FIELDS:
        value = getattr(ours, field.name)
        if value == field.default():
            continue
        if isinstance(value, list) and value and isinstance(value[0], Struct):
            value = [rebuilt(v, getattr(their_class, type(v).__name__)) for v in value]
        given[field.name] = value
    return their_class(**given)
