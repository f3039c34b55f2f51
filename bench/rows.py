"""The rows of the comparison: what each one does to a broker, and what it measures.

A row makes the topic it needs, has the load generator do a fixed amount of work, and deletes the
topic. It is run on both brokers in turn by the same code.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from kafka.protocol.admin import DeleteTopicsRequest

from bench import frames
from bench.frames import EMPTY_FETCH, FETCH_ERROR_AT, PRODUCE_ERROR_AT
from bench.generator import Load
from tools.kafka import rawkafka
from tools.kafka.brokers import Broker
from tools.kafka.clusters import Cluster
from tools.kafka.rawkafka import Batch, Connection

GB = 1_000_000_000
BATCH = 1 << 20
"""Large batches have exactly this size: the largest that fits the default limit of both."""

COLD_BYTES = 4 << 30
RECOVERED = "recovered"


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    goal: float | None = None
    """The largest ratio of Scriba's figure to Kafka's, or the smallest where higher is better."""
    higher_is_better: bool = False
    limit: float | None = None
    """The largest figure of Scriba's, whatever Kafka's is."""


@dataclass
class Bench:
    """One broker under test, the size of the work, and what it keeps from row to row."""

    broker: Broker
    scale: float
    folder: Path
    kept: dict[str, UUID] = field(default_factory=dict)
    spare: Broker | None = None
    """A second node of the same kind, with a life of its own."""
    cluster: Cluster | None = None
    """Three nodes of the same kind, for the rows that need them."""

    def amount(self, full: int) -> int:
        return max(int(full * self.scale), 1)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.frames"

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder that vanishes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)

    @contextlib.contextmanager
    def topic(self, partitions: int = 1) -> Iterator[UUID]:
        """A fresh topic whose files go at once when it is deleted, before they reach the disk."""
        name = f"row-{time.monotonic_ns()}"
        with Connection(self.broker.port, timeout=60) as connection:
            yield rawkafka.create_topic(connection, name, partitions, file_delete_delay_ms="100")
        with Connection(self.broker.port, timeout=60) as connection:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=30_000
            )
            connection.call(request, 6)

    def filled(self, name: str, batch: Batch, count: int, partitions: int = 1) -> UUID:
        """A topic that stays for later rounds, with `count` batches in each partition."""
        if name not in self.kept:
            with Connection(self.broker.port, timeout=60) as connection:
                made = rawkafka.create_topic(connection, name, partitions)
            for partition in range(partitions):
                path = frames.write(self.file(name), [frames.produce(batch, made, partition)])
                load = Load.replay(
                    self.broker, path, requests=count, window=2, error_at=PRODUCE_ERROR_AT
                )
                load.go()
                load.result()
            self.kept[name] = made
        return self.kept[name]


Figures = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    metrics: tuple[Metric, ...]
    run: Callable[[Bench], Figures]
    warms: bool = True
    """Whether it belongs to the warm-up."""
    prepare: Callable[[Bench], Callable[[], None]] | None = None
    """What each broker needs once, before the first run; what it returns waits until it is so."""
    once: bool = False
    """Whether one round is enough: it does a thing many times over by itself."""


# ---- produce ----


def bulk(bench: Bench, batch: Batch, raw: int) -> Figures:
    """One connection, five requests in flight, as a busy Java producer."""
    with bench.topic() as topic:
        path = frames.write(bench.file("bulk"), [frames.produce(batch, topic)])
        count = bench.amount(2 * GB // raw)
        load = Load.replay(bench.broker, path, requests=count, window=5, error_at=PRODUCE_ERROR_AT)
        load.go()
        done = load.result()
    size = count * raw / GB
    return {"cpu": done.cpu_seconds / size, "rate": size * 1000 / done.seconds}


def bulk_1k(bench: Bench) -> Figures:
    return bulk(bench, frames.plain_batch(BATCH, 1000), BATCH)


def bulk_100(bench: Bench) -> Figures:
    return bulk(bench, frames.plain_batch(BATCH, 100), BATCH)


def bulk_lz4(bench: Bench) -> Figures:
    """Gigabytes are those of the records, not of what they were squeezed to."""
    return bulk(bench, frames.lz4_batch(BATCH), BATCH)


def many(bench: Bench, batch: Batch, requests: int) -> Figures:
    """Sixteen connections, each with a partition of its own and one request in flight."""
    with bench.topic(partitions=16) as topic:
        paths = [
            frames.write(bench.file(f"many-{n}"), [frames.produce(batch, topic, n)])
            for n in range(16)
        ]
        load = Load.replay(
            bench.broker,
            *paths,
            connections=16,
            requests=bench.amount(requests),
            error_at=PRODUCE_ERROR_AT,
        )
        load.go()
        done = load.result()
    return {"cpu": done.cpu_us, "rate": done.requests / done.seconds}


def many_16k(bench: Bench) -> Figures:
    return many(bench, frames.plain_batch(16 << 10, 1000), 60_000)


def many_tiny(bench: Bench) -> Figures:
    return many(bench, rawkafka.batch([b"x" * 10]), 100_000)


def idempotent(bench: Bench) -> Figures:
    """One idempotent producer, acks=all, 16 KB batches, five in flight: Java's default."""
    batch = frames.plain_batch(16 << 10, 1000)
    count = bench.amount(20_000)
    with bench.topic() as topic:
        with Connection(bench.broker.port, timeout=60) as connection:
            producer = rawkafka.init_producer_id(connection)
        path = bench.file("idempotent")
        frames.write(path, frames.sequence(batch, topic, producer, count))
        load = Load.replay(bench.broker, path, requests=count, window=5, error_at=PRODUCE_ERROR_AT)
        load.go()
        done = load.result()
        path.unlink()
    return {"cpu": done.cpu_us, "rate": done.requests / done.seconds}


# ---- latency ----


def round_trip(bench: Bench) -> Figures:
    with bench.topic() as topic:
        path = frames.write(
            bench.file("small"), [frames.produce(rawkafka.batch([b"x" * 100]), topic)]
        )
        load = Load.replay(
            bench.broker, path, requests=bench.amount(15_000), error_at=PRODUCE_ERROR_AT
        )
        load.go()
        done = load.result()
    return {"p50": done.p50, "p99": done.p99}


def journey(bench: Bench) -> Figures:
    """A fetch has been parked for a millisecond when the record it waits for is produced."""
    rounds = bench.amount(2_000)
    with bench.topic() as topic:
        record = frames.produce(rawkafka.batch([b"x" * 100]), topic)
        wanted = (frames.fetch(n, topic, wait_ms=30_000) for n in range(rounds))
        load = Load(
            bench.broker,
            *("journey", bench.broker.port, rounds, PRODUCE_ERROR_AT, FETCH_ERROR_AT),
            *(EMPTY_FETCH, 1000),
            frames.write(bench.file("journey-produce"), [record]),
            frames.write(bench.file("journey-fetch"), wanted),
        )
        load.go()
        done = load.result()
    return {"p50": done.p50, "p99": done.p99}


def small_producer(bench: Bench, topic: UUID) -> Load:
    """One record of 100 bytes a request, one in flight, a millisecond between two."""
    frame = frames.produce(rawkafka.batch([b"x" * 100]), topic)
    path = frames.write(bench.file("beside"), [frame])
    return Load.replay(bench.broker, path, pause_us=1000, error_at=PRODUCE_ERROR_AT)


def beside_bulk(bench: Bench, bytes_per_s: int, total: int) -> Figures:
    with bench.topic() as quiet, bench.topic() as busy:
        frame = frames.produce(frames.plain_batch(BATCH, 1000), busy)
        path = frames.write(bench.file("bulk"), [frame])
        heavy = Load.replay(
            bench.broker,
            path,
            requests=bench.amount(total // BATCH),
            window=5,
            bytes_per_s=bytes_per_s,
            error_at=PRODUCE_ERROR_AT,
        )
        small = small_producer(bench, quiet)
        heavy.go()
        small.go()
        work = heavy.result()
        done = small.stop()
    return {"p50": done.p50, "p99": done.p99, "rate": work.sent / work.seconds / 1e6}


def beside_full_speed(bench: Bench) -> Figures:
    return beside_bulk(bench, 0, 3 * GB)


def beside_paced(bench: Bench) -> Figures:
    return beside_bulk(bench, 200_000_000, GB)


def beside_cold_reader(bench: Bench) -> Figures:
    """The reader takes a megabyte a fetch, one in flight, of data that only the disk has."""
    batch = frames.plain_batch(BATCH, 1000)
    count = bench.amount(COLD_BYTES // BATCH)
    name = "cold"
    topic = bench.filled(name, batch, count)
    wanted = (frames.fetch(n * batch.count, topic) for n in range(count))
    path = frames.write(bench.file("cold-fetch"), wanted)
    leave_page_cache(bench.broker.log_dir / f"{name}-0")
    with bench.topic() as quiet:
        reader = Load.replay(
            bench.broker, path, requests=count, least=BATCH, error_at=FETCH_ERROR_AT
        )
        small = small_producer(bench, quiet)
        reader.go()
        small.go()
        work = reader.result()
        done = small.stop()
    return {"p50": done.p50, "p99": done.p99, "rate": work.received / work.seconds / 1e6}


def leave_page_cache(folder: Path) -> None:
    for segment in folder.glob("*.log"):
        with segment.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- fetch ----


def fetch_bulk(bench: Bench) -> Figures:
    """Twelve partitions, a megabyte of each in every answer, all in the page cache."""
    batch, depth, partitions = frames.plain_batch(BATCH, 1000), 32, 12
    topic = bench.filled("fetch-bulk", batch, depth, partitions)
    wanted = (frames.fetch(n * batch.count, topic, partitions) for n in range(depth))
    path = frames.write(bench.file("fetch-bulk"), wanted)
    load = Load.replay(
        bench.broker,
        path,
        requests=bench.amount(320),
        least=partitions * BATCH,
        error_at=FETCH_ERROR_AT,
    )
    load.go()
    done = load.result()
    size = done.received / GB
    return {"cpu": done.cpu_seconds / size, "rate": size * 1000 / done.seconds}


def fetch_16k(bench: Bench) -> Figures:
    size, depth = 16 << 10, 2000
    batch = frames.plain_batch(size, 1000)
    topic = bench.filled("fetch-16k", batch, depth)
    wanted = (frames.fetch(n * batch.count, topic, max_bytes=size) for n in range(depth))
    path = frames.write(bench.file("fetch-16k"), wanted)
    load = Load.replay(
        bench.broker, path, requests=bench.amount(20_000), least=size, error_at=FETCH_ERROR_AT
    )
    load.go()
    done = load.result()
    return {"cpu": done.cpu_us, "p50": done.p50}


def memory_after_load(bench: Bench) -> Figures:
    return {"memory": bench.broker.resident_bytes() / 1e6}


# ---- a life of its own: each run starts a broker ----


def acknowledge_one(node: Broker, topic: str) -> None:
    """Tries until the broker has acknowledged one record, however young it is."""
    deadline = time.monotonic() + 120
    data = rawkafka.batch([b"first"]).encode()
    while True:
        try:
            with Connection(node.port, timeout=5) as connection:
                with contextlib.suppress(ValueError):
                    rawkafka.create_topic(connection, topic)
                while True:
                    answer = rawkafka.produced(connection.call(rawkafka.produce(data, topic), 9))
                    if answer.error_code == 0:
                        return
                    time.sleep(0.001)
        except (OSError, rawkafka.Closed):
            if node.ended() or time.monotonic() > deadline:
                raise RuntimeError(f"{node.name} never acknowledged:\n{node.tail()}") from None
            time.sleep(0.001)


def cold_start(bench: Bench) -> Figures:
    """An empty folder: from the start of the process to the first acknowledged record.

    Kafka's format step, which Scriba has none of, is not counted. Memory is taken when the node
    has been idle for three seconds.
    """
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = type(bench.broker)(Path(folder))
        node.prepare()
        try:
            begun = time.monotonic()
            node.launch()
            acknowledge_one(node, "first")
            seconds = time.monotonic() - begun
            time.sleep(3)
            memory = node.resident_bytes()
            node.stop()
        finally:
            node.kill()
    return {"seconds": seconds, "memory": memory / 1e6}


def prepare_recovery(bench: Bench) -> Callable[[], None]:
    """A node with a gigabyte in one partition, each append flushed, and then killed."""
    node = bench.spare = type(bench.broker)(bench.folder / "recovery")
    node.start()
    batch = frames.plain_batch(BATCH, 1000)
    count = bench.amount(1024)
    with Connection(node.port, timeout=60) as connection:
        topic = rawkafka.create_topic(connection, RECOVERED, flush_messages="1")
    path = frames.write(bench.file("recovery"), [frames.produce(batch, topic)])
    load = Load.replay(node, path, requests=count, window=2, error_at=PRODUCE_ERROR_AT)
    load.go()
    load.result()

    def settle() -> None:
        await_checkpoint(node, count * batch.count)
        node.kill()

    return settle


def await_checkpoint(node: Broker, end: int) -> None:
    """Both brokers write down once a minute how far a log is known to be on disk."""
    checkpoint = node.log_dir / "recovery-point-offset-checkpoint"
    deadline = time.monotonic() + 150
    entry = f"{RECOVERED} 0 {end}"
    while not checkpoint.exists() or entry not in checkpoint.read_text().splitlines():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{node.name} never noted that the log is flushed")
        time.sleep(0.2)


def recovery(bench: Bench) -> Figures:
    """After kill -9: from the start of the process to a record acknowledged by that partition."""
    node = bench.spare
    assert node is not None, "not prepared"
    begun = time.monotonic()
    node.launch()
    try:
        acknowledge_one(node, RECOVERED)
        return {"seconds": time.monotonic() - begun}
    finally:
        node.kill()


CPU_GB = Metric("cpu", "CPU-s/GB", goal=0.5)
CPU_US = Metric("cpu", "CPU us/request", goal=0.5)
MB_S = Metric("rate", "MB/s", higher_is_better=True)
PER_S = Metric("rate", "requests/s", higher_is_better=True)
P50, P99 = Metric("p50", "p50 us"), Metric("p99", "p99 us")
NEIGHBOUR = Metric("rate", "neighbour's MB/s", higher_is_better=True)


def within(metric: Metric, goal: float) -> Metric:
    return replace(metric, goal=goal)


SERVED = (
    Row("bulk-1k", "produce, 1 MB batches of 1 KB records", (CPU_GB, MB_S), bulk_1k),
    Row("bulk-100", "produce, 1 MB batches of 100-byte records", (CPU_GB, MB_S), bulk_100),
    Row("bulk-lz4", "produce, lz4 batches of 1 MB before", (CPU_GB, MB_S), bulk_lz4),
    Row("many-16k", "produce, 16 KB requests, 16 connections", (CPU_US, PER_S), many_16k),
    Row("many-tiny", "produce, one tiny record, 16 connections", (CPU_US, PER_S), many_tiny),
    Row("idempotent", "produce, idempotent, acks=all, 16 KB", (CPU_US, PER_S), idempotent),
    Row("round-trip", "produce round trip, one in flight", (P50, P99), round_trip),
    Row("journey", "produce to consume, parked fetch", (within(P50, 0.5), P99), journey),
    Row(
        "beside-bulk",
        "small producer beside a 1 MB bulk producer at full speed",
        (within(P50, 1.5), within(P99, 1.0), NEIGHBOUR),
        beside_full_speed,
    ),
    Row(
        "beside-paced",
        "small producer beside a bulk producer of 200 MB/s",
        (P50, within(P99, 1.0), NEIGHBOUR),
        beside_paced,
    ),
    Row("fetch-bulk", "fetch, 12 x 1 MB", (within(CPU_GB, 1.0), MB_S), fetch_bulk),
    Row("fetch-16k", "fetch, 16 KB, one in flight", (within(CPU_US, 0.8), P50), fetch_16k),
    Row(
        "beside-cold",
        "small producer beside a reader of 4 GB that left the page cache",
        (P50, within(P99, 1.0), NEIGHBOUR),
        beside_cold_reader,
        warms=False,
    ),
    Row("loaded", "memory after the load", (Metric("memory", "MB"),), memory_after_load, False),
)
"""Rows on brokers that stay up from the warm-up to the last round."""

ALONE = (
    Row(
        "cold-start",
        "cold start to first acknowledged record; idle memory",
        (Metric("seconds", "s", goal=0.1), Metric("memory", "MB", goal=0.2)),
        cold_start,
        warms=False,
    ),
    Row(
        "recovery",
        "restart after kill -9, 1 GB flushed in one partition",
        (Metric("seconds", "s", goal=0.2),),
        recovery,
        warms=False,
        prepare=prepare_recovery,
    ),
)
"""Rows that start brokers of their own, when no other is running."""
