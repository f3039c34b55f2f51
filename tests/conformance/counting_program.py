"""A program of Kafka Streams that counts words exactly once, and what it has counted.

Its cache is off, so every word has to be followed by 1, 2, 3 and so on: a record lost or counted
twice leaves a gap or a repetition.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tools.kafka.brokers import Cluster
from tools.kafka.kafka_jars import STREAMS, TOOL_JVM, classpath, compiled, logging_option

SOURCE = Path(__file__).parent / "java" / "Counting.java"
WORDS = ("log", "topic", "offset", "group", "epoch")


@contextmanager
def counting(cluster: Cluster, name: str, state: Path) -> Iterator[subprocess.Popen[str]]:
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

    def __init__(self, cluster: Cluster, topic: str) -> None:
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


def write_lines(cluster: Cluster, topic: str, lines: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(lines):
        producer.produce(topic, " ".join(WORDS).encode(), partition=n % 2)
    assert producer.flush(300) == 0
