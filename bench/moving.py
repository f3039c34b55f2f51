"""The rows of three nodes whose replicas move, and which are restarted one after the other.

Both kinds are asked by the same requests (KIP-455, dynamic settings), from one client. Where a node
is drained or a fourth one joins, ours is asked by its command, `scriba cluster drain` or `add`: the
start of a process, the plan and the waves are in the time. Kafka has no such command and gets all
moves in one request, planned before the time begins, here or by `kafka-reassign-partitions
--generate`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import frames
from bench.cluster import fresh, spread, three, topic
from bench.failover import CONFLUENT, OURS, Client, recovered
from bench.frames import PRODUCE_ERROR_AT
from bench.generator import Load
from bench.rows import BATCH, Bench, Figures, Metric, Row
from scriba.client import ConfigOp, ConfigResource, OffsetSpec, SyncAdmin, TopicPartition
from tools.kafka import clusters, kafka_jars, rawkafka
from tools.kafka.clusters import Cluster, KafkaCluster

DRAINED, RESTARTED = 1_000, 500
ASK_SECONDS, MOVE_SECONDS = 0.05, 600.0

RATE: Final = 4_000_000
THROTTLED_BATCH, THROTTLED = 100_000, 1_600
"""Forty seconds of that rate."""

GROWN_BYTES, GROWN_PARTITIONS = 20_000_000_000 // 3, 24
"""Of one replica of everything: three nodes hold 20 GB."""

BEFORE_SECONDS: Final = 10.0


def _done(admin: SyncAdmin, cluster: Cluster) -> float:
    """When nothing is under way any more."""
    deadline = time.monotonic() + MOVE_SECONDS
    while admin.list_partition_reassignments():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cluster.name}: replicas still move")
        time.sleep(ASK_SECONDS)
    return time.monotonic()


def command(cluster: Cluster, *words: str) -> None:
    """Runs `scriba cluster ...` to its end."""
    where = ("--bootstrap", cluster.bootstrap, "--timeout", "60")
    done = subprocess.run(
        [sys.executable, "-m", "scriba", "cluster", *words, *where],
        capture_output=True,
        text=True,
        timeout=MOVE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{cluster.name}: {done.stderr}")


def drain(bench: Bench) -> Figures:
    """Node 3 has a replica of each partition, and gives all of them away."""
    count = bench.amount(DRAINED)
    with fresh(bench) as cluster:
        cluster.create("wide", [(1 + n % 2, 3) for n in range(count)])
        with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            plan = {TopicPartition("wide", n): (1 + n % 2, 2 - n % 2) for n in range(count)}
            before, began = cluster.cpu_seconds(), time.monotonic()
            if isinstance(cluster, KafkaCluster):
                admin.alter_partition_reassignments(plan)
            else:
                command(cluster, "drain", "3")
            seconds = _done(admin, cluster) - began
            used = cluster.cpu_seconds() - before
        _emptied(cluster, "wide", 3)
    return {"seconds": seconds, "cpu": used}


def _emptied(cluster: Cluster, name: str, node: int) -> None:
    """Returns when the broker that is asked has heard that all of a topic is off a node."""
    deadline = time.monotonic() + 60
    while any(node in each.replica_nodes for each in cluster.partitions(name).values()):
        if time.monotonic() > deadline:
            raise ValueError(f"{cluster.name}: node {node} still has replicas of {name}")
        time.sleep(ASK_SECONDS)


# ---- at a rate that was asked for ----


def fill(bench: Bench, cluster: Cluster, name: str, batch: int, count: int, acks: int) -> None:
    """So many batches, each partition as many as the others."""
    with cluster.connect() as connection:
        made = clusters.topic_id(connection, name)
    leaders = {n: each.leader_id for n, each in cluster.partitions(name).items()}
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        # Kafka's brokers tell of a leader before it leads; asked so, each has begun to.
        admin.list_offsets({(name, n): OffsetSpec.LATEST for n in leaders}, timeout_ms=60_000)
    data = frames.plain_batch(batch, 1000)
    load = Load.replay(
        cluster,
        *(
            frames.write(bench.file(f"{name}-{n}"), [frames.produce(data, made, n, acks)])
            for n in leaders
        ),
        connections=len(leaders),
        requests=count,
        error_at=PRODUCE_ERROR_AT,
        ports=[cluster.nodes[leader].port for leader in leaders.values()],
    )
    load.go()
    load.result()


def small_producer(bench: Bench, cluster: Cluster, name: str, requests: int = 0) -> Load:
    """One record of 100 bytes that all replicas have, one in flight, a millisecond between two."""
    with cluster.connect() as connection:
        made = clusters.topic_id(connection, name)
    frame = frames.produce(rawkafka.batch([b"x" * 100]), made, acks=-1)
    leader = cluster.partitions(name)[0].leader_id
    load = Load.replay(
        cluster,
        frames.write(bench.file(name), [frame]),
        requests=requests,
        pause_us=1000,
        error_at=PRODUCE_ERROR_AT,
        ports=[cluster.nodes[leader].port],
    )
    load.go()
    return load


def hold_to(admin: SyncAdmin, nodes: Sequence[int], rate: int) -> None:
    """What `--throttle` of either tool sets for a move of moved-0 from node 1 to node 2."""
    rates = [
        (f"{who}.replication.throttled.rate", ConfigOp.SET, str(rate))
        for who in ("leader", "follower")
    ]
    held = [
        ("leader.replication.throttled.replicas", ConfigOp.SET, "0:1"),
        ("follower.replication.throttled.replicas", ConfigOp.SET, "0:2"),
    ]
    changes = {ConfigResource.broker(n): rates for n in nodes}
    admin.incremental_alter_configs({**changes, ConfigResource.topic("moved"): held})


def throttle(bench: Bench) -> Figures:
    """One partition goes from node 1 to node 2: how far the rate is from what was asked for, and
    what a producer feels whose partition node 1 leads and node 2 follows."""
    batches = bench.amount(THROTTLED)
    with fresh(bench) as cluster:
        cluster.create("moved", [(1,)])
        cluster.create("beside", [(1, 2, 3)])
        fill(bench, cluster, "moved", THROTTLED_BATCH, batches, acks=1)
        before = small_producer(bench, cluster, "beside", bench.amount(5_000)).result()
        with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            hold_to(admin, list(cluster.nodes), RATE)
            beside = small_producer(bench, cluster, "beside")
            began = time.monotonic()
            admin.alter_partition_reassignments({TopicPartition("moved", 0): (2,)})
            seconds = _done(admin, cluster) - began
        done = beside.stop()
    measured = batches * THROTTLED_BATCH / seconds
    return {
        "rate": measured / 1e6,
        "off": abs(measured - RATE) / RATE * 100,
        "p99": done.p99,
        "before": before.p99,
    }


# ---- a fourth node ----

WRITER = """
import os, sys, time
from confluent_kafka import Producer

bootstrap, topic, partitions, stop = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4]
waits = []
producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

def send(number):
    began = time.monotonic()
    def told(error, message):
        assert error is None, error
        waits.append(time.monotonic() - began)
    producer.produce(topic, b"x" * 10_000, partition=number % partitions, on_delivery=told)

for number in range(partitions):
    send(number)
producer.flush()
waits.clear()
print("ready", flush=True)
due = time.monotonic()
while not os.path.exists(stop) or not waits:
    number, due = number + 1, due + 0.005
    send(number)
    while (left := due - time.monotonic()) > 0:
        producer.poll(left)
assert producer.flush(120) == 0
waits.sort()
print(waits[-1], waits[int(len(waits) * 0.99)], flush=True)
"""
"""Two megabytes a second; tells the longest wait of a record, and the 99th of a hundred."""


def proposed(cluster: Cluster, name: str, folder: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """What Kafka's own tool would have a topic's replicas be over all nodes."""
    asked = folder / "topics.json"
    asked.write_text(json.dumps({"version": 1, "topics": [{"topic": name}]}))
    words = ("--generate", "--topics-to-move-json-file", str(asked))
    brokers = ",".join(map(str, cluster.nodes))
    where = ("--bootstrap-server", cluster.bootstrap, "--broker-list", brokers)
    said = kafka_jars.tool("reassign-partitions", *where, *words).ok()
    plan = json.loads(said.split("Proposed partition reassignment configuration")[1])
    return {
        TopicPartition(each["topic"], each["partition"]): tuple(each["replicas"])
        for each in plan["partitions"]
    }


def even_out(cluster: Cluster, name: str, folder: Path, joined: int) -> float:
    """Gives the new node its share; seconds until nothing moves any more."""
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        if isinstance(cluster, KafkaCluster):
            plan = proposed(cluster, name, folder)
            began = time.monotonic()
            admin.alter_partition_reassignments(plan)
        else:
            began = time.monotonic()
            command(cluster, "add", str(joined))
        return _done(admin, cluster) - began


def grow(bench: Bench) -> Figures:
    """A fourth node joins three that hold data and are written to, and takes its share."""
    count = bench.amount(GROWN_BYTES // BATCH)
    name = "grown"
    with fresh(bench) as cluster, bench.scratch() as folder:
        cluster.create(name, spread(GROWN_PARTITIONS))
        fill(bench, cluster, name, BATCH, count, acks=-1)
        with Client(WRITER, cluster, name, folder / "calm", GROWN_PARTITIONS) as calm:
            time.sleep(BEFORE_SECONDS * min(bench.scale * 4, 1))
            _, before = calm.told()
        joined = cluster.grow()
        with Client(WRITER, cluster, name, folder / "writer", GROWN_PARTITIONS) as writer:
            seconds = even_out(cluster, name, folder, joined)
            longest, during = writer.told()
        share = sum(joined in each.replica_nodes for each in cluster.partitions(name).values())
        if share < GROWN_PARTITIONS * 3 // 4 - 1:
            raise ValueError(f"{cluster.name}: node {joined} has {share} replicas, not its share")
    return {"seconds": seconds, "p99": during / before, "longest": longest * 1000}


# ---- one after the other is restarted ----

MEMBER = """
import os, sys, time
from confluent_kafka import Consumer

bootstrap, topic, partitions, stop = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4]
settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
consumer = Consumer(settings)
consumer.subscribe([topic])
while True:
    found = consumer.poll(1.0)
    if found is not None and found.error() is None:
        break
longest, last = 0.0, time.monotonic()
print("ready", flush=True)
while not os.path.exists(stop):
    found = consumer.poll(0.05)
    if found is not None and found.error() is None:
        now = time.monotonic()
        longest, last = max(longest, now - last), now
consumer.close()
print(max(longest, time.monotonic() - last), flush=True)
"""


def rolling_restart(bench: Bench) -> Figures:
    """Each node in turn is stopped in good order and started again, the next one when all of its
    replicas are in sync: how long a record waited, and a member of a group for the next one."""
    cluster, count = three(bench), bench.amount(RESTARTED)
    with (
        topic(cluster, count) as made,
        bench.scratch() as folder,
        Client(OURS, cluster, made.name, folder / "ours", count) as ours,
        Client(CONFLUENT, cluster, made.name, folder / "theirs", count) as theirs,
        Client(MEMBER, cluster, made.name, folder / "member", count) as member,
    ):
        for number in list(cluster.nodes):
            cluster.nodes[number].stop()
            recovered(cluster, made.name, number)
        paused = member.longest()
        return {
            "ours": ours.longest() * 1000,
            "confluent": theirs.longest() * 1000,
            "member": paused * 1000,
        }


RESTARTING = (
    Row(
        "cluster-rolling",
        "rolling restart of three nodes, 500 partitions: longest pause",
        (
            Metric("ours", "ms, our producer", limit=300),
            Metric("confluent", "ms, confluent-kafka", limit=300),
            Metric("member", "ms, member of a group", limit=300),
        ),
        rolling_restart,
        warms=False,
        once=True,
    ),
)
"""Rows on clusters that stay up."""

MOVING = (
    Row(
        "cluster-drain",
        "drain of a broker with 1,000 empty partitions: `scriba cluster drain`, Kafka one request",
        (Metric("seconds", "s", 0.3), Metric("cpu", "CPU-s of all", 0.3)),
        drain,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-throttle",
        "a partition of 160 MB moves at 4 MB/s, beside a small producer with acks=all",
        (
            Metric("off", "% off the rate asked for", limit=10),
            Metric("rate", "MB/s"),
            Metric("p99", "us p99 of the producer"),
            Metric("before", "us p99 before the move"),
        ),
        throttle,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-grow",
        "from three nodes that hold 20 GB to four, while 2 MB/s are written",
        (
            Metric("seconds", "s until nothing moves", 0.7),
            Metric("p99", "times the writer's p99 before", limit=1.5),
            Metric("longest", "ms a record waited at most"),
        ),
        grow,
        warms=False,
        once=True,
    ),
)
"""Rows that start clusters of their own."""
