"""The rows of nodes that are apart: in racks of their own, behind a long way, or cut off.

Observers, and leaders that give way before their session ends, are Scriba's alone. The way between
two nodes leads through this process (`tools.kafka.links`), which holds back what is said; the nodes
that are near each other speak directly.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

from bench import frames
from bench.cluster import fresh, spread, three
from bench.failover import ASK_SECONDS, PAUSES, SESSION_SECONDS, STALL_MS
from bench.moving import fill, small_producer
from bench.rows import BATCH, Bench, Figures, Metric, Row
from scriba.client import SyncAdmin
from scriba.settings.keys.node import RACK_AWARE_SELECTOR
from scriba.settings.placement import PLACEMENT
from tools.kafka import clusters, rawkafka
from tools.kafka.brokers import HOST, PATIENCE, free_port
from tools.kafka.clusters import FACTORS, KafkaCluster, Node, ScribaCluster
from tools.kafka.links import Distance, Links
from tools.kafka.rawkafka import Closed, Connection
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

# ---- reading nearby ----

RACKS: Final = {"broker.rack": "zone-{node}", "replica.selector.class": RACK_AWARE_SELECTOR}
READ_BYTES, READ_PARTITIONS = 200_000_000, 12
NEAR: Final = 2
"""The node in whose rack the consumer is."""

READER = """
import json, sys, time
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

bootstrap, topic, partitions, records, rack = sys.argv[1:6]
received = {}

def told(text):
    for broker in json.loads(text)["brokers"].values():
        received[broker["nodeid"]] = broker["rxbytes"]

settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
settings |= {"statistics.interval.ms": 100, "stats_cb": told, "client.rack": rack}
consumer = Consumer(settings)
consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(int(partitions))])
count = 0
while count < int(records):
    found = consumer.consume(1000, 1)
    assert all(each.error() is None for each in found), [each.error() for each in found]
    count += len(found)
received.clear()
while not received:
    consumer.poll(0.05)
print(json.dumps(received), flush=True)
consumer.close()
"""


def crossed(bootstrap: str, name: str, records: int, rack: str) -> float:
    """The share, in percent, of what a consumer received that came from other nodes than NEAR."""
    words = (bootstrap, name, str(READ_PARTITIONS), str(records), rack)
    done = subprocess.run(
        [sys.executable, "-c", READER, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a consumer in rack {rack!r}: {done.stderr}")
    received = {int(number): float(size) for number, size in json.loads(done.stdout).items()}
    total = sum(received.values())
    return (total - received.get(NEAR, 0)) / total * 100


def nearby(bench: Bench) -> Figures:
    """A consumer reads everything, once without saying where it is and once in the rack of NEAR."""
    count = bench.amount(READ_BYTES // BATCH)
    records = count * frames.plain_batch(BATCH, 1000).count
    with fresh(bench, both=RACKS) as cluster:
        cluster.create("read", spread(READ_PARTITIONS))
        fill(bench, cluster, "read", BATCH, count, acks=-1)
        return {
            "without": crossed(cluster.bootstrap, "read", records, ""),
            "with": crossed(cluster.bootstrap, "read", records, f"zone-{NEAR}"),
        }


# ---- an observer behind a long way ----

FAR = "FAR"
OBSERVER: Final = 3
WAY: Final = Distance(seconds=0.1, loss=0.01)
"""A round trip of 200 ms, and one segment of a hundred is lost."""

LEGS, EACH = 5, 3_000
LOOK_SECONDS: Final = 0.5


@contextlib.contextmanager
def far_away(cluster: ScribaCluster, number: int) -> Iterator[None]:
    """Has one node reach the others, and them its controller, by a long way alone; before they
    start. Brokers find each other by the name of the listener that they are told to use, so that
    one with a name of its own is given other addresses than the rest."""
    for node in cluster.nodes.values():
        node.port = free_port()
    targets = {(n, FAR): node.port for n, node in cluster.nodes.items()}
    targets |= {(n, "CONTROLLER"): node.seat.controller_port for n, node in cluster.nodes.items()}

    def processes() -> dict[int, int]:
        return {cluster.nodes[n].pid: n for n in cluster.running}

    with Links(targets, processes) as links:
        for n, node in cluster.nodes.items():
            seen = {
                n: other.seat.controller_port
                if number not in (n, other.seat.node_id) or other is node
                else links.port(other.seat.node_id, "CONTROLLER")
                for n, other in cluster.nodes.items()
            }
            node.settings |= listeners(node, links.port(n, FAR), seen)
            if n != number:
                links.part(n, number, WAY)
        cluster.nodes[number].settings["inter.broker.listener.name"] = FAR
        yield


def listeners(node: Node, way: int, controllers: dict[int, int]) -> dict[str, str]:
    """With one more, which is bound for its name and advertised where the long way begins."""
    near = f"PLAINTEXT://{HOST}:{node.port}"
    voters = ",".join(f"{n}@{HOST}:{port}" for n, port in controllers.items())
    bound = f"{near},{FAR}://{HOST}:{free_port()}"
    return {
        "listeners": f"{bound},CONTROLLER://{HOST}:{node.seat.controller_port}",
        "advertised.listeners": f"{near},{FAR}://{HOST}:{way}",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in ("PLAINTEXT", FAR, "CONTROLLER")
        ),
        "controller.quorum.voters": voters,
    }


def seconds_behind(node: Node) -> float:
    """How far its observers are, as its own metrics tell: nothing is asked of the leader."""
    with urllib.request.urlopen(f"http://{HOST}:{node.metrics_port}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    (told,) = (line for line in lines if line.startswith("scriba_observer_lag_seconds "))
    return float(told.split()[1])


def observer(bench: Bench) -> Figures:
    """Two topics of the same two voters, one of them with an observer, are written to in turn."""
    if isinstance(three(bench), KafkaCluster):
        return {}
    voters = "voters=1@zone-1,1@zone-2"
    topics = {"without": ([1, 2], voters), "with": ([1, 2, 3], f"{voters};observers=1@zone-3")}
    p50: dict[str, list[float]] = {name: [] for name in topics}
    p99: dict[str, list[float]] = {name: [] for name in topics}
    behind: list[float] = []
    with bench.scratch() as folder:
        cluster = ScribaCluster(folder, settings=RACKS)
        with far_away(cluster, OBSERVER), clusters.running(cluster):
            for name, (replicas, placement) in topics.items():
                with cluster.connect() as connection:
                    if error := clusters.create(
                        connection, name, [replicas], **{PLACEMENT: placement}
                    ):
                        raise ValueError(error)
                cluster.await_in_sync(name, 2)
            for leg in range(LEGS):
                for name in topics if leg % 2 else reversed(topics):
                    load = small_producer(bench, cluster, name, bench.amount(EACH))
                    while load.process.poll() is None:
                        behind.append(seconds_behind(cluster.nodes[OBSERVER]))
                        time.sleep(LOOK_SECONDS)
                    done = load.result()
                    p50[name].append(done.p50)
                    p99[name].append(done.p99)
    middle50 = {name: statistics.median(figures) for name, figures in p50.items()}
    middle99 = {name: statistics.median(figures) for name, figures in p99.items()}
    return {
        "p50": middle50["with"],
        "p99": middle99["with"],
        "p50_ratio": middle50["with"] / middle50["without"],
        "p99_ratio": middle99["with"] / middle99["without"],
        "behind": max(behind),
    }


# ---- a leader that its followers do not reach ----


def cut_off(bench: Bench) -> Figures:
    """Brokers do not hear the leader, nor it them, while controllers hear all: how long it takes
    until another one leads, and until that one acknowledges what all in-sync replicas have."""
    if isinstance(three(bench), KafkaCluster):
        return {}
    settings = {**FACTORS, "scriba.replica.stall.ms": str(STALL_MS)}
    led, again = list[float](), list[float]()
    with (
        bench.scratch() as folder,
        running_nodes(folder, settings, linked=True) as nodes,
        SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin,
    ):
        assert nodes.links is not None
        for number in range(bench.amount(PAUSES)):
            name = f"cut-{number}"
            lost = next(n for n in nodes.nodes if n != admin.describe_quorum().leader)
            others = [n for n in nodes.nodes if n != lost]
            make(nodes, name, [lost, *others])
            began = time.monotonic()
            for other in others:
                nodes.links.cut(lost, other, listener="INTERNAL")
            led.append(await_leader(nodes, name, lost) - began)
            again.append(await_acknowledged(nodes, name, others) - began)
            nodes.links.heal()
            await_whole(nodes, name)
    return {"led": max(led), "seconds": max(again)}


def seen(nodes: ScribaNodes, name: str, asked: int) -> rawkafka.Message:
    """The one partition of a topic, as a node knows it."""
    with Connection(nodes.nodes[asked].ports["PLAINTEXT"], timeout=60) as connection:
        return clusters.described(connection, name)[0]


def make(nodes: ScribaNodes, name: str, replicas: list[int]) -> None:
    with Connection(nodes.nodes[replicas[0]].ports["PLAINTEXT"], timeout=PATIENCE) as connection:
        if error := clusters.create(connection, name, [replicas]):
            raise ValueError(error)
    await_whole(nodes, name)


def await_whole(nodes: ScribaNodes, name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(len(seen(nodes, name, n).isr_nodes) == len(nodes.nodes) for n in nodes.nodes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all replicas of {name} are in sync:\n{nodes.tail()}")
        time.sleep(ASK_SECONDS)


def await_leader(nodes: ScribaNodes, name: str, lost: int) -> float:
    """When a node that is not cut off names another leader."""
    asked = next(n for n in nodes.nodes if n != lost)
    deadline = time.monotonic() + PATIENCE
    while seen(nodes, name, asked).leader_id in (lost, -1):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is led by {lost} still:\n{nodes.tail()}")
        time.sleep(ASK_SECONDS)
    return time.monotonic()


def await_acknowledged(nodes: ScribaNodes, name: str, others: list[int]) -> float:
    request = rawkafka.produce(rawkafka.batch([b"x" * 100]).encode(), name)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, Closed):
            leader = seen(nodes, name, others[0]).leader_id
            with Connection(nodes.nodes[leader].ports["PLAINTEXT"], timeout=60) as connection:
                if rawkafka.produced(connection.call(request, 9)).error_code == 0:
                    return time.monotonic()
        time.sleep(ASK_SECONDS)
    raise TimeoutError(f"nobody takes records of {name}:\n{nodes.tail()}")


APART = (
    Row(
        "cluster-nearby",
        "a consumer in a rack with a replica of each partition reads 200 MB",
        (
            Metric("with", "% received from other racks, with client.rack", limit=1),
            Metric("without", "% without"),
        ),
        nearby,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-observer",
        "an observer behind 200 ms with losses: acks=all of two voters",
        (
            Metric("p50_ratio", "times the p50 without the observer", limit=1.05),
            Metric("p99_ratio", "times the p99 without the observer", limit=1.05),
            Metric("p50", "us p50"),
            Metric("p99", "us p99"),
            Metric("behind", "s the observer was behind at most"),
        ),
        observer,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-cut-off",
        "a leader whose followers do not reach it (scriba.replica.stall.ms=2000)",
        (
            Metric("seconds", "s until acks=all goes on", limit=SESSION_SECONDS),
            Metric("led", "s until another leads"),
        ),
        cut_off,
        warms=False,
        once=True,
    ),
)
"""Rows that start clusters of their own."""
