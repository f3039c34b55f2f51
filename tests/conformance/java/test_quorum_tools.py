"""Kafka's own tools on a quorum of three controllers, and on what lies on their disks."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scriba.client import NewTopic, SyncAdmin
from tools.kafka import kafka_jars
from tools.kafka.brokers import KAFKA_PROPERTIES, QuickKafka, free_port, running
from tools.kafka.kafka_jars import Tools

PATIENCE = 300


class Cluster(NamedTuple):
    bootstrap: str
    cluster_id: str
    nodes: dict[int, dict[str, Any]]
    place: Path

    def controllers(self) -> list[str]:
        """Addresses of the controllers' listeners."""
        text = (self.place / "scriba-data" / "node-1.properties").read_text()
        voters = re.search(r"^controller.quorum.voters=(.*)$", text, re.MULTILINE)
        assert voters is not None
        return [voter.partition("@")[2] for voter in voters[1].split(",")]


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("quorum")
    words = [sys.executable, "-m", "scriba", "up", "--nodes", "3", "--port", "0", "--json"]
    process = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        nodes = {node["node_id"]: node for node in told["nodes"]}
        yield Cluster(told["bootstrap_servers"], told["cluster_id"], nodes, place)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def leader_of(status: str) -> int:
    found = re.search(r"LeaderId:\s+(\d+)", status)
    assert found is not None, status
    return int(found[1])


def test_the_tools_see_one_quorum_whomever_they_ask(quorum: Cluster, tools: Tools) -> None:
    leaders = set()
    asked = [("--bootstrap-server", each) for each in quorum.bootstrap.split(",")]
    asked += [("--bootstrap-controller", each) for each in quorum.controllers()]
    for option, address in asked:
        status = tools.run("metadata-quorum", option, address, "describe", "--status").ok()
        leaders.add(leader_of(status))
        voters = re.search(r"CurrentVoters:\s+(\[.*\])", status)
        assert voters is not None, status
        assert sorted(voter["id"] for voter in json.loads(voters[1])) == [1, 2, 3]
        assert re.search(r"HighWatermark:\s+[1-9]", status)
    assert len(leaders) == 1
    option, address = asked[0]
    lines = tools.run("metadata-quorum", option, address, "describe", "--replication").ok()
    roles = re.findall(r"(Leader|Follower|Observer)\s*$", lines, re.MULTILINE)
    assert sorted(roles) == ["Follower", "Follower", "Leader"]


def test_every_controllers_log_is_kafkas_and_the_same(quorum: Cluster, tools: Tools) -> None:
    with SyncAdmin({"bootstrap.servers": quorum.bootstrap}) as admin:
        admin.create_topics([NewTopic("copied", 3, 3)])
    seen: list[list[str]] = []
    for node_id in quorum.nodes:
        folder = quorum.place / "scriba-data" / f"node-{node_id}" / "__cluster_metadata-0"
        logs = ",".join(str(log) for log in sorted(folder.glob("*[0-9].log")))
        dumped = tools.run("dump-log", "--cluster-metadata-decoder", "--files", logs).ok()
        assert "isvalid: false" not in dumped
        assert "Could not decode" not in dumped
        assert "LeaderChange" in dumped
        assert "KRaftVoters" in dumped
        seen.append(re.findall(r"^\| offset: \d+ .*$", dumped, re.MULTILINE))
        assert any('"name":"copied"' in line for line in seen[-1])
    shortest = min(len(lines) for lines in seen)
    assert seen[0][:shortest] == seen[1][:shortest] == seen[2][:shortest]


def test_a_killed_leader_is_followed_by_another(quorum: Cluster, tools: Tools) -> None:
    asked = ("metadata-quorum", "--bootstrap-server", quorum.bootstrap, "describe", "--status")
    leader = leader_of(tools.run(*asked).ok())
    words = [sys.executable, "-m", "scriba", "node", "kill", str(leader)]
    subprocess.run(words, cwd=quorum.place, check=True, capture_output=True, timeout=PATIENCE)
    assert leader_of(tools.run(*asked).ok()) != leader
    words[-2] = "start"
    subprocess.run(words, cwd=quorum.place, check=True, capture_output=True, timeout=PATIENCE)


def test_a_controller_is_added_and_removed_by_kafkas_tool(quorum: Cluster, tools: Tools) -> None:
    data = quorum.place / "fourth"
    properties = {
        "node.id": "4",
        "process.roles": "controller",
        "listeners": f"CONTROLLER://127.0.0.1:{free_port()}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": ",".join(quorum.controllers()),
        "log.dirs": str(data),
    }
    config = quorum.place / "fourth.properties"
    config.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    words = [sys.executable, "-m", "scriba", "up", "--config", str(config), "--json"]
    with subprocess.Popen(words, cwd=quorum.place, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["cluster_id"] == quorum.cluster_id
            asked = ("metadata-quorum", "--bootstrap-server", quorum.bootstrap)

            def voters() -> dict[int, str]:
                status = tools.run(*asked, "describe", "--status").ok()
                found = re.search(r"CurrentVoters:\s+(\[.*\])", status)
                assert found is not None, status
                return {each["id"]: each["directoryId"] for each in json.loads(found[1])}

            added = tools.run(*asked, "--command-config", str(config), "add-controller").ok()
            assert "Added controller 4" in added
            assert sorted(voters()) == [1, 2, 3, 4]
            again = tools.run(*asked, "--command-config", str(config), "add-controller")
            assert again.code == 1
            assert "is a voter already" in again.out + again.err
            key = ("--controller-id", "4", "--controller-directory-id", voters()[4])
            removed = tools.run(*asked, "remove-controller", *key).ok()
            assert "Removed" in removed
            assert sorted(voters()) == [1, 2, 3]
            gone = tools.run(*asked, "remove-controller", *key)
            assert gone.code == 1
            assert "not among the voters 1, 2, 3" in gone.out + gone.err
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


class KafkaObserver(QuickKafka):
    """An Apache Kafka broker that follows somebody else's controllers."""

    def __init__(self, data: Path, cluster_id: str, controllers: list[str]) -> None:
        super().__init__(data)
        self._cluster_id = cluster_id
        self._controllers = controllers

    def prepare(self) -> None:
        self.port = free_port()
        properties = {
            **KAFKA_PROPERTIES,
            "process.roles": "broker",
            "node.id": "9",
            "controller.quorum.bootstrap.servers": ",".join(self._controllers),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.log_dir),
        }
        self._config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        where = ["-t", self._cluster_id, "-c", str(self._config)]
        kafka_jars.tool("storage", "format", "--no-initial-controllers", *where).ok()


def test_an_apache_kafka_broker_follows_the_quorum_and_is_unfenced(
    quorum: Cluster, tools: Tools, tmp_path: Path
) -> None:
    observer = KafkaObserver(tmp_path / "kafka", quorum.cluster_id, quorum.controllers())
    with running(observer):
        controllers = ",".join(quorum.controllers())
        asked = ("metadata-quorum", "--bootstrap-controller", controllers, "describe")
        deadline = time.monotonic() + PATIENCE
        with SyncAdmin({"bootstrap.servers": quorum.bootstrap}) as admin:
            while 9 not in {node.id for node in admin.describe_cluster().nodes}:
                assert time.monotonic() < deadline, observer.tail()
                time.sleep(0.5)
            replication = tools.run(*asked, "--replication").ok()
            assert re.search(r"^9\s.*Observer\s*$", replication, re.MULTILINE), replication
            admin.create_topics([NewTopic("on-kafka", assignments={0: [9]})])
        sent = "".join(f"{n}\n" for n in range(10))
        words = ["--bootstrap-server", observer.bootstrap, "--topic", "on-kafka"]
        tools.run("console-producer", *words, stdin=sent).ok()
        limit = ["--from-beginning", "--max-messages", "10"]
        assert tools.run("console-consumer", *words, *limit).ok().split() == sent.split()
