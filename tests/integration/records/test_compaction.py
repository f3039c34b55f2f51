"""A running node that compacts: what its clients see, and what Kafka's tools find in its files."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.typed import present
from tools.kafka.brokers import Broker, ScribaBroker, running
from tools.kafka.kafka_jars import tool

PATIENCE_S = 300
EAGER = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
}
"""Compacted as soon as there is anything to compact."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TEXTBOOK = [("K1", "A"), ("K2", "B"), ("K1", "C"), ("K3", "D"), ("K2", "E"), ("K1", "F")]

Seen = list[tuple[int, str | None, str | None]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    node = ScribaBroker(
        tmp_path, {"log.cleaner.backoff.ms": "50", "log.segment.delete.delay.ms": "100"}
    )
    with running(node):
        yield node


def create(broker: Broker, topic: str, **more: str) -> None:
    settings = EAGER | {key.replace("_", "."): value for key, value in more.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [made] = admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values()
    made.result(PATIENCE_S)


def send(
    broker: Broker, topic: str, pairs: Sequence[tuple[str, str | None]], **settings: str
) -> None:
    """One batch for each record."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for key, value in pairs:
        producer.produce(topic, key=key, value=value)
        assert producer.flush(PATIENCE_S) == 0


def read(broker: Broker, topic: str) -> Seen:
    """Everything in the topic, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    seen: Seen = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if message.error() is not None:
                assert present(message.error()).code() == KafkaError._PARTITION_EOF
                return seen
            key, value = message.key(), message.value()
            seen.append((present(message.offset()), text(key), text(value)))
    finally:
        consumer.close()


def text(field: bytes | None) -> str | None:
    return None if field is None else field.decode()


def read_until(broker: Broker, topic: str, wanted: Seen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := read(broker, topic)) != wanted:
        assert time.monotonic() < deadline, seen


def folder(broker: Broker, topic: str) -> Path:
    return broker.log_dir / f"{topic}-0"


def test_the_textbook_case_with_offsets_kept(broker: Broker) -> None:
    create(broker, "textbook")
    send(broker, "textbook", TEXTBOOK)
    read_until(broker, "textbook", [(3, "K3", "D"), (4, "K2", "E"), (5, "K1", "F")])
    send(broker, "textbook", [("K3", "G")])
    read_until(broker, "textbook", [(4, "K2", "E"), (5, "K1", "F"), (6, "K3", "G")])


def test_a_deleted_key_goes_with_its_tombstone_once_that_has_been_kept_long_enough(
    broker: Broker,
) -> None:
    create(broker, "deleted", delete_retention_ms="300")
    send(broker, "deleted", [("a", "1"), ("b", "1"), ("a", None)])
    read_until(broker, "deleted", [(1, "b", "1"), (2, "a", None)])
    deadline = time.monotonic() + PATIENCE_S
    while any(key == "a" for _, key, _ in read(broker, "deleted")):
        send(broker, "deleted", [("c", "1")])  # a log is looked at again when it is dirty
        assert time.monotonic() < deadline
    assert (1, "b", "1") in read(broker, "deleted")


def test_a_record_without_a_key_is_refused(broker: Broker) -> None:
    create(broker, "keyed")
    failures: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("keyed", value="no key", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert [present(error).code() for error in failures] == [KafkaError.INVALID_RECORD]


def test_a_crash_brings_nothing_back_and_what_was_compacted_is_known(broker: Broker) -> None:
    create(broker, "crashed")
    send(broker, "crashed", TEXTBOOK)
    kept: Seen = [(3, "K3", "D"), (4, "K2", "E"), (5, "K1", "F")]
    read_until(broker, "crashed", kept)
    checkpoint = broker.log_dir / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + PATIENCE_S
    while not checkpoint.exists() or "crashed 0 6" not in checkpoint.read_text():
        assert time.monotonic() < deadline
    assert checkpoint.read_text().splitlines()[0] == "0"
    broker.kill()
    broker.start()
    assert read(broker, "crashed") == kept
    send(broker, "crashed", [("K2", "H")])
    read_until(broker, "crashed", [(3, "K3", "D"), (5, "K1", "F"), (6, "K2", "H")])


def test_transactions_are_compacted_by_what_became_of_them(broker: Broker) -> None:
    create(broker, "txns")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_S)
    for value, commit in (("kept", True), ("dropped", False), ("newer", True), ("gone", False)):
        producer.begin_transaction()
        producer.produce("txns", key="a" if commit else "b", value=value)
        if value == "kept":
            producer.produce("txns", key="b", value="stays")
        assert producer.flush(PATIENCE_S) == 0
        producer.commit_transaction() if commit else producer.abort_transaction()
    read_until(broker, "txns", [(1, "b", "stays"), (5, "a", "newer")])


def keys_left(broker: Broker, topic: str) -> list[str]:
    return [key for _, key, _ in read(broker, topic) if key and key.startswith("key")]


def test_kafkas_dump_reads_what_is_left_in_every_codec(broker: Broker) -> None:
    for codec in CODECS:
        create(broker, codec, segment_ms="604800000", internal_segment_bytes="3000")
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 20}
        )
        for turn in range(5):
            for n in range(10):
                producer.produce(codec, key=f"key-{n}", value=f"{turn} " * 40)
            assert producer.flush(PATIENCE_S) == 0
        send(broker, codec, [(f"filler-{n}", "x" * 900) for n in range(4)])
    deadline = time.monotonic() + PATIENCE_S
    while any(len(keys_left(broker, codec)) > 10 for codec in CODECS):
        assert time.monotonic() < deadline
    broker.stop()
    logs = [path for codec in CODECS for path in sorted(folder(broker, codec).glob("*.log"))]
    dumped = tool("dump-log", "--print-data-log", "--files", ",".join(map(str, logs))).ok()
    assert "isvalid: false" not in dumped
    for n in range(10):
        assert dumped.count(f"key: key-{n} ") == len(CODECS)
        assert dumped.count(f"key: key-{n} payload: {'4 ' * 40}") == len(CODECS)
    indexes = [each for codec in CODECS for each in sorted(folder(broker, codec).glob("*.*index"))]
    checked = tool("dump-log", "--index-sanity-check", "--files", ",".join(map(str, indexes))).ok()
    assert "Mismatches in" not in checked
    assert "passed sanity check" in checked


def test_a_topic_may_turn_to_compaction_and_back(broker: Broker) -> None:
    create(broker, "turned", cleanup_policy="delete")
    send(broker, "turned", TEXTBOOK)
    assert len(read(broker, "turned")) == 6
    with pytest.raises(KafkaException):
        create(broker, "refused", cleanup_policy="shrink")
    tool(
        "configs", "--bootstrap-server", broker.bootstrap, "--alter", "--topic", "turned",
        "--add-config", "cleanup.policy=compact",
    ).ok()  # fmt: skip
    read_until(broker, "turned", [(3, "K3", "D"), (4, "K2", "E"), (5, "K1", "F")])
