"""The rows of three nodes of which one dies, hangs, restarts or lags behind.

What is measured is what a client sees: until a record that all in-sync replicas have is
acknowledged by the new leader of a partition, or until a topic has been made. Clients here ask a
node that lives every few milliseconds and wait for nothing else, so that no time-out of a client
library is part of a figure.
"""

import contextlib
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from bench import frames
from bench.cluster import fresh, three, topic
from bench.frames import PRODUCE_ERROR_AT
from bench.generator import Load
from bench.rows import BATCH, Bench, Figures, Metric, Row
from tools.kafka import clusters, rawkafka
from tools.kafka.brokers import PATIENCE
from tools.kafka.clusters import Cluster
from tools.kafka.rawkafka import Closed, Connection

KILLS, KILLS_OF_KAFKA, PAUSES, STEADY_SECONDS = 20, 5, 3, 1200
"""Kafka waits for the end of a session, each time for as long, and its nodes start slowly."""

PARTITIONS = 12
SESSION_SECONDS = 9.0
"""`broker.session.timeout.ms` of both kinds."""

STALL_MS = 2_000
"""`scriba.replica.stall.ms` of the row that is about it; by default it is off."""

ASK_SECONDS = 0.005
BEHIND_BYTES = 1 << 30
WIDE = 2_000


# ---- what clients see ----


class Witness:
    """Produces to the partitions that a lost node led until each has acknowledged a record."""

    def __init__(self, cluster: Cluster, name: str, lost: int) -> None:
        self._cluster, self._name, self._lost = cluster, name, lost
        found = cluster.partitions(name, next(n for n in cluster.running if n != lost))
        self.partitions = [n for n, each in found.items() if each.leader_id == lost]
        self._survivors = [n for n in cluster.running if n != lost]
        self._failed: list[str] = []

    def times(self, began: float) -> list[float]:
        """Seconds since `began` of each partition."""
        found: dict[int, float] = {}
        threads = [
            threading.Thread(target=self._watch, args=(partition, began, found), daemon=True)
            for partition in self.partitions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise TimeoutError(f"{self._cluster.name}: {self._failed}")
        return sorted(found.values())

    def _watch(self, partition: int, began: float, found: dict[int, float]) -> None:
        data = rawkafka.batch([b"x" * 100]).encode()
        deadline = began + PATIENCE
        turn = partition
        while time.monotonic() < deadline:
            turn += 1
            try:
                leader = self._leader(partition, self._survivors[turn % len(self._survivors)])
                if leader in self._survivors:
                    with self._cluster.connect(leader) as connection:
                        request = rawkafka.produce(data, self._name, partition)
                        if rawkafka.produced(connection.call(request, 9)).error_code == 0:
                            found[partition] = time.monotonic() - began
                            return
            except (OSError, Closed):
                pass
            time.sleep(ASK_SECONDS)
        self._failed.append(f"partition {partition} of {self._name} has no leader")

    def _leader(self, partition: int, asked: int) -> int:
        with self._cluster.connect(asked) as connection:
            leader: int = clusters.described(connection, self._name)[partition].leader_id
            return leader


def busiest(cluster: Cluster, name: str, but: int) -> int:
    """The node that leads most partitions; not the one that is excluded."""
    leaders = [each.leader_id for each in cluster.partitions(name).values()]
    return max((n for n in cluster.running if n != but), key=leaders.count)


def quantiles(times: Sequence[float]) -> Figures:
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "p50": ordered[round(last * 0.5)],
        "p99": ordered[round(last * 0.99)],
        "max": ordered[-1],
    }


def kills(bench: Bench, cluster: Cluster) -> range:
    ours = isinstance(cluster, clusters.ScribaCluster)
    return range(bench.amount(KILLS if ours else KILLS_OF_KAFKA))


def recovered(cluster: Cluster, name: str, lost: int) -> None:
    cluster.restart(lost)
    cluster.await_in_sync(name)


# ---- deaths ----


def kill_leader(bench: Bench) -> Figures:
    """The node that leads most of the twelve partitions, but not the active controller."""
    cluster, times = three(bench), list[float]()
    with topic(cluster, PARTITIONS) as made:
        for _ in kills(bench, cluster):
            lost = busiest(cluster, made.name, but=cluster.await_controller())
            witness = Witness(cluster, made.name, lost)
            began = time.monotonic()
            cluster.nodes[lost].kill()
            times += witness.times(began)
            recovered(cluster, made.name, lost)
    return quantiles(times)


def kill_controller(bench: Bench) -> Figures:
    """The active controller, which leads a third of the partitions as well."""
    cluster = three(bench)
    made_after, led_after = list[float](), list[float]()
    with topic(cluster, PARTITIONS) as made:
        for _ in kills(bench, cluster):
            lost = cluster.await_controller()
            witness = Witness(cluster, made.name, lost)
            began = time.monotonic()
            cluster.nodes[lost].kill()
            name = make_topic(cluster)
            made_after.append(time.monotonic() - began)
            led_after += witness.times(began)
            recovered(cluster, made.name, lost)
            cluster.delete(name)
    figures = dict(quantiles(made_after))
    if led_after:
        figures["led"] = quantiles(led_after)["p99"]
    return figures


def make_topic(cluster: Cluster) -> str:
    """Asks one living node after the other until one has made the topic."""
    name = f"made-{time.monotonic_ns()}"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for number in cluster.running:
            with contextlib.suppress(OSError, Closed), cluster.connect(number) as connection:
                error = clusters.create(connection, name, [cluster.running[:2]])
                if not error or "error 36:" in error:  # made by an attempt whose answer was lost
                    return name
        time.sleep(ASK_SECONDS)
    raise TimeoutError(f"{cluster.name}: no topic could be made")


def pause_leader(bench: Bench) -> Figures:
    """SIGSTOP: its connections stay open, and nobody answers."""
    cluster, times = three(bench), list[float]()
    with topic(cluster, PARTITIONS) as made:
        for _ in range(bench.amount(PAUSES)):
            lost = busiest(cluster, made.name, but=cluster.await_controller())
            witness = Witness(cluster, made.name, lost)
            began = time.monotonic()
            cluster.nodes[lost].pause()
            try:
                times += witness.times(began)
            finally:
                cluster.nodes[lost].resume()
            cluster.await_up()
            cluster.await_in_sync(made.name)
    return quantiles(times)


def stuck_follower(bench: Bench) -> Figures:
    """SIGSTOP of a node that only follows: how long an acks=all waits at the longest."""
    longest = 0.0
    data = rawkafka.batch([b"x" * 100]).encode()
    with fresh(bench, {"scriba.replica.stall.ms": str(STALL_MS)}) as cluster:
        leader = cluster.await_controller()
        stuck, other = (number for number in cluster.nodes if number != leader)
        cluster.create("stuck", [(leader, stuck, other)], **{"min.insync.replicas": "2"})
        request = rawkafka.produce(data, "stuck", 0)
        with cluster.connect(leader) as connection:
            rawkafka.produced(connection.call(request, 9))
            cluster.nodes[stuck].pause()
            try:
                until = time.monotonic() + SESSION_SECONDS + 3
                while (began := time.monotonic()) < until:
                    answer = rawkafka.produced(connection.call(request, 9))
                    if answer.error_code:
                        raise ValueError(f"{cluster.name}: error {answer.error_code}")
                    longest = max(longest, time.monotonic() - began)
                    time.sleep(ASK_SECONDS)
            finally:
                cluster.nodes[stuck].resume()
    return {"seconds": longest}


def _spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def machine_at_full_load() -> Iterator[None]:
    spinners = [
        multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
        for _ in range(multiprocessing.cpu_count())
    ]
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.join()


def steady(bench: Bench) -> Figures:
    """Leader changes while a bulk producer and a busy loop for each core take what there is.

    The goal is a limit, so that Kafka is not held against it: another 20 minutes.
    """
    if not isinstance(three(bench), clusters.ScribaCluster):
        return {}

    def epochs() -> int:
        return sum(each.leader_epoch for each in cluster.partitions(made.name).values())

    with fresh(bench) as cluster, topic(cluster, PARTITIONS) as made:
        frame = frames.produce(frames.plain_batch(16 << 10, 1000), made.id, acks=-1)
        load = Load.replay(
            cluster,
            frames.write(bench.file("steady"), [frame]),
            bytes_per_s=4_000_000,
            error_at=PRODUCE_ERROR_AT,
            ports=made.ports,
        )
        before = epochs()
        load.go()
        with machine_at_full_load():
            time.sleep(bench.amount(STEADY_SECONDS))
        load.stop()
        changed = epochs() - before
    return {"changes": float(changed)}


# ---- planned restarts ----

OURS = """
import asyncio, os, sys, time
from scriba.client import Producer

async def main(bootstrap, topic, partitions, stop):
    longest, waiting = 0.0, set()
    async with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        async def one(number):
            nonlocal longest
            began = time.monotonic()
            await producer.send(topic, b"x" * 100, partition=number % partitions)
            longest = max(longest, time.monotonic() - began)
        for number in range(partitions):
            await one(number)
        longest = 0.0
        print("ready", flush=True)
        while not os.path.exists(stop):
            number += 1
            task = asyncio.create_task(one(number))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            await asyncio.sleep(0.005)
        await asyncio.gather(*waiting)
    print(longest, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
"""

CONFLUENT = """
import os, sys, time
from confluent_kafka import Producer

bootstrap, topic, partitions, stop = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4]
longest = 0.0
producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

def send(number):
    began = time.monotonic()
    def told(error, message):
        global longest
        assert error is None, error
        longest = max(longest, time.monotonic() - began)
    producer.produce(topic, b"x" * 100, partition=number % partitions, on_delivery=told)

for number in range(partitions):
    send(number)
producer.flush()
longest = 0.0
print("ready", flush=True)
while not os.path.exists(stop):
    number += 1
    send(number)
    producer.poll(0.005)
assert producer.flush(120) == 0
print(longest, flush=True)
"""


class Client:
    """A client in a process of its own, which tells in the end how long it waited at most, and
    some what else they saw."""

    def __init__(
        self, program: str, cluster: Cluster, name: str, stop: Path, partitions: int = PARTITIONS
    ) -> None:
        self._stop = stop
        command = [sys.executable, "-c", program, cluster.bootstrap, name, str(partitions)]
        self._process = subprocess.Popen(
            [*command, str(stop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(self._process.communicate()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it where the row failed before it was asked."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def longest(self) -> float:
        return self.told()[0]

    def told(self) -> list[float]:
        self._stop.touch()
        said, complaint = self._process.communicate(timeout=PATIENCE)
        if self._process.returncode:
            raise RuntimeError(complaint)
        return list(map(float, said.split()))


def planned_restart(bench: Bench) -> Figures:
    """Each node in turn is stopped in good order and started again."""
    cluster = three(bench)
    with (
        topic(cluster, PARTITIONS) as made,
        bench.scratch() as folder,
        Client(OURS, cluster, made.name, folder / "ours") as ours,
        Client(CONFLUENT, cluster, made.name, folder / "theirs") as theirs,
    ):
        for number in list(cluster.nodes):
            cluster.nodes[number].stop()
            recovered(cluster, made.name, number)
        return {"ours": ours.longest() * 1000, "confluent": theirs.longest() * 1000}


# ---- behind ----


def behind(bench: Bench) -> Figures:
    """From when the node is a member again until it is in sync; the loop's lag of the others."""
    cluster, lost = three(bench), 3
    count = bench.amount(BEHIND_BYTES // BATCH)
    name = f"behind-{time.monotonic_ns()}"
    cluster.create(name, [[1, 2, 3], [2, 1, 3]], file_delete_delay_ms="100")
    with cluster.connect() as connection:
        made = clusters.topic_id(connection, name)
    cluster.nodes[lost].kill()
    batch = frames.plain_batch(BATCH, 1000)
    fill = Load.replay(
        cluster,
        *(
            frames.write(bench.file(f"behind-{n}"), [frames.produce(batch, made, n, acks=-1)])
            for n in range(2)
        ),
        connections=2,
        requests=count,
        window=2,
        error_at=PRODUCE_ERROR_AT,
        ports=[cluster.nodes[number].port for number in (1, 2)],
    )
    fill.go()
    fill.result()
    leaders = [cluster.nodes[number] for number in (1, 2)]
    before = [clusters.loop_lag(node) for node in leaders]
    cluster.restart(lost)
    began = time.monotonic()
    cluster.await_in_sync(name)
    figures = {"seconds": time.monotonic() - began}
    held = [
        clusters.longest_since(was, clusters.loop_lag(node))
        for was, node in zip(before, leaders, strict=True)
    ]
    if longest := [each for each in held if each is not None]:
        figures["slice"] = max(longest) * 1000
    cluster.delete(name)
    return figures


def wide_leader(bench: Bench) -> Figures:
    """A node that leads two thousand partitions is killed: until all others lead them."""
    count = bench.amount(WIDE)
    with fresh(bench) as cluster:
        active = cluster.await_controller()
        lost, other = (number for number in cluster.nodes if number != active)
        followers = ((other, active), (active, other))
        cluster.create("wide", [(lost, *followers[n % 2]) for n in range(count)])
        before = {n: clusters.loop_lag(cluster.nodes[n]) for n in (other, active)}
        with Connection(cluster.nodes[other].port) as connection:
            began = time.monotonic()
            cluster.nodes[lost].kill()
            cluster.until(lambda: all_led(connection, count, lost), "not all are led")
            figures = {"seconds": time.monotonic() - began}
        held = [
            clusters.longest_since(was, clusters.loop_lag(cluster.nodes[n]))
            for n, was in before.items()
        ]
    if longest := [each for each in held if each is not None]:
        figures["slice"] = max(longest) * 1000
    return figures


def all_led(connection: Connection, count: int, lost: int) -> bool:
    found = clusters.described(connection, "wide").values()
    return sum(each.leader_id not in (lost, -1) for each in found) == count


TIMES = (
    Metric("p50", "s p50", limit=0.5),
    Metric("p99", "s p99", limit=1.5),
    Metric("max", "s at most"),
)

FAILING = (
    Row(
        "cluster-kill",
        "kill -9 of a leader to the first acks=all on each of its partitions",
        TIMES,
        kill_leader,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-controller",
        "kill -9 of the active controller to the next topic made",
        (
            Metric("p50", "s p50"),
            Metric("p99", "s p99", limit=1.5),
            Metric("led", "s p99 to acks=all on each partition it led"),
        ),
        kill_controller,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-pause",
        "SIGSTOP of a leader to the first acks=all on each of its partitions",
        (Metric("max", "s at most", limit=SESSION_SECONDS + 1),),
        pause_leader,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-restart",
        "planned restart of each node: longest wait of a record",
        (
            Metric("ours", "ms with our client", limit=200),
            Metric("confluent", "ms with confluent-kafka"),
        ),
        planned_restart,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-behind",
        "1 GB behind after an outage: from member to in sync",
        (Metric("seconds", "s", 0.7), Metric("slice", "ms the leader's loop was late", limit=10)),
        behind,
        warms=False,
        once=True,
    ),
)
"""Rows on clusters that stay up, whose nodes do not."""

WIDE_LEADER = (
    Row(
        "cluster-stuck",
        "SIGSTOP of a follower (scriba.replica.stall.ms=2000): longest wait of an acks=all",
        (Metric("seconds", "s", limit=3.0),),
        stuck_follower,
        warms=False,
        once=True,
    ),
    Row(
        "cluster-led",
        "kill -9 of a node that leads 2,000 partitions: until all are led",
        (
            Metric("seconds", "s", limit=3.0),
            Metric("slice", "ms a loop was late", limit=10),
        ),
        wide_leader,
        warms=False,
        once=True,
    ),
)

STEADY = (
    Row(
        "cluster-steady",
        "leader changes in 20 minutes of a machine at full load",
        (Metric("changes", "changes", limit=0),),
        steady,
        warms=False,
        once=True,
    ),
)
"""Twenty minutes of its own: the last row of a run."""
