"""The rows of three nodes whose replicas move, and which are restarted one after the other.

Both kinds are asked by the same requests (KIP-455), from one client.
"""

import time
from typing import Final

from bench.cluster import fresh, three, topic
from bench.failover import CONFLUENT, OURS, Client, recovered
from bench.rows import Bench, Figures, Metric, Row
from scriba.client import SyncAdmin, TopicPartition
from tools.kafka.clusters import Cluster

DRAINED, RESTARTED = 1_000, 500
ASK_SECONDS: Final = 0.05


def _done(admin: SyncAdmin, cluster: Cluster) -> float:
    """When nothing is under way any more."""
    deadline = time.monotonic() + 600
    while admin.list_partition_reassignments():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cluster.name}: replicas still move")
        time.sleep(ASK_SECONDS)
    return time.monotonic()


def drain(bench: Bench) -> Figures:
    """Node 3 has a replica of each partition, and gives all of them away."""
    count = bench.amount(DRAINED)
    with fresh(bench) as cluster:
        cluster.create("wide", [(1 + n % 2, 3) for n in range(count)])
        with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            plan = {TopicPartition("wide", n): (1 + n % 2, 2 - n % 2) for n in range(count)}
            before, began = cluster.cpu_seconds(), time.monotonic()
            admin.alter_partition_reassignments(plan)
            seconds = _done(admin, cluster) - began
            used = cluster.cpu_seconds() - before
    return {"seconds": seconds, "cpu": used}


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
    with topic(cluster, count) as made, bench.scratch() as folder:
        ours = Client(OURS, cluster, made.name, folder / "ours", count)
        theirs = Client(CONFLUENT, cluster, made.name, folder / "theirs", count)
        member = Client(MEMBER, cluster, made.name, folder / "member", count)
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
        "drain of a broker with 1,000 partitions, nothing written",
        (Metric("seconds", "s", 0.3), Metric("cpu", "CPU-s of all", 0.3)),
        drain,
        warms=False,
        once=True,
    ),
)
"""Rows that start clusters of their own."""
