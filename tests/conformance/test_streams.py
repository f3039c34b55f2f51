"""Kafka Streams: groups, transactions, offsets and compacted topics in one program.

It counts words exactly once. Its cache is off, so every word has to be followed by 1, 2, 3 and so
on: a record lost or counted twice leaves a gap or a repetition.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tools.kafka.broker_fixtures import SWIFT, TARGETS, eventually
from tools.kafka.brokers import KINDS, Broker, running
from tools.kafka.kafka_jars import STREAMS, TOOL_JVM, Tools, classpath, compiled, logging_option
from tools.kafka.rawkafka import Connection, create_topic

SOURCE = Path(__file__).parent / "java" / "Counting.java"
WORDS = ("log", "topic", "offset", "group", "epoch")
LINES = 400


@contextmanager
def counting(cluster: Broker, name: str, state: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, with the topics NAME-lines and NAME-counts; killed if it has not ended."""
    path = f"{compiled(SOURCE, STREAMS)}:{classpath(STREAMS)}"
    logging = logging_option("tools-log4j2.properties")
    topics = [f"{name}-lines", f"{name}-counts"]
    said = state.with_suffix(".out").open("w+")
    with said, subprocess.Popen(
        ["java", *TOOL_JVM, logging, "-cp", path, "Counting",
         cluster.bootstrap, name, *topics, str(state)],
        stdin=subprocess.PIPE, stdout=said, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


class Counts:
    """What the program has committed so far, word by word."""

    def __init__(self, cluster: Broker, topic: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "counts",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self.consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.by_word: defaultdict[str, list[int]] = defaultdict(list)

    def total(self) -> int:
        for message in self.consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            key: Any = message.key()
            value: Any = message.value()
            self.by_word[key.decode()].append(int(value))
        return sum(map(len, self.by_word.values()))


def write(cluster: Broker, topic: str, lines: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(lines):
        producer.produce(topic, " ".join(WORDS).encode(), partition=n % 2)
    assert producer.flush(300) == 0


@pytest.fixture(params=TARGETS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """One that is killed and started again while the program works."""
    with running(KINDS[request.param](tmp_path / request.param, settings=SWIFT)) as started:
        yield started


def test_words_are_counted_exactly_once_whoever_crashes_and_whatever_is_lost(
    broker: Broker, tools: Tools, topic: str, tmp_path: Path
) -> None:
    with Connection(broker.port) as connection:
        create_topic(connection, f"{topic}-lines", 2)
        create_topic(connection, f"{topic}-counts", 1)
    counts = Counts(broker, f"{topic}-counts")
    write(broker, f"{topic}-lines", LINES)
    with counting(broker, topic, tmp_path / "first") as process:
        eventually(lambda: counts.total() > 0)
        broker.kill()
        broker.start()
        eventually(lambda: counts.total() == LINES * len(WORDS))
        write(broker, f"{topic}-lines", LINES)
        eventually(lambda: counts.total() > LINES * len(WORDS))
        process.kill()
    write(broker, f"{topic}-lines", LINES)
    second = tmp_path / "second"
    with counting(broker, topic, second) as process:
        eventually(lambda: counts.total() >= 3 * LINES * len(WORDS))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(300) == 0
    assert counts.total() == 3 * LINES * len(WORDS)
    assert counts.by_word == {word: list(range(1, 3 * LINES + 1)) for word in WORDS}
    restored = [
        int(line.split()[2])
        for line in second.with_suffix(".out").read_text().splitlines()
        if line.startswith("RESTORED")
    ]
    assert sum(restored) > 0, "the store was made from its changelog"
    to = ["--bootstrap-server", broker.bootstrap]
    listed = set(tools.run("topics", *to, "--list").ok().split())
    inner = {f"{topic}-by-word-repartition", f"{topic}-counts-changelog"}
    assert inner <= listed
    changelog = ["--entity-type", "topics", "--entity-name", f"{topic}-counts-changelog"]
    assert "cleanup.policy=compact" in tools.run("configs", *to, "--describe", *changelog).ok()
    groups = ["--describe", "--group", topic]
    described = tools.run("consumer-groups", *to, *groups).ok()
    assert {line.split()[5] for line in described.splitlines() if topic in line} == {"0"}
    reset = ["--application-id", topic, "--input-topics", f"{topic}-lines", "--force"]
    tools.run("streams-application-reset", *to, *reset).ok()
    eventually(lambda: not inner & set(tools.run("topics", *to, "--list").ok().split()))
    again = tools.run("consumer-groups", *to, *groups).ok()
    offsets = {line.split()[3] for line in again.splitlines() if f"{topic}-lines" in line}
    assert offsets == {"0"}
