"""A quorum of controllers of both kinds, founded by either: they copy each other's log and
snapshots, and lead in turn, while a broker of each kind serves."""

import re
from pathlib import Path

from confluent_kafka import Producer

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import HOST, free_port, new_cluster_id
from tools.kafka.clusters import create, described
from tools.kafka.kafka_jars import Tools
from tools.kafka.mixed import Kind, MixedKafka, MixedScriba, Node, Seat
from tools.kafka.rawkafka import Connection

KAFKA, FIRST, SECOND = 1, 4, 5
BROKER_KAFKA, BROKER_SCRIBA = 2, 3
ALREADY_EXISTS = 36
JOINS = {"controller.quorum.auto.join.enable": "true"}
SHORT_LOG = {
    "metadata.log.segment.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.max.retention.bytes": "1",
    "metadata.max.idle.interval.ms": "100",
}
"""Snapshots at once, and little log before them."""


class Quorum:
    """Controllers 1, 4 and 5, one of which founds the cluster, and a broker of each kind."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._folder, self._tools = folder, tools
        self._ports = {number: free_port() for number in (KAFKA, FIRST, SECOND)}
        self.nodes: dict[int, Node] = {}
        self.brokers: dict[int, Node] = {}

    def _where(self, *numbers: int) -> str:
        return ",".join(f"{HOST}:{self._ports[number]}" for number in numbers or self._ports)

    def kafka(self, number: int, seat: Seat, port: int, settings: dict[str, str]) -> MixedKafka:
        return MixedKafka(self._folder / f"kafka-{number}", seat, port, settings, self._tools)

    def scriba(self, number: int, seat: Seat, port: int, settings: dict[str, str]) -> MixedScriba:
        return MixedScriba(self._folder / f"scriba-{number}", seat, port, settings)

    def found(self, kind: Kind) -> Node:
        """The first controller, which makes the cluster; it is started."""
        number = KAFKA if kind == "kafka" else FIRST
        seat = Seat(number, "controller", self._where(number))
        if kind == "kafka":
            made: Node = self.kafka(number, seat, self._ports[number], SHORT_LOG)
            off = (f"--feature={name}.version=0" for name in ("share", "streams"))
            assert isinstance(made, MixedKafka)
            made.format(new_cluster_id(), "--standalone", *off)
        else:
            made = self.scriba(number, seat, self._ports[number], SHORT_LOG)
        self.nodes[number] = made
        made.start()
        return made

    def cluster_id(self) -> str:
        meta = next(iter(self.nodes.values())).log_dir / "meta.properties"
        return meta.read_text().split("cluster.id=")[1].split()[0]

    def join(self) -> None:
        """All others join, as voters."""
        settings = SHORT_LOG | JOINS
        for number in {*self._ports} - {*self.nodes}:
            seat = Seat(number, "controller", self._where())
            if number == KAFKA:
                kafka = self.kafka(number, seat, self._ports[number], settings)
                kafka.format(self.cluster_id(), "--no-initial-controllers")
                self.nodes[number] = kafka
            else:
                self.nodes[number] = self.scriba(number, seat, self._ports[number], settings)
            self.nodes[number].start()

    def serve(self) -> None:
        """A broker of each kind, with the replicas of a topic."""
        seats = {n: Seat(n, "broker", self._where()) for n in (BROKER_KAFKA, BROKER_SCRIBA)}
        kafka = self.kafka(BROKER_KAFKA, seats[BROKER_KAFKA], free_port(), {})
        kafka.format(self.cluster_id(), "--no-initial-controllers")
        scriba = self.scriba(BROKER_SCRIBA, seats[BROKER_SCRIBA], free_port(), {})
        self.brokers = {BROKER_KAFKA: kafka, BROKER_SCRIBA: scriba}
        for node in self.brokers.values():
            node.start()

    def is_served(self, topic: str) -> None:
        """A topic is made, both brokers hold it in sync, and each takes records as its leader."""
        placed = [[BROKER_KAFKA, BROKER_SCRIBA], [BROKER_SCRIBA, BROKER_KAFKA]]

        def made() -> bool:
            with Connection(self.brokers[BROKER_SCRIBA].port, 60) as connection:
                told = create(connection, topic, placed)
                return told == "" or told.startswith(f"error {ALREADY_EXISTS}:")

        eventually(made)

        def in_sync() -> bool:
            found = []
            for node in self.brokers.values():
                with Connection(node.port, 60) as connection:
                    found += [{*p.isr_nodes} for p in described(connection, topic).values()]
            return found == [{*self.brokers}] * 4

        eventually(in_sync)
        where = ",".join(node.bootstrap for node in self.brokers.values())
        producer = Producer({"bootstrap.servers": where})
        for at in range(len(placed)):
            producer.produce(topic, b"x", partition=at)
        assert producer.flush(300) == 0

    def ask(self, name: str, *words: str) -> str:
        """What a tool says that is sent to any controller; nothing while none can answer."""
        for node in self.nodes.values():
            if node.process is not None:
                told = self._tools.run(name, "--bootstrap-controller", node.bootstrap, *words)
                if told.code == 0:
                    return told.out
        return ""

    def standing(self) -> dict[int, tuple[str, int]]:
        """Of each voter, whether it leads, and how far its log reaches."""
        told = self.ask("metadata-quorum", "describe", "--replication")
        rows = re.findall(r"^(\d+)\s+\S+\s+(-?\d+)\s.*?(Leader|Follower)", told, re.M)
        return {int(number): (status, int(end)) for number, end, status in rows}

    def leader(self) -> int:
        eventually(lambda: "Leader" in {status for status, _ in self.standing().values()})
        return next(n for n, (status, _) in self.standing().items() if status == "Leader")

    def caught_up(self) -> None:
        """Until all three are voters, and each has what the leader had a moment before."""
        eventually(lambda: len(self.standing()) == len(self.nodes))
        goal = max(end for _, end in self.standing().values())
        eventually(lambda: min(end for _, end in self.standing().values()) >= goal)

    def write(self, level: int) -> None:
        """A change that a majority has to agree to."""
        way = "upgrade" if level else "downgrade"
        self.ask("features", way, "--feature", f"group.version={level}")
        wanted = rf"group\.version.*FinalizedVersionLevel: {level}"
        eventually(lambda: re.search(wanted, self.ask("features", "describe")) is not None)

    def log_start(self, number: int) -> int:
        folder = self.nodes[number].log_dir / "__cluster_metadata-0"
        return min((int(path.stem) for path in folder.glob("*.log")), default=0)

    def kill(self) -> None:
        for node in (*self.nodes.values(), *self.brokers.values()):
            node.kill()


def drop_before_snapshot(founder: MixedKafka) -> None:
    """Kafka itself drops what a snapshot holds once a minute."""
    folder = founder.log_dir / "__cluster_metadata-0"
    eventually(lambda: len(list(folder.glob("*.log"))) > 2)
    eventually(lambda: any(int(p.name[:20]) > 0 for p in folder.glob("*.checkpoint")))
    founder.stop()
    for path in folder.iterdir():
        if path.suffix in (".log", ".index", ".timeindex") or path.name.startswith("leader-ep"):
            path.unlink()
    founder.start()


def test_controllers_of_both_kinds_copy_each_other_and_lead_in_turn(
    tmp_path: Path, tools: Tools
) -> None:
    quorum = Quorum(tmp_path, tools)
    try:
        founder = quorum.found("kafka")
        assert isinstance(founder, MixedKafka)
        drop_before_snapshot(founder)
        assert quorum.log_start(KAFKA) > 0
        quorum.join()
        quorum.caught_up()
        assert quorum.log_start(FIRST) > 0, "it began with a snapshot of Kafka's"
        quorum.write(0)

        end = quorum.standing()[KAFKA][1]
        founder.kill()
        lead = quorum.leader()
        assert lead in (FIRST, SECOND)
        quorum.write(1)
        eventually(lambda: quorum.log_start(quorum.leader()) > end)
        founder.start()
        quorum.caught_up()
        assert quorum.log_start(KAFKA) > end, "it went on with a snapshot of ours"

        for level in (0, 1):
            lead = quorum.leader()
            quorum.nodes[lead].stop()
            quorum.write(level)
            quorum.nodes[lead].start()
            quorum.caught_up()
    finally:
        quorum.kill()


def test_a_controller_of_kafka_joins_a_quorum_of_scriba_and_both_kinds_serve_on(
    tmp_path: Path, tools: Tools
) -> None:
    """The founder is killed while a broker of each kind serves, and one of the others leads."""
    quorum = Quorum(tmp_path, tools)
    try:
        founder = quorum.found("scriba")
        eventually(lambda: quorum.log_start(FIRST) > 0)
        quorum.join()
        quorum.serve()
        quorum.caught_up()
        assert quorum.log_start(KAFKA) > 0, "it began with a snapshot of ours"
        quorum.is_served("founded")
        founder.kill()
        assert quorum.leader() in (KAFKA, SECOND)
        quorum.is_served("led-by-another")
        founder.start()
        quorum.caught_up()
    finally:
        quorum.kill()
