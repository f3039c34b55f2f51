"""Levels of the metadata, from the lowest that Scriba supports to the newest, under controllers of
Scriba: a cluster that Apache Kafka made is taken over, and raised level by level while a broker of
each kind serves."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from scriba.client import SyncAdmin
from scriba.controller import levels
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import HOST, free_port, new_cluster_id
from tools.kafka.clusters import create, described
from tools.kafka.kafka_jars import Tools
from tools.kafka.mixed import MixedKafka, MixedScriba, Seat
from tools.kafka.rawkafka import Connection

FIRST, SECOND, SCRIBA, KAFKA = 1, 4, 2, 3
"""Two controllers, and a broker of each kind."""
OFF = ("share", "streams", "eligible.leader.replicas")
"""Features that are off at first: Scriba lacks two, and the third needs a higher level."""


class Old:
    """Controllers of Scriba that lead what Kafka's made at the lowest level."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.ports = {number: free_port() for number in (FIRST, SECOND)}
        self.voters = ",".join(f"{number}@{HOST}:{port}" for number, port in self.ports.items())
        self.cluster_id = new_cluster_id()
        where = ",".join(f"{HOST}:{port}" for port in self.ports.values())
        self.folder, self._tools = folder, tools
        self.controllers = {
            number: MixedScriba(
                folder / f"controller-{number}",
                Seat(number, "controller", where),
                port,
                {"controller.quorum.voters": self.voters},
            )
            for number, port in self.ports.items()
        }
        kafka = MixedKafka(
            folder / "kafka", Seat(KAFKA, "broker", where), free_port(), self.told(), tools
        )
        scriba = MixedScriba(
            folder / "scriba", Seat(SCRIBA, "broker", where), free_port(), self.told()
        )
        self.brokers: dict[int, MixedKafka | MixedScriba] = {SCRIBA: scriba, KAFKA: kafka}
        self._kafka = kafka

    def told(self) -> dict[str, str]:
        """Below kraft.version 1 voters stand in everybody's settings."""
        return {"controller.quorum.voters": self.voters, "controller.quorum.bootstrap.servers": ""}

    def found(self) -> None:
        """A controller of Apache Kafka makes the cluster in the folder of the first of ours."""
        alone = f"{FIRST}@{HOST}:{self.ports[FIRST]}"
        founder = MixedKafka(
            self.folder / f"controller-{FIRST}",
            Seat(FIRST, "controller", ""),
            self.ports[FIRST],
            {"controller.quorum.voters": alone, "controller.quorum.bootstrap.servers": ""},
            self._tools,
        )
        features = [f"--feature=metadata.version={levels.OLDEST}"]
        features += [f"--feature={name}.version=0" for name in OFF]
        founder.format(self.cluster_id, *features)
        founder.start()
        server = ("--bootstrap-controller", founder.bootstrap)
        eventually(lambda: self._tools.run("features", *server, "describe").code == 0)
        founder.stop()
        self.copy(founder.log_dir)

    def copy(self, made: Path) -> None:
        """The second controller begins with the same: one that is new does not vote in a quorum
        whose voters are known by their ids alone, as it may have voted before."""
        other = self.controllers[SECOND].log_dir
        shutil.copytree(made, other)
        meta = other / "meta.properties"
        meta.write_text(re.sub(r"(?m)^node.id=.*$", f"node.id={SECOND}", meta.read_text()))

    def start(self) -> None:
        self.found()
        for controller in self.controllers.values():
            controller.prepare()
            controller.launch()
        self._kafka.format(self.cluster_id)
        for broker in self.brokers.values():
            broker.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.brokers.values())

    def finalised(self) -> list[int | None]:
        """The level of the metadata, as each broker tells it."""
        found = []
        for node in self.brokers.values():
            with SyncAdmin(bootstrap_servers=node.bootstrap) as admin:
                found.append(admin.describe_features()["metadata.version"].finalized)
        return found

    def is_served(self, topic: str) -> None:
        """A new topic has a replica in sync on each broker, and each takes records as a leader."""
        placed = [[SCRIBA, KAFKA], [KAFKA, SCRIBA]]
        with Connection(self.brokers[SCRIBA].port, 60) as connection:
            assert create(connection, topic, placed) == ""

        def in_sync() -> bool:
            found = []
            for node in self.brokers.values():
                with Connection(node.port, 60) as connection:
                    found += [{*p.isr_nodes} for p in described(connection, topic).values()]
            return found == [{SCRIBA, KAFKA}] * 4

        eventually(in_sync)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for at in range(len(placed)):
            producer.produce(topic, b"x", partition=at)
        assert producer.flush(300) == 0

    def kill(self) -> None:
        for node in (*self.controllers.values(), *self.brokers.values()):
            node.kill()


@pytest.fixture
def old(tmp_path: Path, tools: Tools) -> Iterator[Old]:
    made = Old(tmp_path, tools)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def test_every_level_is_served_by_both_kinds_under_controllers_of_scriba(old: Old) -> None:
    eventually(lambda: old.finalised() == [levels.OLDEST] * 2)
    old.is_served(f"level-{levels.OLDEST}")
    with SyncAdmin(bootstrap_servers=old.bootstrap) as admin:
        for level in range(levels.OLDEST + 1, levels.NEWEST + 1):
            admin.update_features({"metadata.version": level})
            eventually(lambda: old.finalised() == [level] * 2)  # noqa: B023
            old.is_served(f"level-{level}")
