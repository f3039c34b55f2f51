"""A quorum of controllers of both kinds: they copy each other's log and snapshots, and lead in
turn."""

import base64
import re
import uuid
from pathlib import Path

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import HOST, free_port
from tools.kafka.kafka_jars import Tools
from tools.kafka.mixed import MixedKafka, MixedScriba, Node, Seat

KAFKA, FIRST, SECOND = 1, 4, 5
SHORT_LOG = {
    "controller.quorum.auto.join.enable": "true",
    "metadata.log.segment.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.max.retention.bytes": "1",
    "metadata.max.idle.interval.ms": "100",
}
"""Snapshots at once, and little log before them."""


class Quorum:
    """One controller of Apache Kafka that made the cluster, two of Scriba that join it."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        ports = {number: free_port() for number in (KAFKA, FIRST, SECOND)}
        where = ",".join(f"{HOST}:{port}" for port in ports.values())
        self._tools = tools
        self.kafka = MixedKafka(
            folder / "kafka", Seat(KAFKA, "controller", where), ports[KAFKA], SHORT_LOG, tools
        )
        self.nodes: dict[int, Node] = {KAFKA: self.kafka}
        for number in (FIRST, SECOND):
            self.nodes[number] = MixedScriba(
                folder / f"scriba-{number}",
                Seat(number, "controller", where),
                ports[number],
                SHORT_LOG,
            )

    def found(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
        off = ("share", "streams")
        self.kafka.format(
            cluster_id, "--standalone", *(f"--feature={name}.version=0" for name in off)
        )

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
        for node in self.nodes.values():
            node.kill()


def test_controllers_of_both_kinds_copy_each_other_and_lead_in_turn(
    tmp_path: Path, tools: Tools
) -> None:
    quorum = Quorum(tmp_path, tools)
    quorum.found()
    kafka, folder = quorum.kafka, quorum.kafka.log_dir / "__cluster_metadata-0"
    try:
        kafka.start()
        eventually(lambda: len(list(folder.glob("*.log"))) > 2)
        eventually(lambda: any(int(p.name[:20]) > 0 for p in folder.glob("*.checkpoint")))
        kafka.stop()
        for path in folder.iterdir():  # Kafka itself drops what a snapshot holds once a minute
            if path.suffix in (".log", ".index", ".timeindex") or path.name.startswith("leader-ep"):
                path.unlink()
        kafka.start()
        assert quorum.log_start(KAFKA) > 0
        for number in (FIRST, SECOND):
            quorum.nodes[number].start()
        quorum.caught_up()
        assert quorum.log_start(FIRST) > 0, "it began with a snapshot of Kafka's"
        quorum.write(0)

        end = quorum.standing()[KAFKA][1]
        kafka.kill()
        lead = quorum.leader()
        assert lead in (FIRST, SECOND)
        quorum.write(1)
        eventually(lambda: quorum.log_start(quorum.leader()) > end)
        kafka.start()
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
