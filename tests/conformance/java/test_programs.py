"""Programs with which Kafka tests itself: a copier in transactions, and its clients' check-up."""

import json
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kafka.protocol.metadata import ApiVersionsRequest

from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Connection, create_topic

RECORDS = 400
DESCRIBE_ACLS = 29


def contents(cluster: Broker, topic: str, isolation: str) -> list[bytes]:
    """Partition 0 to its end."""
    settings = {"isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    while not found or found[-1].error() is None:
        found.append(consumer.poll(300))
        assert found[-1] is not None
    consumer.close()
    return [message.value() for message in found[:-1]]


def test_a_copier_that_aborts_at_random_copies_everything_once_and_in_order(
    swift: Broker, tools: Tools, topic: str
) -> None:
    source, copy = f"{topic}-source", f"{topic}-copy"
    with Connection(swift.port) as connection:
        create_topic(connection, source)
        create_topic(connection, copy)
    values = [b"%d" % n for n in range(RECORDS)]
    producer = Producer({"bootstrap.servers": swift.bootstrap, "linger.ms": 5})
    for value in values:
        producer.produce(source, value, partition=0)
    assert producer.flush(300) == 0
    told = tools.run(
        "transactional-message-copier", "--broker-list", swift.bootstrap,
        "--input-topic", source, "--input-partition", "0", "--output-topic", copy,
        "--consumer-group", topic, "--transactional-id", topic, "--transaction-size", "20",
        "--max-messages", str(RECORDS), "--group-mode", "--use-group-metadata",
        "--enable-random-aborts",
    ).ok()  # fmt: skip
    events = [json.loads(line) for line in told.splitlines()]
    assert events[-1]["totalProcessed"] == RECORDS
    assert contents(swift, copy, "read_committed") == values
    assert len(contents(swift, copy, "read_uncommitted")) >= RECORDS
    reader = Consumer({"bootstrap.servers": swift.bootstrap, "group.id": topic})
    (place,) = reader.committed([TopicPartition(source, 0)], 300)
    assert place.offset == RECORDS
    reader.close()


def test_the_clients_find_every_feature_that_they_know_how_to_look_for(
    swift: Broker, tools: Tools, topic: str
) -> None:
    found = ["offsets-for-times", "cluster-id", "create-topics", "describe-configs",
             "idempotent-producer"]  # fmt: skip
    with Connection(swift.port) as connection:
        served = {api.api_key for api in connection.call(ApiVersionsRequest(), 0).api_keys}
    told = tools.run(
        "client-compatibility", "--bootstrap-server", swift.bootstrap, "--topic", topic,
        *(part for name in found for part in (f"--{name}-supported", "true")),
        "--expect-record-too-large-exception", "false", "--num-cluster-nodes", "1",
        "--describe-acls-supported", str(DESCRIBE_ACLS in served).lower(),
    )  # fmt: skip
    assert "SUCCESS" in told.ok()
