"""Makes `data/kafka-wrote`: a partition directory written by Apache Kafka, and what is in it.

Run by hand: `python -m tests.conformance.files.make_kafka_wrote`. The directory holds every codec,
an idempotent producer, a compacted-looking mix of keys and null values, headers, two committed and
two aborted transactions and several segments. `expected.json` says what a reader at either
isolation level must see: offset, timestamp, key, value and headers of each record.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tools.kafka.brokers import Broker, KafkaBroker, running
from tools.kafka.rawkafka import Connection, create_topic

HERE = Path(__file__).resolve().parent

TARGET = HERE / "data" / "kafka-wrote"
TOPIC = "wrote"
T0 = 1_700_000_000_000
SEGMENT_MS = 3_600_000
SETTINGS = {
    "segment_ms": str(SEGMENT_MS),
    "index_interval_bytes": "200",
    "retention_ms": "-1",
}


def batches(broker: Broker) -> None:
    """Each codec's records lie an hour after the last, so that each begins a segment."""
    for hour, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "compression.type": codec,
                "enable.idempotence": codec in ("none", "zstd"),
                "linger.ms": 50,
                "batch.num.messages": 8,
            }
        )
        for n in range(20):
            producer.produce(
                TOPIC,
                None if n == 7 else f"{codec} {n} ".encode() * 10,
                key=None if n % 5 == 4 else b"key %d" % n,
                headers=[("codec", codec.encode()), ("empty", b""), ("null", None)],
                timestamp=T0 + hour * (SEGMENT_MS + 1) + n,
                partition=0,
            )
        assert producer.flush(300) == 0


def transactions(broker: Broker) -> None:
    for number, commits in enumerate((True, False, True, False)):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": f"maker-{number}",
                "compression.type": "lz4" if number % 2 else "none",
            }
        )
        producer.init_transactions(300)
        producer.begin_transaction()
        for n in range(6):
            value = b"%s %d" % (b"committed" if commits else b"aborted", number)
            producer.produce(TOPIC, value, timestamp=T0 + 6 * SEGMENT_MS + n, partition=0)
        assert producer.flush(300) == 0
        if commits:
            producer.commit_transaction(300)
        else:
            producer.abort_transaction(300)


def seen(broker: Broker, isolation: str) -> list[list[Any]]:
    """Every record that a reader sees, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "maker",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[list[Any]] = []
    while True:
        message = consumer.poll(300)
        assert message is not None
        if message.error() is not None:
            consumer.close()
            return found
        key, value = message.key(), message.value()
        headers: Any = message.headers()
        found.append(
            [
                message.offset(),
                message.timestamp()[1],
                None if key is None else key.decode(),
                None if value is None else value.decode(),
                [[k, None if v is None else v.decode()] for k, v in headers or []],
            ]
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        with running(broker):
            with Connection(broker.port) as connection:
                create_topic(connection, TOPIC, 1, **SETTINGS)
            batches(broker)
            transactions(broker)
            expected = {
                level: seen(broker, level) for level in ("read_uncommitted", "read_committed")
            }
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(broker.log_dir / f"{TOPIC}-0", TARGET / f"{TOPIC}-0")
    rows = {
        level: "[\n  " + ",\n  ".join(map(json.dumps, found)) + "\n ]"
        for level, found in expected.items()
    }
    body = ",\n".join(f' "{level}": {text}' for level, text in rows.items())
    (TARGET / "expected.json").write_text("{\n" + body + "\n}\n")


if __name__ == "__main__":
    main()
