"""One cluster of Apache Kafka and Scriba: a controller of either kind, and a broker of each.

Every node is a child process on loopback that keeps its ports and its data. The controller runs
alone in its process, so that either broker can be killed without it.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tools.kafka.broker_fixtures import SWIFT
from tools.kafka.brokers import HOST, PATIENCE, QuickKafka, ScribaBroker, free_port, new_cluster_id
from tools.kafka.clusters import brokers
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Connection

Kind = Literal["scriba", "kafka"]

CONTROLLER, SCRIBA, KAFKA = 1, 2, 3
"""The nodes' ids."""

SHARED: Mapping[str, str] = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    **SWIFT,
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
}
"""What both kinds are told."""

KAFKAS: Mapping[str, str] = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""What only Kafka is told: little threads and memory, and an authoriser that minds nobody here."""


class Seat:
    """What a node is told: its id, its role, its listener, and where the controllers are."""

    def __init__(self, node_id: int, roles: str, controllers: str) -> None:
        self.node_id = node_id
        self.roles = roles
        self.controllers = controllers

    def properties(self, port: int, settings: Mapping[str, str]) -> dict[str, str]:
        name = "CONTROLLER" if self.roles == "controller" else "PLAINTEXT"
        told = {
            **SHARED,
            "node.id": str(self.node_id),
            "process.roles": self.roles,
            "listeners": f"{name}://{HOST}:{port}",
            "controller.quorum.bootstrap.servers": self.controllers,
            **settings,
        }
        if self.roles == "controller":
            del told["inter.broker.listener.name"]
        return told


class MixedKafka(QuickKafka):
    """A node of Apache Kafka."""

    def __init__(
        self, data: Path, seat: Seat, port: int, settings: Mapping[str, str], tools: Tools
    ) -> None:
        super().__init__(data, settings)
        self.seat = seat
        self.port = port
        self._tools = tools

    def format(self, cluster_id: str, *how: str) -> None:
        """What `kafka-storage format` does to an empty folder."""
        self.prepare()
        self._tools.run("storage", "format", "-t", cluster_id, "-c", str(self._config), *how).ok()

    def prepare(self) -> None:
        told = self.seat.properties(self.port, {**KAFKAS, **self.settings})
        told["log.dirs"] = str(self.log_dir)
        self._config.write_text("".join(f"{k}={v}\n" for k, v in told.items()))


class MixedScriba(ScribaBroker):
    """A node of Scriba."""

    def __init__(self, data: Path, seat: Seat, port: int, settings: Mapping[str, str]) -> None:
        super().__init__(data, settings)
        self.seat = seat
        self.port = port

    @property
    def log_dir(self) -> Path:
        return self.data / "logs"

    @property
    def _config(self) -> Path:
        return self.data / "node.properties"

    def prepare(self) -> None:
        told = self.seat.properties(self.port, self.settings)
        told["log.dirs"] = str(self.log_dir)
        self._config.write_text("".join(f"{k}={v}\n" for k, v in told.items()))

    def command(self) -> list[str]:
        return [*super().command()[:4], "--config", str(self._config)]


Node = MixedKafka | MixedScriba


class MixedCluster:
    """A controller of one kind, a broker of Scriba and a broker of Apache Kafka."""

    def __init__(
        self,
        folder: Path,
        controllers: Kind,
        tools: Tools,
        settings: Mapping[str, str] | None = None,
        format: Sequence[str] = (),
    ) -> None:
        port = free_port()
        where = f"{HOST}:{port}"
        told = dict(settings or {})
        lead = Seat(CONTROLLER, "controller", where)
        self._format = ["--standalone", *format]
        self._kafka = MixedKafka(
            folder / "kafka", Seat(KAFKA, "broker", where), free_port(), told, tools
        )
        self.nodes: dict[int, Node] = {
            CONTROLLER: MixedScriba(folder / "controller", lead, port, told)
            if controllers == "scriba"
            else MixedKafka(folder / "controller", lead, port, told, tools),
            SCRIBA: MixedScriba(
                folder / "scriba", Seat(SCRIBA, "broker", where), free_port(), told
            ),
            KAFKA: self._kafka,
        }

    def start(self) -> None:
        lead = self.nodes[CONTROLLER]
        if isinstance(lead, MixedKafka):
            lead.format(new_cluster_id(), *self._format)
        lead.start()
        meta = (lead.log_dir / "meta.properties").read_text()
        self._kafka.format(meta.split("cluster.id=")[1].split()[0], "--no-initial-controllers")
        self._kafka.launch()
        self.nodes[SCRIBA].start()
        self.wait(KAFKA)

    def wait(self, number: int) -> None:
        """Until a node that was launched takes connections."""
        node = self.nodes[number]
        deadline = time.monotonic() + PATIENCE
        while not node.ready():
            if node.ended() or time.monotonic() > deadline:
                raise RuntimeError(f"node {number} did not start:\n{node.tail()}")
            time.sleep(0.02)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.nodes[n].bootstrap for n in (SCRIBA, KAFKA))

    def connect(self, number: int) -> Connection:
        return Connection(self.nodes[number].port, 60)

    def members(self, connection: Connection) -> list[int]:
        """The brokers that clients are told of."""
        return brokers(connection)

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()


@contextlib.contextmanager
def running_mixed(
    folder: Path,
    controllers: Kind,
    tools: Tools,
    settings: Mapping[str, str] | None = None,
    format: Sequence[str] = (),
) -> Iterator[MixedCluster]:
    """Started on entry, killed on the way out; `format` is for Kafka's controller."""
    made = MixedCluster(folder, controllers, tools, settings, format)
    try:
        made.start()
        yield made
    finally:
        made.kill()
