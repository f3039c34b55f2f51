"""Reads a whole partition with each client that can be given one, without a group."""

import asyncio
import io
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from scriba.client import SyncConsumer
from tests.conformance.interop.model import Headers, Seen, seen
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import command

Reader = Callable[[Broker, str, int], list[Seen]]

SECONDS = 300
BETWEEN, END, NULL = "\n|\n", "\n##\n", "(null)"
"""What the console consumer puts between fields, after a record and for null."""


def confluent(cluster: Broker, topic: str, count: int) -> list[Seen]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "none"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    for _ in range(count):
        found.append(consumer.poll(SECONDS))
        assert found[-1] is not None
        assert found[-1].error() is None, found[-1].error()
    consumer.close()
    return [
        seen(m.offset(), m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ()))
        for m in found
    ]


def kafka_python(cluster: Broker, topic: str, count: int) -> list[Seen]:
    settings = {"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(**settings, consumer_timeout_ms=SECONDS * 1000)
    consumer.assign([PythonTopicPartition(topic, 0)])
    found = [record for _, record in zip(range(count), consumer, strict=False)]
    consumer.close()
    return [_plain(record) for record in found]


def aiokafka(cluster: Broker, topic: str, count: int) -> list[Seen]:
    async def read() -> list[Any]:
        settings = {"bootstrap_servers": cluster.bootstrap, "enable_auto_commit": False}
        async with AIOKafkaConsumer(**settings) as consumer:
            part = AIOTopicPartition(topic, 0)
            consumer.assign([part])
            consumer.seek(part, 0)
            async with asyncio.timeout(SECONDS):
                return [await consumer.getone() for _ in range(count)]

    return [_plain(record) for record in asyncio.run(read())]


def scriba(cluster: Broker, topic: str, count: int) -> list[Seen]:
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    with SyncConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(timeout_ms=1000)
    return [_plain(record) for record in found]


def kcat(cluster: Broker, topic: str, count: int) -> list[Seen]:
    """Lengths are printed before the bytes, so that these may be any."""
    shape = "%o %T %K %S %h\\n%k%s\\n"
    told = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-C", "-q", "-t", topic, "-p", "0", "-o", "beginning",
         "-c", str(count), "-f", shape],
        capture_output=True, timeout=300, check=True,
    ).stdout  # fmt: skip
    stream = io.BytesIO(told)
    found = []
    while line := stream.readline():
        offset, timestamp, key_size, size, headers = line.removesuffix(b"\n").split(b" ", 4)
        key, value = _taken(stream, int(key_size)), _taken(stream, int(size))
        assert stream.read(1) == b"\n"
        found.append(seen(int(offset), int(timestamp), key, value, _headers(headers, b"=", b"")))
    return found


def java(cluster: Broker, topic: str, count: int) -> list[Seen]:
    """The console consumer, with separators that no record holds."""
    properties = {
        "print.timestamp": "true",
        "print.offset": "true",
        "print.headers": "true",
        "print.key": "true",
        "key.separator": BETWEEN,
        "line.separator": END,
        "null.literal": NULL,
    }
    options = (p for kv in properties.items() for p in ("--formatter-property", "=".join(kv)))
    told = subprocess.run(
        command(
            "console-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic,
            "--partition", "0", "--offset", "earliest", "--max-messages", str(count),
            "--timeout-ms", str(SECONDS * 1000), *options,
        ),
        capture_output=True, timeout=300, check=True,
    ).stdout  # fmt: skip
    found = []
    for whole in told.split(END.encode())[:-1]:
        timestamp, offset, headers, key, value = whole.split(BETWEEN.encode())
        found.append(
            seen(
                int(offset.removeprefix(b"Offset:")),
                int(timestamp.removeprefix(b"CreateTime:")),
                _unless(key, NULL.encode()),
                _unless(value, NULL.encode()),
                _headers(headers, b":", b"NO_HEADERS"),
            )
        )
    return found


def _plain(record: Any) -> Seen:
    return seen(
        record.offset, record.timestamp, record.key, record.value, tuple(record.headers or ())
    )


def _taken(stream: io.BytesIO, size: int) -> bytes | None:
    return None if size < 0 else stream.read(size)


def _unless(data: bytes, null: bytes) -> bytes | None:
    return None if data == null else data


def _headers(text: bytes, between: bytes, nothing: bytes) -> Headers:
    """Headers as the two programs print them; kcat has its own word for null."""
    if text == nothing:
        return ()
    pairs = (pair.partition(between) for pair in text.split(b","))
    nulls = (NULL.encode(), b"NULL")
    return tuple((name.decode(), None if value in nulls else value) for name, _, value in pairs)


READERS: Mapping[str, Reader] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "scriba": scriba,
    "kcat": kcat,
    "java": java,
}

WITHOUT_SNAPPY = ("kafka-python",)
"""Those which, as they are installed, cannot read it."""
