"""Clusters of several nodes of either kind, which tests and benchmarks run side by side.

Every node is a child process on loopback, broker and controller in one, that keeps its ports and
its data when it is killed and started again. Both kinds are told the same: who the voters are, and
a replication factor of 3 with `min.insync.replicas=2` for every topic, internal ones included.
"""

import contextlib
import os
import signal
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeQuorumRequest
from kafka.protocol.metadata import MetadataRequest

from tools.kafka import kafka_jars
from tools.kafka.brokers import (
    HOST,
    KAFKA_JVM,
    KAFKA_PROPERTIES,
    PATIENCE,
    Broker,
    KafkaBroker,
    ScribaBroker,
    free_port,
    new_cluster_id,
)
from tools.kafka.rawkafka import Closed, Connection, Message

FACTORS: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
LOOK_SECONDS = 0.01
METADATA_VERSION, CREATE_VERSION, DELETE_VERSION, QUORUM_VERSION = 12, 7, 6, 1


@dataclass(frozen=True)
class Seat:
    """A node's place in its cluster."""

    node_id: int
    controller_port: int
    voters: str
    cluster_id: str
    votes: bool = True
    """Whether it is a controller, too."""

    def properties(self, port: int) -> dict[str, str]:
        listeners = f"PLAINTEXT://{HOST}:{port}"
        if self.votes:
            listeners += f",CONTROLLER://{HOST}:{self.controller_port}"
        return {
            "process.roles": "broker,controller" if self.votes else "broker",
            "node.id": str(self.node_id),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.voters": self.voters,
            "listeners": listeners,
        }


class Node(Broker, ABC):
    """One node of a cluster."""

    seat: Seat
    metrics_port: int | None = None

    def ready(self) -> bool:
        """Whether it serves its clients and knows itself to be a member."""
        try:
            with Connection(self.port, timeout=5) as connection:
                return self.seat.node_id in brokers(connection)
        except (OSError, Closed):
            return False

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class KafkaNode(Node, KafkaBroker):
    def __init__(self, data: Path, seat: Seat, settings: Mapping[str, str]) -> None:
        super().__init__(data, settings)
        self.seat = seat

    def prepare(self) -> None:
        """Writes the configuration, and gives an empty folder the cluster's id."""
        self.port = self.port or free_port()
        properties = {
            **KAFKA_PROPERTIES,
            **self.seat.properties(self.port),
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.log_dir),
            **self.settings,
        }
        self._config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        if not (self.log_dir / "meta.properties").exists():
            where = ["-t", self.seat.cluster_id, "-c", str(self._config)]
            kafka_jars.tool("storage", "format", *where).ok()


class ScribaNode(Node, ScribaBroker):
    def __init__(self, data: Path, seat: Seat, settings: Mapping[str, str]) -> None:
        super().__init__(data, settings)
        self.seat = seat
        self.metrics_port = free_port()

    def prepare(self) -> None:
        """Writes the configuration; there is no format step."""
        self.port = self.port or free_port()
        properties = {
            **self.seat.properties(self.port),
            "log.dirs": str(self.data / "data"),
            "scriba.metrics.listener": f"http://{HOST}:{self.metrics_port}",
            **self.settings,
        }
        self._config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    @property
    def _config(self) -> Path:
        return self.data / "node.properties"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "scriba", "up", "--config", str(self._config)]


class Cluster(ABC):
    """Nodes with the ids 1 to `size`."""

    name: ClassVar[str]

    def __init__(
        self, data: Path, size: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        """`{node}` in a setting is the number of the node that is told it."""
        self._data = data
        self.settings = {**FACTORS, **(settings or {})}
        ports = {number: free_port() for number in range(1, size + 1)}
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in ports.items())
        cluster_id = self._cluster_id()
        self.nodes: dict[int, Node] = {
            number: self._made(Seat(number, port, voters, cluster_id))
            for number, port in ports.items()
        }

    def _made(self, seat: Seat) -> Node:
        number = str(seat.node_id)
        told = {key: text.replace("{node}", number) for key, text in self.settings.items()}
        return self._node(self._data / f"node-{number}", seat, told)

    @abstractmethod
    def _node(self, data: Path, seat: Seat, settings: Mapping[str, str]) -> Node: ...

    @abstractmethod
    def _cluster_id(self) -> str: ...

    @abstractmethod
    def configuration(self) -> list[str]:
        """What was set, a line each, for a report."""

    # ---- the life of its nodes ----

    def start(self) -> None:
        for node in self.nodes.values():
            node.prepare()
        for node in self.nodes.values():
            node.launch()
        self.await_up()

    def restart(self, number: int) -> None:
        """Starts a node that has ended, and returns once it is a member again."""
        node = self.nodes[number]
        node.prepare()
        node.launch()
        self.await_up()

    def grow(self) -> int:
        """Starts one node more, which is a broker and no controller; its number."""
        number = max(self.nodes) + 1
        seat = self.nodes[1].seat
        self.nodes[number] = self._made(replace(seat, node_id=number, votes=False))
        self.restart(number)
        return number

    def await_up(self) -> None:
        """Until every node that runs serves, and knows all others that run."""
        running = set(self.running)

        def all_know_all() -> bool:
            return all(running <= self._known_to(self.nodes[number]) for number in running)

        self.until(all_know_all, "not all nodes are members of the cluster")

    def _known_to(self, node: Node) -> set[int]:
        if node.ended():
            raise RuntimeError(f"{self.name} node {node.seat.node_id} ended:\n{node.tail()}")
        try:
            with Connection(node.port, timeout=5) as connection:
                return set(brokers(connection))
        except (OSError, Closed):
            return set()

    def stop(self) -> None:
        """All at once, in good order."""
        running = [node.process for node in self.nodes.values() if node.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(PATIENCE)
        self.kill()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    @property
    def running(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.process is not None]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def port(self) -> int:
        """Of any node that runs."""
        return self.nodes[self.running[0]].port

    def cpu_seconds(self) -> float:
        """Of all nodes that run."""
        return sum(self.nodes[number].cpu_seconds() for number in self.running)

    # ---- what it says of itself ----

    def connect(self, number: int | None = None, timeout: float = 60) -> Connection:
        return Connection(self.port if number is None else self.nodes[number].port, timeout)

    def controller(self) -> int:
        """The active controller, as any node knows it; -1 while there is none."""
        partition = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
        topic = DescribeQuorumRequest.TopicData
        request = DescribeQuorumRequest(
            topics=[topic(topic_name="__cluster_metadata", partitions=[partition])]
        )
        for number in self.running:
            with contextlib.suppress(OSError, Closed), self.connect(number, 5) as connection:
                answer = connection.call(request, QUORUM_VERSION)
                found: int = answer.topics[0].partitions[0].leader_id if answer.topics else -1
                if found in self.running:
                    return found
        return -1

    def await_controller(self) -> int:
        """The active controller, once there is one: after a restart there may be none for a moment,
        and a row that kills a node must know which one it is."""
        found = [-1]

        def known() -> bool:
            found[0] = self.controller()
            return found[0] > 0

        self.until(known, "no controller is active")
        return found[0]

    def partitions(self, topic: str, asked: int | None = None) -> dict[int, Message]:
        """Leader, epoch and in-sync replicas of every partition, as one node knows them."""
        with self.connect(asked, 60) as connection:
            return described(connection, topic)

    def await_in_sync(self, topic: str, replicas: int = 3) -> None:
        """Until every node that runs knows the topic, with so many replicas in sync."""

        def whole(number: int) -> bool:
            try:
                found = self.partitions(topic, number).values()
            except (OSError, Closed):
                return False
            in_sync = [len(each.isr_nodes) for each in found if each.leader_id > 0]
            return len(found) == len(in_sync) > 0 and min(in_sync) >= replicas

        for number in self.running:
            self.until(partial(whole, number), f"{topic} never had {replicas} replicas in sync")

    def create(self, topic: str, assignments: Sequence[Sequence[int]], **settings: str) -> None:
        """A topic whose replicas are told, the preferred leader first; returns when they lead."""
        with self.connect(timeout=PATIENCE) as connection:
            error = create(connection, topic, assignments, **settings)
        if error:
            raise ValueError(f"{topic}: {error}")
        self.await_in_sync(topic, min(map(len, assignments)))

    def delete(self, topic: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=30_000
        )
        with self.connect() as connection:
            connection.call(request, DELETE_VERSION)

    def until(self, told: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
        deadline = time.monotonic() + timeout
        while not told():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: {what}")
            time.sleep(LOOK_SECONDS)


class KafkaCluster(Cluster):
    name = "Apache Kafka"

    def _node(self, data: Path, seat: Seat, settings: Mapping[str, str]) -> Node:
        return KafkaNode(data, seat, settings)

    def _cluster_id(self) -> str:
        return new_cluster_id()

    def configuration(self) -> list[str]:
        told = [f"Apache Kafka {kafka_jars.version()}", "java " + " ".join(KAFKA_JVM)]
        return told + [f"{k}={v}" for k, v in {**KAFKA_PROPERTIES, **self.settings}.items()]


class ScribaCluster(Cluster):
    name = "Scriba"

    def _node(self, data: Path, seat: Seat, settings: Mapping[str, str]) -> Node:
        return ScribaNode(data, seat, settings)

    def _cluster_id(self) -> str:
        return ""

    def configuration(self) -> list[str]:
        return ["scriba up --config", *(f"{k}={v}" for k, v in self.settings.items())]


CLUSTERS: Mapping[str, type[Cluster]] = {"scriba": ScribaCluster, "kafka": KafkaCluster}


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Started on entry; stopped on the way out, killed if the block failed."""
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()


# ---- what is asked of one connection ----


def brokers(connection: Connection) -> list[int]:
    return [broker.node_id for broker in connection.call(MetadataRequest(topics=[]), 9).brokers]


def described(connection: Connection, topic: str) -> dict[int, Message]:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    (found,) = connection.call(request, METADATA_VERSION).topics
    return {partition.partition_index: partition for partition in found.partitions}


def topic_id(connection: Connection, topic: str) -> Message:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    (found,) = connection.call(request, METADATA_VERSION).topics
    return found.topic_id


def create(
    connection: Connection, topic: str, assignments: Sequence[Sequence[int]], **settings: str
) -> str:
    """Asks for a topic; the error in words, or nothing."""
    wanted = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            wanted(
                name=topic,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    wanted.CreatableReplicaAssignment(
                        partition_index=index, broker_ids=list(replicas)
                    )
                    for index, replicas in enumerate(assignments)
                ],
                configs=[
                    wanted.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                    for key, value in settings.items()
                ],
            )
        ],
        timeout_ms=30_000,
    )
    (result,) = connection.call(request, CREATE_VERSION).topics
    return f"error {result.error_code}: {result.error_message}" if result.error_code else ""


# ---- what a node of ours tells of its loop ----


def loop_lag(node: Node) -> dict[float, float]:
    """How often the loop was late by no more than so many seconds; empty for other kinds."""
    if node.metrics_port is None:
        return {}
    with urllib.request.urlopen(f"http://{HOST}:{node.metrics_port}/metrics", timeout=60) as page:
        text = page.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("scriba_eventloop_lag_seconds_bucket{"):
            found[float(line.split('le="')[1].split('"')[0])] = float(line.rsplit(" ", 1)[1])
    return found


def longest_since(before: dict[float, float], after: dict[float, float]) -> float | None:
    """The limit, in seconds, below which the loop was late each time between two looks."""
    total = max(after.values(), default=0) - max(before.values(), default=0)
    for limit in sorted(after):
        if after[limit] - before.get(limit, 0) >= total:
            return limit
    return None
