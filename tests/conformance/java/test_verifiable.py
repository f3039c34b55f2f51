"""Kafka's verifiable producer, which tells of every record whether and where it was written, and
its verifiable consumer, which tells of partitions, records and commits."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import TOOL_JVM, Tools, classpath, command, logging_option
from tools.kafka.rawkafka import Connection, create_topic

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
        capture_output=True, text=True, timeout=300, check=False,
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
        message = consumer.poll(300)
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


class Told:
    """What a verifiable consumer has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.held: set[int] = set()
        self.read = 0
        self.committed: dict[int, int] = {}
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            match event["name"]:
                case "partitions_assigned":
                    self.held |= {part["partition"] for part in event["partitions"]}
                case "partitions_revoked":
                    self.held -= {part["partition"] for part in event["partitions"]}
                case "records_consumed":
                    self.read += event["count"]
                case "offsets_committed":
                    assert event["success"], event
                    self.committed |= {p["partition"]: p["offset"] for p in event["offsets"]}

    def leave(self) -> None:
        self.process.terminate()
        self.process.wait(300)
        self._reader.join()


@contextmanager
def verifiable_consumer(
    cluster: Broker, topic: str, group: str, folder: Path, *options: str
) -> Iterator[Told]:
    settings = folder / "consumer.properties"
    settings.write_text("metadata.max.age.ms=500\n")
    line = command(
        "verifiable-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic,
        "--group-id", group, "--reset-policy", "earliest", "--command-config", str(settings),
        *options,
    )  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Told(process)
        finally:
            process.kill()


def write(cluster: Broker, topic: str, each: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(each * PARTITIONS):
        producer.produce(topic, b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(300) == 0


def test_a_group_changes_its_protocol_while_it_works_and_every_tool_goes_on_with_it(
    swift: Broker, tools: Tools, topic: str, tmp_path: Path
) -> None:
    """librdkafka's member is of the classic protocol, Java's of the new one (KIP-848)."""
    with Connection(swift.port) as connection:
        create_topic(connection, topic, PARTITIONS)
    write(swift, topic, 100)
    old = Consumer(
        {
            "bootstrap.servers": swift.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 45_000,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    old.subscribe([topic])
    read = 0

    def poll() -> int:
        nonlocal read
        read += sum(message.error() is None for message in old.consume(500, 0.05))
        return read

    to = ["--bootstrap-server", swift.bootstrap]

    def kind() -> str:
        listed = tools.run("consumer-groups", *to, "--list", "--type").ok().splitlines()
        return next(line.split()[1] for line in listed if line.startswith(f"{topic} "))

    eventually(lambda: poll() == 3 * 100)
    assert kind() == "Classic"
    with verifiable_consumer(
        swift, topic, topic, tmp_path, "--group-protocol", "consumer"
    ) as java:  # fmt: skip
        eventually(lambda: (poll(), bool(java.held))[1])
        eventually(lambda: (poll(), len(old.assignment()) + len(java.held) == 3)[1])
        assert kind() == "Consumer"
        write(swift, topic, 100)
        eventually(lambda: poll() + java.read == 3 * 200)
        old.close()
        eventually(lambda: java.held == {0, 1, 2})
        write(swift, topic, 100)
        eventually(lambda: read + java.read == 3 * 300)
        eventually(lambda: sum(java.committed.values()) >= 300)
        java.leave()
    write(swift, topic, 10)
    taken = tools.run(
        "console-consumer", *to, "--topic", topic, "--group", topic, "--max-messages", "30",
        "--timeout-ms", "60000", "--command-property", "auto.offset.reset=earliest",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    ).ok()  # fmt: skip
    assert sorted(taken.split()) == sorted([f"Offset:{n}" for n in range(300, 310)] * 3)
    assert kind() == "Classic", "the console consumer's protocol, in a group that was empty"
