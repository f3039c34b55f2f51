"""Writes the records of the interop matrix with each client; each tells what it wrote."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from scriba.client import SyncProducer
from tests.conformance.interop.model import CODECS, EVERYTHING, LINES, NO_NULL_HEADER, Record
from tests.conformance.kafkajs import kafkajs, message, send
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Tools

Writer = Callable[[Broker, Tools, str, str], Sequence[Record]]


def confluent(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
    for record in EVERYTHING:
        producer.produce(
            topic,
            record.value,
            key=record.key,
            partition=0,
            timestamp=record.timestamp or 0,
            headers=list(record.headers),
            on_delivery=lambda error, _: failures.extend([error] if error else []),
        )
    assert producer.flush(300) == 0
    assert not failures
    return EVERYTHING


def kafka_python(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    chosen = None if codec == "none" else codec
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=chosen)
    sent = [
        producer.send(
            topic,
            record.value,
            key=record.key,
            partition=0,
            timestamp_ms=record.timestamp,
            headers=list(record.headers),
        )
        for record in NO_NULL_HEADER
    ]
    for future in sent:
        future.get(30)
    producer.close()
    return NO_NULL_HEADER


def aiokafka(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    async def write() -> None:
        chosen = None if codec == "none" else codec
        settings = {"bootstrap_servers": cluster.bootstrap, "compression_type": chosen}
        async with AIOKafkaProducer(**settings) as producer:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    partition=0,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in EVERYTHING
            ]
            for future in sent:
                await future

    asyncio.run(write())
    return EVERYTHING


def scriba(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    settings = {"bootstrap.servers": cluster.bootstrap, "compression.type": codec}
    with SyncProducer(settings) as producer:
        sent = [
            producer.send_nowait(
                topic,
                record.value,
                record.key,
                partition=0,
                timestamp=record.timestamp,
                headers=record.headers,
            )
            for record in EVERYTHING
        ]
        for delivery in sent:
            delivery.result()
    return EVERYTHING


def javascript(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    messages = [
        message(record.value, record.key, record.headers, timestamp=record.timestamp)
        for record in NO_NULL_HEADER
    ]
    kafkajs(cluster, send(topic, messages, codec=codec))
    return NO_NULL_HEADER


def kcat(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    """Headers are the same for all records of a run; an empty one is null in a run with -Z."""
    given = [LINES[0], LINES[3], LINES[5]]
    nulls = [LINES[1], LINES[2]]
    headers = [part for name, text in LINES[0].headers for part in ("-H", f"{name}={_text(text)}")]
    for records, options in ((given, headers), (nulls, ["-Z"])):
        lines = "".join(f"{_text(record.key)}|{_text(record.value)}\n" for record in records)
        subprocess.run(
            ["kcat", "-b", cluster.bootstrap, "-P", "-t", topic, "-p", "0", "-K", "|",
             "-z", codec, *options],
            input=lines, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    return [Record(r.key, r.value, LINES[0].headers) for r in given] + nulls


def java(cluster: Broker, tools: Tools, topic: str, codec: str) -> Sequence[Record]:
    """The console producer, which takes a marker for null."""
    lines = [
        "|".join(
            (
                ",".join(f"{name}:{_text(text)}" for name, text in record.headers) or "NULL",
                "NULL" if record.key is None else _text(record.key),
                "NULL" if record.value is None else _text(record.value),
            )
        )
        for record in LINES
    ]
    properties = ["parse.key=true", "parse.headers=true", "null.marker=NULL",
                  "key.separator=|", "headers.delimiter=|"]  # fmt: skip
    told = tools.run(
        "console-producer", "--bootstrap-server", cluster.bootstrap, "--topic", topic,
        "--compression-codec", codec,
        *(part for text in properties for part in ("--reader-property", text)),
        stdin="".join(line + "\n" for line in lines),
    )  # fmt: skip
    told.ok()
    assert "ERROR" not in told.err, told.err
    return LINES


def _text(data: bytes | None) -> str:
    return (data or b"").decode()


WRITERS: Mapping[str, tuple[Writer, tuple[str, ...]]] = {
    "confluent-kafka": (confluent, CODECS),
    "kafka-python": (kafka_python, ("none", "gzip", "lz4", "zstd")),
    "aiokafka": (aiokafka, CODECS),
    "scriba": (scriba, CODECS),
    "kafkajs": (javascript, ("none", "gzip")),
    "kcat": (kcat, CODECS),
    "java": (java, CODECS),
}
"""Each with the codecs that it has as it is installed."""
