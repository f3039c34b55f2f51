"""Kafka's verifiable producer, which tells of every record whether and where it was written."""

import json
import subprocess
from typing import Any

import pytest
from brokers import Broker
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka_jars import TOOL_JVM, classpath, logging_option
from rawkafka import Connection, create_topic

TOOL = "org.apache.kafka.tools.VerifiableProducer"
PARTITIONS = 3
RECORDS = 5000


def run(cluster: Broker, topic: str, *options: str) -> list[dict[str, Any]]:
    """The events it told of, one a line."""
    logging = logging_option("tools-log4j2.properties")
    done = subprocess.run(
        ["java", *TOOL_JVM, logging, "-cp", classpath(), TOOL,
         "--bootstrap-server", cluster.bootstrap, "--topic", topic,
         "--max-messages", str(RECORDS), "--throughput", "-1", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def everything(cluster: Broker, topic: str) -> dict[tuple[int, int], tuple[str | None, str]]:
    """Key and value by partition and offset."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "none"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    found: dict[tuple[int, int], tuple[str | None, str]] = {}
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            ends += 1
            continue
        key, value = message.key(), message.value()
        where: Any = (message.partition(), message.offset())
        assert isinstance(value, bytes)
        found[where] = (key.decode() if isinstance(key, bytes) else None, value.decode())
    consumer.close()
    return found


@pytest.mark.parametrize("options", [("--acks", "-1", "--repeating-keys", "7"), ("--acks", "1")])
def test_every_record_is_acknowledged_and_lies_where_it_was_said(
    cluster: Broker, topic: str, options: tuple[str, ...]
) -> None:
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, PARTITIONS)
    events = run(cluster, topic, *options)
    (told,) = [event for event in events if event["name"] == "tool_data"]
    assert (told["sent"], told["acked"]) == (RECORDS, RECORDS)
    assert not [event for event in events if event["name"] == "producer_send_error"]
    acked = {
        (event["partition"], event["offset"]): (event["key"], event["value"])
        for event in events
        if event["name"] == "producer_send_success"
    }
    assert sorted(int(value) for _, value in acked.values()) == list(range(RECORDS))
    assert everything(cluster, topic) == acked
