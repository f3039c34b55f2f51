"""A compacted log carried from this broker to Apache Kafka and back: both go on with it."""

import shutil
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.typed import present
from tools.kafka.brokers import Broker, QuickKafka, ScribaBroker, running

PATIENCE_S = 300
TOPIC = "carried"
EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"}
NODE = {"log.cleaner.backoff.ms": "50"}
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)

Seen = list[tuple[int, bytes | None, bytes | None]]


def create(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=EAGER)]).values()
    made.result(PATIENCE_S)


def send(broker: Broker, pairs: list[tuple[str, str | None]]) -> None:
    """Idempotently at home: the other cluster gives its producers the same ids anew."""
    own = isinstance(broker, ScribaBroker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": own})
    for key, value in pairs:
        producer.produce(TOPIC, key=key, value=value)
        assert producer.flush(PATIENCE_S) == 0


def read(broker: Broker) -> Seen:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "x", "enable.partition.eof": True}
    )
    seen: Seen = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if message.error() is not None:
                assert present(message.error()).code() == KafkaError._PARTITION_EOF
                return seen
            seen.append((present(message.offset()), message.key(), message.value()))
    finally:
        consumer.close()


def compacted_to(broker: Broker, offset: int) -> bool:
    path = broker.log_dir / "cleaner-offset-checkpoint"
    return path.exists() and f"{TOPIC} 0 {offset}" in path.read_text().splitlines()


def await_compaction(broker: Broker, offset: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not compacted_to(broker, offset):
        assert time.monotonic() < deadline, broker.tail()
        time.sleep(0.01)


def line_of(checkpoint: Path) -> list[str]:
    if not checkpoint.exists():
        return []
    return [line for line in checkpoint.read_text().splitlines() if line.startswith(f"{TOPIC} ")]


def carry(source: Broker, target: Broker) -> None:
    """Between two brokers that are stopped; the target keeps what names the topic."""
    folder = target.log_dir / f"{TOPIC}-0"
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in (source.log_dir / f"{TOPIC}-0").iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, folder)
    for name in CHECKPOINTS:
        there = target.log_dir / name
        lines = there.read_text().splitlines()[2:] if there.exists() else []
        lines = [line for line in lines if not line.startswith(f"{TOPIC} ")]
        lines += line_of(source.log_dir / name)
        there.write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def restart(broker: Broker) -> None:
    broker.process = None
    broker.start()


def test_there_and_back_again(tmp_path: Path) -> None:
    scriba = ScribaBroker(tmp_path / "scriba", NODE)
    kafka = QuickKafka(tmp_path / "kafka", NODE)
    with running(scriba), running(kafka):
        create(scriba)
        create(kafka)
        send(scriba, [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("a", "3")])
        await_compaction(scriba, 6)
        expected: Seen = [(3, b"c", b"1"), (4, b"b", None), (5, b"a", b"3")]
        assert read(scriba) == expected
        scriba.stop()
        kafka.stop()
        carry(scriba, kafka)
        restart(kafka)
        assert read(kafka) == expected
        send(kafka, [("c", "2"), ("d", "1")])
        time_to_roll = time.monotonic() + 1
        while time.monotonic() < time_to_roll:
            read(kafka)
        send(kafka, [("d", "2")])
        await_compaction(kafka, 8)
        expected = [(4, b"b", None), (5, b"a", b"3"), (6, b"c", b"2"), (7, b"d", b"1")]
        expected.append((8, b"d", b"2"))
        assert read(kafka) == expected
        kafka.stop()
        carry(kafka, scriba)
        restart(scriba)
        await_compaction(scriba, 9)
        assert read(scriba) == [*expected[:3], (8, b"d", b"2")]
        assert "uncleanable" not in kafka.output.read_text()
