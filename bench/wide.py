"""The rows of requests over several partitions, which is what most clients send.

Java's and Go's producers put the batches of all partitions of a broker into one request, consumers
fetch and commit all of theirs at once. Each connection has a client id of its own, no two alike.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.metadata import MetadataRequest

from bench import frames
from bench.frames import FETCH_ERROR_AT, FETCH_VERSION, PRODUCE_ERROR_AT, PRODUCE_VERSION
from bench.generator import Load, Target
from bench.rows import Bench, Figures, Metric, Row
from tools.kafka import kafka_jars, rawkafka
from tools.kafka.rawkafka import Batch, Connection

CONNECTIONS = 16
GOAL = 0.6
CPU_US = Metric("cpu", "CPU us/request", goal=GOAL)
CPU_S = Metric("cpu", "CPU us/1,000 records", goal=GOAL)
PER_S = Metric("rate", "requests/s", higher_is_better=True)
RECORDS_S = Metric("rate", "records/s", higher_is_better=True)

METADATA_VERSION, COMMIT_VERSION = 12, 8
METADATA_TOPICS = 1000


def client_id(number: int) -> str:
    """Unlike each other in length, so that no two connections send the same bytes."""
    return f"client-{'x' * (number % 7)}-{number}"


def replayed(
    bench: Bench,
    name: str,
    requests: Iterable[bytes],
    count: int,
    *,
    error_at: int,
    least: int = 0,
) -> Figures:
    """A connection for each of the frames, one request in flight on each."""
    paths = [
        frames.write(bench.file(f"{name}-{number}"), [frame])
        for number, frame in enumerate(requests)
    ]
    load = Load.replay(
        bench.broker,
        *paths,
        connections=len(paths),
        requests=bench.amount(count),
        error_at=error_at,
        least=least,
    )
    load.go()
    done = load.result()
    return {"cpu": done.cpu_us, "rate": done.requests / done.seconds, "p50": done.p50}


# ---- requests as clients send them ----


def produce_wide(bench: Bench, batch: Batch, partitions: int, count: int) -> Figures:
    data = batch.encode()
    with bench.topic(partitions=partitions) as topic:
        requests = (
            rawkafka.encode(
                rawkafka.produce_wide(data, topic, range(partitions), acks=1),
                PRODUCE_VERSION,
                client_id=client_id(number),
            )
            for number in range(CONNECTIONS)
        )
        return replayed(bench, "wide", requests, count, error_at=PRODUCE_ERROR_AT)


def produce_8_tiny(bench: Bench) -> Figures:
    return produce_wide(bench, rawkafka.batch([b"x" * 10]), 8, 40_000)


def produce_8_16k(bench: Bench) -> Figures:
    return produce_wide(bench, frames.plain_batch(16 << 10, 1000), 8, 12_000)


def fetch_wide(
    bench: Bench, name: str, batch: Batch, partitions: int, news: int, count: int
) -> Figures:
    """Every partition is asked for, and `news` of them have a batch for the consumer."""
    depth = 4
    topic = bench.filled(name, batch, depth, partitions)
    size = len(batch.encode())

    def wanted(number: int) -> bytes:
        begin = number % depth * batch.count
        offsets = {p: begin if p < news else depth * batch.count for p in range(partitions)}
        request = rawkafka.fetch(
            offsets, partitions=range(partitions), topic_id=topic, max_bytes=size
        )
        return rawkafka.encode(request, FETCH_VERSION, client_id=client_id(number))

    requests = map(wanted, range(CONNECTIONS))
    return replayed(bench, name, requests, count, error_at=FETCH_ERROR_AT, least=news * size)


def fetch_8(bench: Bench) -> Figures:
    return fetch_wide(bench, "fetch-8", frames.plain_batch(1 << 10, 100), 8, 1, 40_000)


def fetch_48(bench: Bench) -> Figures:
    return fetch_wide(bench, "fetch-48", frames.plain_batch(1 << 10, 100), 48, 48, 8_000)


def commit_50(bench: Bench) -> Figures:
    """Groups without members commit the same fifty partitions again and again."""
    topic, wide = "committed-wide", 50
    with contextlib.suppress(ValueError), Connection(bench.broker.port, timeout=60) as connection:
        rawkafka.create_topic(connection, topic, wide)
    entry = OffsetCommitRequest.OffsetCommitRequestTopic
    requests = []
    for number in range(CONNECTIONS):
        parts = [
            entry.OffsetCommitRequestPartition(
                partition_index=p, committed_offset=1000 + p, committed_metadata=""
            )
            for p in range(wide)
        ]
        request = OffsetCommitRequest(
            group_id=f"commits-wide-{number}",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[entry(name=topic, partitions=parts)],
        )
        await_coordinator(bench, request)
        requests.append(rawkafka.encode(request, COMMIT_VERSION, client_id=client_id(number)))
    # Correlation id, tags, throttle, topic count, name, partition count, index.
    error_at = 4 + 1 + 4 + 1 + 1 + len(topic) + 1 + 4
    return replayed(bench, "commit-50", requests, 12_000, error_at=error_at)


def await_coordinator(bench: Bench, request: rawkafka.Message) -> None:
    """Commits until a coordinator is there for the group."""
    from kafka.protocol.metadata import FindCoordinatorRequest

    deadline = time.monotonic() + 120
    with Connection(bench.broker.port, timeout=60) as connection:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[request.group_id])
        connection.call(find, 4)
        while True:
            answer = connection.call(request, COMMIT_VERSION)
            if answer.topics[0].partitions[0].error_code == 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{bench.broker.name}: {answer}")
            time.sleep(0.05)
            connection.call(find, 4)


def metadata_1000(bench: Bench) -> Figures:
    names = [f"metadata-{number:04}" for number in range(METADATA_TOPICS)]
    if "metadata-1000" not in bench.kept:
        with Connection(bench.broker.port, timeout=120) as connection:
            made = connection.call(
                CreateTopicsRequest(
                    topics=[
                        CreateTopicsRequest.CreatableTopic(
                            name=name, num_partitions=1, replication_factor=1
                        )
                        for name in names
                    ],
                    timeout_ms=120_000,
                ),
                7,
            )
            assert not any(topic.error_code for topic in made.topics), made
        bench.kept["metadata-1000"] = UUID(int=0)
    requests = (
        rawkafka.encode(
            MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            ),
            METADATA_VERSION,
            client_id=client_id(number),
        )
        for number in range(CONNECTIONS)
    )
    least = METADATA_TOPICS * len(names[0])
    return replayed(bench, "metadata-1000", requests, 1_500, error_at=-1, least=least)


# ---- clients of others, at their defaults ----


@contextlib.contextmanager
def named_topic(bench: Bench, partitions: int) -> Iterator[str]:
    name = f"clients-{time.monotonic_ns()}"
    with Connection(bench.broker.port, timeout=60) as connection:
        rawkafka.create_topic(connection, name, partitions)
    yield name


def java_producer(bench: Bench, partitions: int, records: int, rate: int) -> Figures:
    with named_topic(bench, partitions) as topic:
        return java_produces(bench.broker, topic, bench.amount(records), rate)


def java_produces(target: Target, topic: str, count: int, rate: int = -1) -> Figures:
    """Java's perf producer with its defaults and records of 1,000 bytes, CPU of the broker."""
    before, began = target.cpu_seconds(), time.monotonic()
    done = kafka_jars.tool(
        "producer-perf-test",
        *("--topic", topic, "--num-records", str(count), "--record-size", "1000"),
        *("--throughput", str(rate)),
        *("--producer-props", f"bootstrap.servers={target.bootstrap}"),
    )
    done.ok()
    seconds = time.monotonic() - began
    used = target.cpu_seconds() - before
    return {"cpu": used * 1e9 / count, "rate": count / seconds}


CONFLUENT = """
import sys
from confluent_kafka import Consumer, Producer

work, bootstrap, topic, count = *sys.argv[1:4], int(sys.argv[4])
if work == "produce":
    producer = Producer({"bootstrap.servers": bootstrap})
    value = b"x" * 100
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, b"%d" % number)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(120) == 0
else:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
    })
    consumer.subscribe([topic])
    while count > 0:
        count -= sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    consumer.close()
"""


def confluent(bench: Bench, partitions: int = 12) -> Figures:
    with named_topic(bench, partitions) as topic:
        return confluent_both_ways(bench.broker, topic, bench.amount(1_000_000))


def confluent_both_ways(target: Target, topic: str, count: int) -> Figures:
    """confluent-kafka at its defaults, records of 100 bytes: CPU of the broker for each way."""
    figures: dict[str, float] = {}
    for work in ("produce", "consume"):
        before, began = target.cpu_seconds(), time.monotonic()
        command = [sys.executable, "-c", CONFLUENT, work, target.bootstrap, topic]
        subprocess.run([*command, str(count)], check=True, timeout=600)
        used = target.cpu_seconds() - before
        figures[work] = used * 1e9 / count
        figures[f"{work} rate"] = count / (time.monotonic() - began)
    return figures


WIDE = (
    Row(
        "wide-tiny",
        "produce, tiny batches for 8 partitions a request, 16 connections",
        (CPU_US, PER_S),
        produce_8_tiny,
    ),
    Row(
        "wide-16k",
        "produce, 16 KB batches for 8 partitions a request, 16 connections",
        (CPU_US, PER_S),
        produce_8_16k,
    ),
    Row("fetch-8", "fetch over 8 partitions, news in one", (CPU_US, PER_S), fetch_8),
    Row("fetch-48", "fetch over 48 partitions, news in all", (CPU_US, PER_S), fetch_48),
    Row("commit-50", "offset commits of 50 partitions", (CPU_US, PER_S), commit_50),
    Row("metadata-1000", "metadata of 1,000 topics by name", (CPU_US, PER_S), metadata_1000),
    Row(
        "java-12",
        "Java's producer-perf-test, 12 partitions, defaults, full speed",
        (CPU_S, RECORDS_S),
        partial(java_producer, partitions=12, records=2_000_000, rate=-1),
        warms=False,
    ),
    Row(
        "java-48",
        "the same, 48 partitions, 100,000 records a second",
        (CPU_S, RECORDS_S),
        partial(java_producer, partitions=48, records=1_000_000, rate=100_000),
        warms=False,
    ),
    Row(
        "confluent-12",
        "confluent-kafka, 12 partitions, defaults",
        (
            Metric("produce", "CPU us/1,000 records produced", goal=GOAL),
            Metric("consume", "CPU us/1,000 records consumed", goal=GOAL),
        ),
        confluent,
        warms=False,
    ),
)
"""Rows on brokers that stay up."""
