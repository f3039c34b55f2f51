"""kafka-python, written from Kafka's schemas by other hands: clients and admin."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    OffsetSpec,
)
from kafka.errors import (
    ElectionNotNeededError,
    InvalidReplicationAssignmentError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import T0


@pytest.fixture
def admin(cluster: Broker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield client
    client.close()


@pytest.fixture
def producer(cluster: Broker) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        made.append(KafkaProducer(bootstrap_servers=cluster.bootstrap, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def read(cluster: Broker) -> Iterator[Callable[..., list[Any]]]:
    """Reads `count` records of partition 0 from an offset, without a group."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none")

    def take(topic: str, count: int, offset: int = 0) -> list[Any]:
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek(part, offset)
        taken: list[Any] = []

        def enough() -> bool:
            taken.extend(consumer.poll(timeout_ms=500).get(part, []))
            return len(taken) >= count

        eventually(enough)
        return taken

    yield take
    consumer.close()


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
def test_what_is_sent_with_any_codec_comes_back(
    producer: Callable[..., Any], read: Callable[..., list[Any]], topic: str, codec: str | None
) -> None:
    sender = producer(compression_type=codec, linger_ms=20)
    values = [b"%d " % n * 30 for n in range(200)]
    futures = [
        sender.send(topic, value, key=b"k", partition=0, headers=[("h", b"1")], timestamp_ms=T0 + n)
        for n, value in enumerate(values)
    ]
    sender.flush(300)
    assert [future.get(30).offset for future in futures] == list(range(200))
    taken = read(topic, 200)
    assert [record.value for record in taken] == values
    assert [record.timestamp for record in taken] == [T0 + n for n in range(200)]
    assert list(taken[0].headers) == [("h", b"1")]
    assert [record.offset for record in read(topic, 60, offset=140)] == list(range(140, 200))


@pytest.mark.parametrize(
    "settings",
    [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}],
    ids=["acks-0", "acks-1", "acks-all", "idempotent"],
)
def test_every_kind_of_acknowledgement(
    producer: Callable[..., Any],
    read: Callable[..., list[Any]],
    topic: str,
    settings: dict[str, Any],
) -> None:
    sender = producer(**settings)
    for n in range(50):
        sender.send(topic, b"%d" % n, partition=0)
    sender.flush(300)
    assert [record.value for record in read(topic, 50)] == [b"%d" % n for n in range(50)]


def test_an_oversize_record_is_refused_and_the_next_one_taken(
    admin: Any, producer: Callable[..., Any], topic: str
) -> None:
    admin.create_topics({topic: {"configs": {"max.message.bytes": "2000"}}})
    sender = producer(enable_idempotence=False, acks="all")
    with pytest.raises(MessageSizeTooLargeError):
        sender.send(topic, b"x" * 3000, partition=0).get(30)
    assert sender.send(topic, b"small", partition=0).get(30).offset == 0


def test_topics_live_and_die(admin: Any, topic: str) -> None:
    admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(InvalidTopicError):
        admin.create_topics({"no/slash": {"num_partitions": 1, "replication_factor": 1}})
    eventually(lambda: topic in admin.list_topics())
    admin.create_partitions({topic: 5})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 5)
    (described,) = admin.describe_topic_partitions([topic])["topics"]
    assert [part["partition_index"] for part in described["partitions"]] == list(range(5))
    assert all(part["leader_epoch"] == 0 for part in described["partitions"])
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics())


def test_settings_are_changed_added_to_and_taken_back(admin: Any, topic: str) -> None:
    admin.create_topics({topic: {"configs": {"retention.ms": "500000"}}}, wait_for_metadata=True)

    def modified() -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found: dict[str, Any] = admin.describe_configs([resource])["topic"].get(topic, {})
        return found

    def change(**changes: Any) -> None:
        settings = {name.replace("_", "."): value for name, value in changes.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])

    eventually(lambda: modified().get("retention.ms", {}).get("value") == "500000")
    change(segment_bytes="5000000", max_message_bytes="70000")
    eventually(lambda: modified().get("max.message.bytes", {}).get("value") == "70000")
    change(retention_ms=(AlterConfigOp.DELETE, None))
    eventually(lambda: "retention.ms" not in modified())
    assert modified()["segment.bytes"]["value"] == "5000000"


def test_offsets_are_listed_and_records_deleted(
    admin: Any, producer: Callable[..., Any], topic: str
) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    sender = producer(linger_ms=20)
    for n in range(30):
        sender.send(topic, b"x", partition=0, timestamp_ms=T0 + n * 10)
    sender.flush(300)
    part = TopicPartition(topic, 0)

    def at(spec: Any) -> int:
        offset: int = admin.list_partition_offsets({part: spec})[part].offset
        return offset

    assert at(OffsetSpec.LATEST) == 30
    assert at(OffsetSpec.EARLIEST) == 0
    assert at(OffsetSpec.MAX_TIMESTAMP) == 29
    assert at(T0 + 95) == 10
    admin.delete_records({part: 11})
    assert at(OffsetSpec.EARLIEST) == 11


def test_the_cluster_describes_itself(cluster: Broker, admin: Any, topic: str) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    (node,) = admin.describe_cluster()["brokers"]
    assert node["port"] == cluster.port
    quorum = admin.describe_metadata_quorum()
    (metadata,) = quorum["topics"][0]["partitions"]
    assert metadata["leader_id"] == node["broker_id"]
    assert [voter["replica_id"] for voter in metadata["current_voters"]] == [node["broker_id"]]
    assert metadata["high_watermark"] > 0
    assert admin.describe_features()["metadata.version"]["finalized"]


def test_log_directories_and_producers_are_described(
    admin: Any, producer: Callable[..., Any], topic: str
) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    sender = producer(enable_idempotence=True)
    sender.send(topic, b"x" * 1000, partition=0).get(30)
    (broker,) = admin.describe_log_dirs([topic])
    (folder,) = [found for found in broker["log_dirs"] if found["topics"]]
    (part,) = folder["topics"][0]["partitions"]
    assert part["partition_size"] > 1000
    assert part["offset_lag"] == 0
    assert folder["total_bytes"] >= folder["usable_bytes"] > 0
    states = admin.describe_producers([TopicPartition(topic, 0)])
    (active,) = states[TopicPartition(topic, 0)].active_producers
    assert active.last_sequence == 0


def test_replicas_stay_and_nothing_is_under_way(admin: Any, topic: str) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    (node,) = admin.describe_cluster()["brokers"]
    place, here = TopicPartition(topic, 0), node["broker_id"]
    same = admin.alter_partition_reassignments({place: [here]})
    assert same == {place: None}
    moved = admin.alter_partition_reassignments({place: [here + 7]})
    assert moved[place] is InvalidReplicationAssignmentError
    assert admin.list_partition_reassignments() == {}
    elected = admin.elect_leaders(0, {topic: [0]}).replica_election_results[0]
    assert elected.partition_result[0].error_code == ElectionNotNeededError.errno
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.elect_leaders(0, {topic: [7]})
