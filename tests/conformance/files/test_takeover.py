"""A data directory changes hands: Scriba writes it, Apache Kafka takes it over, and gives it back.

Nothing is exported: the next broker starts on the files as the last one left them when it was
killed: metadata log, groups, an open transaction and compacted segments included.
"""

from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker, QuickKafka, ScribaBroker, running
from tools.kafka.rawkafka import Connection, create_topic

RECORDS = "records"
TABLE = "table"
KEYS = 4
GROUPS = {"of-the-classic-protocol": "classic", "of-the-consumer-protocol": "consumer"}
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
}


class KafkaInPlace(QuickKafka):
    """Apache Kafka on the log directory that `scriba up --data` uses."""

    @property
    def log_dir(self) -> Path:
        return self.data / "data"


def write(broker: Broker, name: str) -> None:
    """One committed and one aborted transaction, and a value for every key of the table."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(300)
    for ending in ("committed", "aborted"):
        producer.begin_transaction()
        for n in range(5):
            producer.produce(RECORDS, f"{ending} by {name} {n}".encode(), partition=0)
        if ending == "committed":
            producer.commit_transaction(300)
        else:
            assert producer.flush(300) == 0
            producer.abort_transaction(300)
    change(broker, name)


def leave_open(broker: Broker) -> None:
    """A transaction that nobody ends: the id's next producer finds it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "leaves"})
    producer.init_transactions(300)
    producer.begin_transaction()
    producer.produce(RECORDS, b"never to be seen", partition=0)
    assert producer.flush(300) == 0


def end_open(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "leaves"})
    producer.init_transactions(300)


def change(broker: Broker, name: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key in range(KEYS):
        producer.produce(TABLE, name.encode(), key=b"%d" % key, partition=0)
    assert producer.flush(300) == 0


def go_on(broker: Broker, group: str, protocol: str, count: int) -> list[str]:
    """A member reads `count` records where its group has been and commits, once by itself and
    the last one by a transaction."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([RECORDS])
    found: list[Any] = []
    while len(found) < count:
        found += (message for message in consumer.consume(count - len(found), 300))
        assert found
        assert all(message.error() is None for message in found)
    before_last = TopicPartition(RECORDS, 0, found[-1].offset(), metadata=f"by {broker.name}")
    consumer.commit(offsets=[before_last], asynchronous=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": group})
    producer.init_transactions(300)
    producer.begin_transaction()
    place = TopicPartition(RECORDS, 0, found[-1].offset() + 1)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 300)
    producer.commit_transaction(300)
    consumer.close()
    return [message.value().decode() for message in found]


def table(broker: Broker) -> list[tuple[bytes, bytes]]:
    """Every record of the compacted topic, keys and values."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(TABLE, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    while not found or found[-1].error() is None:
        found.append(consumer.poll(300))
        assert found[-1] is not None
    assert found[-1].error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return [(message.key(), message.value()) for message in found[:-1]]


def visit(broker: Broker, name: str) -> None:
    """What is written is read by groups that go on where they were."""
    write(broker, name)
    for group, protocol in GROUPS.items():
        found = go_on(broker, group, protocol, 5)
        assert found == [f"committed by {name} {n}" for n in range(5)]


def compacted(broker: Broker, name: str) -> None:
    """Writes until old values are gone: segments end with the first record after their time."""
    written = len(table(broker))

    def gone() -> bool:
        nonlocal written
        change(broker, name)
        written += KEYS
        return len(table(broker)) < written

    eventually(gone)


def complaints(broker: Broker) -> list[str]:
    """What it calls an error and is about the files.

    Where a machine is slow, Kafka's controller misses its only broker and takes the lead from it
    for a moment, in which a coordinator stops loading; it complains of its own slowness; and, as it
    starts, it may register itself with a controller that is yet to become the active one.
    """
    errors = [line for line in broker.output.read_text().splitlines() if " ERROR " in line]
    excused = ("is no longer the leader", "EventPerformanceMonitor", "CONTROLLER_REGISTRATION")
    return [line for line in errors if not any(words in line for words in excused)]


def test_kafka_goes_on_where_scriba_was_killed_and_back(tmp_path: Path) -> None:
    scriba = ScribaBroker(tmp_path, SETTINGS)
    with running(scriba):
        with Connection(scriba.port) as connection:
            create_topic(connection, RECORDS)
            eager = {"min_cleanable_dirty_ratio": "0.01", "segment_ms": "100"}
            create_topic(connection, TABLE, 1, cleanup_policy="compact", **eager)
        visit(scriba, "scriba")
        compacted(scriba, "last by scriba")
        leave_open(scriba)
        scriba.kill()
    latest = {b"%d" % key: b"last by scriba" for key in range(KEYS)}
    kafka = KafkaInPlace(tmp_path, SETTINGS)
    with running(kafka):
        assert dict(table(kafka)) == latest
        end_open(kafka)
        visit(kafka, "kafka")
        compacted(kafka, "last by kafka")
        leave_open(kafka)
        kafka.kill()
    assert complaints(kafka) == []
    latest = {b"%d" % key: b"last by kafka" for key in range(KEYS)}
    with running(scriba):
        assert dict(table(scriba)) == latest
        end_open(scriba)
        visit(scriba, "scriba again")
    assert "damaged" not in scriba.output.read_text()
