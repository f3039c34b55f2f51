"""Kafka's tools and the log directories of brokers: `kafka-reassign-partitions` with `log_dirs`,
`kafka-log-dirs`, and cordons by `kafka-configs`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from scriba.cli.main import main
from scriba.client import SyncAdmin
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.kafka_jars import Outcome, Tools
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

RECORDS = 300
SLOW = "20000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[ScribaNodes]:
    dirs = ",".join(f"{folder}/data-{{node}}/{name}" for name in ("one", "two"))
    settings = {
        **SWIFT,
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "log.dirs": dirs,
    }
    with running_nodes(folder, settings) as made:
        yield made


class Dirs:
    """The tools, and a topic with records on node 1."""

    def __init__(self, nodes: ScribaNodes, tools: Tools, folder: Path, topic: str) -> None:
        self._nodes, self._tools, self._folder, self.topic = nodes, tools, folder, topic
        self.run("topics", "--create", "--topic", topic, "--replica-assignment", "1").ok()
        producer = Producer({"bootstrap.servers": nodes.bootstrap, "batch.num.messages": 10})
        for n in range(RECORDS):
            producer.produce(topic, b"%d " % n + b"x" * 1000, partition=0)
        assert producer.flush(300) == 0

    def run(self, tool: str, *args: str) -> Outcome:
        return self._tools.run(tool, "--bootstrap-server", self._nodes.bootstrap, *args)

    def path(self, node: int, name: str) -> str:
        return f"{self._folder}/data-{node}/{name}"

    def told(self) -> list[dict[str, Any]]:
        """What `kafka-log-dirs` tells of all brokers."""
        said = self.run("log-dirs", "--describe", "--topic-list", self.topic).ok()
        found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        return [
            {**each, "broker": broker["broker"]}
            for broker in found["brokers"]
            for each in broker["logDirs"]
        ]

    def homes(self, future: bool = False) -> dict[int, str]:
        """In which directory each broker has the topic's replica."""
        return {
            each["broker"]: each["logDir"]
            for each in self.told()
            for partition in each["partitions"]
            if partition["isFuture"] is future
        }

    def plan(self, **replicas: str) -> tuple[str, str]:
        """The brokers by number, each with a directory."""
        brokers = {int(name.removeprefix("on_")): path for name, path in replicas.items()}
        move = {"topic": self.topic, "partition": 0, "replicas": [*brokers],
                "log_dirs": [*brokers.values()]}  # fmt: skip
        place = self._folder / f"{self.topic}.json"
        place.write_text(json.dumps({"version": 1, "partitions": [move]}))
        return "--reassignment-json-file", str(place)

    def values(self) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._nodes.bootstrap,
                "group.id": "none",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        found: list[int] = []
        while True:
            taken = consumer.poll(300)
            assert taken is not None
            error = taken.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                consumer.close()
                return found
            found.append(int((taken.value() or b"").split()[0]))


@pytest.fixture
def dirs(nodes: ScribaNodes, tools: Tools, folder: Path, topic: str) -> Dirs:
    return Dirs(nodes, tools, folder, topic)


def other(path: str) -> str:
    start, _, name = path.rpartition("/")
    return f"{start}/{'two' if name == 'one' else 'one'}"


def test_a_plan_with_directories_is_executed_and_verified(dirs: Dirs) -> None:
    here = other(dirs.homes()[1])
    there = dirs.path(2, "two")
    plan = dirs.plan(on_1=here, on_2=there)
    executed = dirs.run("reassign-partitions", "--execute", *plan).ok()
    assert f"{here} for replica {dirs.topic}-0 with broker 1" in executed
    done = (
        f"Reassignment of replica {dirs.topic}-0-1 completed successfully.",
        f"Reassignment of replica {dirs.topic}-0-2 completed successfully.",
    )

    def verified() -> bool:
        told = dirs.run("reassign-partitions", "--verify", *plan).ok()
        return all(line in told for line in done)

    eventually(verified)
    assert dirs.homes() == {1: here, 2: there}
    assert dirs.homes(future=True) == {}
    assert dirs.values() == [*range(RECORDS)]


def test_a_slow_move_between_directories_is_shown_and_cancelled(dirs: Dirs) -> None:
    source = dirs.homes()[1]
    plan = dirs.plan(on_1=other(source))
    dirs.run(
        "reassign-partitions", "--execute", *plan, "--replica-alter-log-dirs-throttle", SLOW
    ).ok()
    assert dirs.homes(future=True) == {1: other(source)}
    assert dirs.homes() == {1: source}
    told = dirs.run("reassign-partitions", "--verify", *plan, "--preserve-throttles").ok()
    assert f"Reassignment of replica {dirs.topic}-0-1 is still in progress." in told
    cancelled = dirs.run("reassign-partitions", "--cancel", *plan).ok()
    assert dirs.topic in cancelled
    assert dirs.homes(future=True) == {}
    assert dirs.homes() == {1: source}
    assert dirs.values() == [*range(RECORDS)]


def test_our_command_moves_a_replica_and_refuses_what_cannot_be(
    nodes: ScribaNodes, dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> tuple[int, str, str]:
        code = main(["cluster", "reassign", *words, "--bootstrap", nodes.bootstrap])
        return code, *capsys.readouterr()

    source = dirs.homes()[1]
    target = other(source)
    code, out, _ = typed(dirs.topic, "--dir", f"1:{target}", "--dry-run")
    assert code == 0
    assert source in out
    assert dirs.homes() == {1: source}
    code, _, err = typed(dirs.topic, "--dir", "1:/nowhere")
    assert code == 1
    assert "broker 1 has no log directory /nowhere" in err
    code, _, err = typed(dirs.topic, "--dir", f"2:{dirs.path(2, 'one')}")
    assert code == 1
    assert "there is no replica of" in err
    code, _, err = typed(dirs.topic, "--dir", f"1:{target}", "--throttle", "100000000")
    assert code == 0
    assert "1 replica moved" in err
    assert dirs.homes() == {1: target}
    _, plan = dirs.plan(on_1=source, on_3=dirs.path(3, "two"))
    code, _, err = typed("--file", plan)
    assert code == 0, err
    assert dirs.homes() == {1: source, 3: dirs.path(3, "two")}
    code, out, _ = typed("--list", "--json")
    assert json.loads(out) == []
    assert dirs.values() == [*range(RECORDS)]


def test_cordons_are_changed_while_a_broker_runs(nodes: ScribaNodes, dirs: Dirs) -> None:
    def configs(*words: str) -> Outcome:
        return dirs.run("configs", "--entity-type", "brokers", "--entity-name", "3", *words)

    def cordoned() -> list[str]:
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:  # Kafka's tool shows none
            return [each.path for each in admin.describe_log_dirs([3])[3] if each.cordoned]

    one, two = dirs.path(3, "one"), dirs.path(3, "two")
    refused = configs("--alter", "--add-config", "cordoned.log.dirs=/nowhere")
    assert refused.code != 0
    assert "must name directories of log.dirs" in refused.out + refused.err
    configs("--alter", "--add-config", f"cordoned.log.dirs=[{one},{two}]").ok()
    shown = configs("--describe").ok()
    assert f"cordoned.log.dirs={one},{two}" in shown
    assert "DYNAMIC_BROKER_CONFIG" in shown
    eventually(lambda: cordoned() == [one, two])

    def refused_by_the_controller() -> bool:
        name = f"{dirs.topic}-nowhere"
        made = dirs.run(
            "topics", "--create", "--topic", name, "--replication-factor", "3", "--partitions", "1"
        )
        if made.code == 0:
            dirs.run("topics", "--delete", "--topic", name).ok()
        return made.code != 0 and "cordoned" in made.out + made.err

    eventually(refused_by_the_controller)
    configs("--alter", "--delete-config", "cordoned.log.dirs").ok()
    eventually(lambda: cordoned() == [])
