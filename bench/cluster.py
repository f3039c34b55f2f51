"""The rows of three nodes that work: every topic has three replicas, and two must be in sync.

Frames go to the node that leads their partition, as clients send them. CPU is that of all nodes,
so that what followers spend counts as much as what the leader does.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from bench import frames
from bench.frames import EMPTY_FETCH, FETCH_ERROR_AT, PRODUCE_ERROR_AT
from bench.generator import Load
from bench.rows import BATCH, GB, Bench, Figures, Metric, Row
from bench.wide import CPU_S, RECORDS_S, confluent_both_ways, java_produces
from scriba.client import Producer
from tools.kafka import clusters, rawkafka
from tools.kafka.clusters import Cluster

NODES = (1, 2, 3)


@dataclass(frozen=True)
class Topic:
    name: str
    id: UUID
    ports: list[int]
    """Of the leader of each partition."""


def three(bench: Bench) -> Cluster:
    assert bench.cluster is not None, "no cluster was started"
    return bench.cluster


def spread(partitions: int) -> list[list[int]]:
    """Replicas of so many partitions, the leaders in turn."""
    return [[NODES[(n + step) % 3] for step in range(3)] for n in range(partitions)]


@contextlib.contextmanager
def topic(cluster: Cluster, partitions: int = 1) -> Iterator[Topic]:
    """A fresh topic whose files go at once when it is deleted, before they reach the disk."""
    name = f"row-{time.monotonic_ns()}"
    cluster.create(name, spread(partitions), file_delete_delay_ms="100")
    leaders = cluster.partitions(name)
    with cluster.connect() as connection:
        made = clusters.topic_id(connection, name)
    yield Topic(name, made, [cluster.nodes[leaders[n].leader_id].port for n in range(partitions)])
    cluster.delete(name)


def bulk(bench: Bench) -> Figures:
    """One connection, five requests in flight."""
    cluster, count = three(bench), bench.amount(GB // BATCH)
    with topic(cluster) as made:
        frame = frames.produce(frames.plain_batch(BATCH, 1000), made.id, acks=-1)
        load = Load.replay(
            cluster,
            frames.write(bench.file("bulk"), [frame]),
            requests=count,
            window=5,
            error_at=PRODUCE_ERROR_AT,
            ports=made.ports,
        )
        load.go()
        done = load.result()
    size = count * BATCH / GB
    return {"cpu": done.cpu_seconds / size, "rate": size * 1000 / done.seconds}


def idempotent(bench: Bench) -> Figures:
    """Sixteen idempotent producers, each with a partition of its own and one request in flight."""
    cluster, connections = three(bench), 16
    batch = frames.plain_batch(16 << 10, 1000)
    each = bench.amount(30_000) // connections + 1
    with topic(cluster, connections) as made:
        paths = []
        for number in range(connections):
            with cluster.connect() as connection:
                producer = rawkafka.init_producer_id(connection)
            path = bench.file(f"idempotent-{number}")
            sent = frames.sequence(batch, made.id, producer, each, number)
            paths.append(frames.write(path, sent))
        load = Load.replay(
            cluster,
            *paths,
            connections=connections,
            once=True,
            error_at=PRODUCE_ERROR_AT,
            ports=made.ports,
        )
        load.go()
        done = load.result()
        for path in paths:
            path.unlink()
    rate = done.requests / done.seconds
    return {"cpu": done.cpu_us, "p50": done.p50, "p99": done.p99, "rate": rate}


def java(bench: Bench) -> Figures:
    cluster = three(bench)
    with topic(cluster, 12) as made:
        return java_produces(cluster, made.name, bench.amount(1_000_000))


def confluent(bench: Bench) -> Figures:
    cluster = three(bench)
    with topic(cluster, 12) as made:
        return confluent_both_ways(cluster, made.name, bench.amount(1_000_000))


def small(bench: Bench) -> Figures:
    """One record of 100 bytes, acks=all, one in flight."""
    cluster = three(bench)
    with topic(cluster) as made:
        frame = frames.produce(rawkafka.batch([b"x" * 100]), made.id, acks=-1)
        load = Load.replay(
            cluster,
            frames.write(bench.file("small"), [frame]),
            requests=bench.amount(5_000),
            error_at=PRODUCE_ERROR_AT,
            ports=made.ports,
        )
        load.go()
        done = load.result()
    return {"p50": done.p50, "p99": done.p99, "cpu": done.cpu_us}


def journey(bench: Bench) -> Figures:
    """A fetch has been parked for a millisecond when the record it waits for is produced."""
    cluster, rounds = three(bench), bench.amount(2_000)
    with topic(cluster) as made:
        record = frames.produce(rawkafka.batch([b"x" * 100]), made.id, acks=-1)
        wanted = (frames.fetch(n, made.id, wait_ms=30_000) for n in range(rounds))
        load = Load(
            cluster,
            *("journey", made.ports[0], rounds, PRODUCE_ERROR_AT, FETCH_ERROR_AT),
            *(EMPTY_FETCH, 1000),
            frames.write(bench.file("journey-produce"), [record]),
            frames.write(bench.file("journey-fetch"), wanted),
        )
        load.go()
        done = load.result()
    return {"p50": done.p50, "p99": done.p99}


def transactions(bench: Bench) -> Figures:
    """A hundred records in partitions of three leaders; latency is that of the commit alone."""
    cluster, count, warm = three(bench), bench.amount(600), 20

    async def work(name: str) -> Figures:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, transactional_id=name, linger_ms=0
        ) as producer:
            took: list[float] = []
            for number in range(count + warm):
                if number == warm:
                    before = cluster.cpu_seconds()
                    took.clear()
                await producer.begin_transaction()
                for n in range(100):
                    await producer.enqueue(name, b"x" * 100, partition=n % 3)
                ended = time.monotonic()
                await producer.commit_transaction()
                took.append((time.monotonic() - ended) * 1e6)
            cpu = cluster.cpu_seconds() - before
        took.sort()
        p99 = took[int(len(took) * 0.99)]
        return {"p50": statistics.median(took), "p99": p99, "cpu": cpu / count * 1e6}

    with topic(cluster, 3) as made:
        return asyncio.run(work(made.name))


# ---- nobody writes ----

IDLE_SECONDS, SETTLE_SECONDS = 20.0, 10.0


def idle(bench: Bench) -> Figures:
    """Two thousand partitions, three replicas each, on nodes of their own."""
    count = bench.amount(2_000)
    with fresh(bench) as cluster:
        cluster.create("wide", spread(count))
        time.sleep(SETTLE_SECONDS)
        before = cluster.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        used = cluster.cpu_seconds() - before
    return {"idle": used / IDLE_SECONDS * 100}


@contextlib.contextmanager
def fresh(
    bench: Bench, ours: Mapping[str, str] | None = None, both: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Three nodes with empty folders, which are removed with them; with settings that both kinds
    know, and some of our own."""
    kind = type(three(bench))
    settings = {**(both or {}), **((ours or {}) if kind is clusters.ScribaCluster else {})}
    with (
        bench.scratch() as folder,
        clusters.running(kind(folder, settings=settings)) as cluster,
    ):
        yield cluster


P50, P99 = Metric("p50", "p50 us", 0.6), Metric("p99", "p99 us")
CPU_US = Metric("cpu", "CPU us/request", 0.6)

WORKING = (
    Row(
        "cluster-bulk",
        "three nodes: produce, acks=all, 1 MB batches",
        (
            Metric("cpu", "CPU-s/GB", 0.5),
            Metric("rate", "MB/s", 1.5, higher_is_better=True),
        ),
        bulk,
    ),
    Row(
        "cluster-16k",
        "three nodes: idempotent, acks=all, 16 KB, 16 connections",
        (CPU_US, P50, Metric("p99", "p99 us", 0.6)),
        idempotent,
    ),
    Row(
        "cluster-java",
        "three nodes: Java's producer-perf-test, 12 partitions, defaults",
        (CPU_S, RECORDS_S),
        java,
        warms=False,
    ),
    Row(
        "cluster-confluent",
        "three nodes: confluent-kafka, 12 partitions, defaults",
        (
            Metric("produce", "CPU us/1,000 records produced", 0.6),
            Metric("consume", "CPU us/1,000 records consumed", 0.6),
        ),
        confluent,
        warms=False,
    ),
    Row(
        "cluster-small",
        "three nodes: produce round trip, acks=all, one in flight",
        (Metric("p50", "p50 us", 0.7), P99, Metric("cpu", "CPU us/request")),
        small,
    ),
    Row("cluster-journey", "three nodes: produce to consume, parked fetch", (P50, P99), journey),
    Row(
        "cluster-txn",
        "three nodes: transactions of 100 records over three leaders, commit",
        (P50, P99, Metric("cpu", "CPU us/transaction")),
        transactions,
    ),
)
"""Rows on clusters that stay up from the warm-up to the last round."""

IDLE = (
    Row(
        "cluster-idle",
        "three nodes: 2,000 partitions and nobody who writes",
        (Metric("idle", "% CPU", 0.1),),
        idle,
        warms=False,
        once=True,
    ),
)
