"""Kafka's `kafka-reassign-partitions` moves replicas between three nodes: generate, execute,
verify, cancel, with a throttle that it sets and takes back."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.kafka_jars import Outcome, Tools
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

PARTITIONS, RECORDS = 2, 400
SETTINGS = {**SWIFT, "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
SLOW, FAST = "100", "100000000"
SMALL = {"batch.num.messages": 10}
"""A batch goes whole, whatever the throttle: so that none holds much of the topic."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), SETTINGS) as made:
        yield made


class Mover:
    """The tool, with its files."""

    def __init__(self, nodes: ScribaNodes, tools: Tools, topic: str, folder: Path) -> None:
        self._nodes, self._tools = nodes, tools
        self.topic, self._folder = topic, folder

    def run(self, *args: str) -> Outcome:
        server = ("--bootstrap-server", self._nodes.bootstrap)
        return self._tools.run("reassign-partitions", *server, *args)

    def plan(self, replicas: list[int]) -> tuple[str, str]:
        partitions = [
            {"topic": self.topic, "partition": n, "replicas": replicas} for n in range(PARTITIONS)
        ]
        return self.write(f"plan-{self.topic}", {"version": 1, "partitions": partitions})

    def listed(self) -> str:
        """The moves of its topic that are under way, a line each."""
        lines = self.run("--list").ok().splitlines()
        return "\n".join(line for line in lines if line.startswith(self.topic + "-"))

    def write(self, name: str, document: object) -> tuple[str, str]:
        place = self._folder / f"{name}.json"
        place.write_text(json.dumps(document))
        return "--reassignment-json-file", str(place)

    def replicas(self) -> list[list[int]]:
        server = ("--bootstrap-server", self._nodes.bootstrap)
        told = self._tools.run("topics", *server, "--describe", "--topic", self.topic).ok()
        found = re.findall(r"Partition: \d+\tLeader: \S+\tReplicas: (\S+)\tIsr: (\S*)", told)
        assert all({*r.split(",")} >= {*isr.split(",")} for r, isr in found)
        return [sorted(map(int, each.split(","))) for each, _ in found]

    def done(self, plan: tuple[str, str]) -> bool:
        told = self.run("--verify", *plan).ok()
        return told.count("is completed.") == PARTITIONS

    def throttles(self) -> str:
        """All that is set of brokers and of the topic."""
        server = ("--bootstrap-server", self._nodes.bootstrap)
        brokers = self._tools.run("configs", *server, "--describe", "--entity-type", "brokers").ok()
        topic = self._tools.run(
            "configs", *server, "--describe", "--entity-type", "topics", "--entity-name", self.topic
        ).ok()
        return "\n".join(line for line in (brokers + topic).splitlines() if "throttled" in line)


@pytest.fixture
def mover(nodes: ScribaNodes, tools: Tools, topic: str, tmp_path: Path) -> Mover:
    fill(nodes, tools, topic)
    return Mover(nodes, tools, topic, tmp_path)


def fill(nodes: ScribaNodes, tools: Tools, topic: str) -> None:
    """A topic with records on nodes 1 and 2."""
    assignment = ",".join(["1:2"] * PARTITIONS)
    tools.run(
        "topics", "--bootstrap-server", nodes.bootstrap,
        "--create", "--topic", topic, "--replica-assignment", assignment,
    ).ok()  # fmt: skip
    producer = Producer({"bootstrap.servers": nodes.bootstrap, **SMALL})
    for n in range(RECORDS):
        producer.produce(topic, b"%d " % n + b"x" * 1000, partition=n % PARTITIONS)
    assert producer.flush(300) == 0


def values(nodes: ScribaNodes, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": nodes.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    found, ends = [], 0
    while ends < PARTITIONS:
        taken = consumer.poll(300)
        assert taken is not None
        error = taken.error()
        if error is None:
            found.append(int((taken.value() or b"").split()[0]))
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return sorted(found)


def test_a_generated_plan_is_executed_and_verified_under_a_throttle(
    nodes: ScribaNodes, mover: Mover
) -> None:
    _, topics = mover.write("topics", {"version": 1, "topics": [{"topic": mover.topic}]})
    generated = mover.run(
        "--generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3"
    ).ok()
    proposed = json.loads(generated.strip().splitlines()[-1])
    assert {b for each in proposed["partitions"] for b in each["replicas"]} <= {2, 3}
    plan = mover.plan([3, 2])
    executed = mover.run("--execute", *plan, "--throttle", FAST).ok()
    assert "Successfully started partition reassignments" in executed
    assert "throttled" in mover.throttles()
    eventually(lambda: mover.done(plan))
    assert mover.replicas() == [[2, 3]] * PARTITIONS
    assert mover.throttles() == "", "--verify takes them back"
    assert values(nodes, mover.topic) == [*range(RECORDS)]
    eventually(lambda: not [*nodes.nodes[1].data.glob(f"{mover.topic}-[0-9]")])


def test_a_slow_move_is_listed_changed_and_cancelled(nodes: ScribaNodes, mover: Mover) -> None:
    plan = mover.plan([3, 1])
    mover.run("--execute", *plan, "--throttle", SLOW).ok()
    listed = mover.run("--list").ok()
    assert f"{mover.topic}-0: replicas: 3,1,2. adding: 3. removing: 2." in listed
    still = mover.run("--verify", *plan, "--preserve-throttles").ok()
    assert f"Reassignment of partition {mover.topic}-0 is still in progress." in still
    changed = mover.plan([3, 2])
    refused = mover.run("--execute", *changed)
    assert "Cannot execute because there is an existing partition assignment" in refused.out
    mover.run("--execute", *changed, "--additional", "--throttle", SLOW).ok()
    assert "adding: 3. removing: 1." in mover.run("--list").ok()
    cancelled = mover.run("--cancel", *changed).ok()
    assert "Successfully cancelled partition reassignments" in cancelled
    assert mover.replicas() == [[1, 2]] * PARTITIONS
    assert mover.throttles() == ""
    assert values(nodes, mover.topic) == [*range(RECORDS)]


def test_throttles_that_kafka_configs_sets_hold_a_move_until_it_takes_them_back(
    nodes: ScribaNodes, tools: Tools, mover: Mover, tmp_path: Path
) -> None:
    """Beside it another topic, which is not throttled, is moved at its own pace."""
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    replicas = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

    def alter(kind: str, name: str, *change: str) -> None:
        tools.run(
            "configs", "--bootstrap-server", nodes.bootstrap, "--alter",
            "--entity-type", kind, "--entity-name", name, *change,
        ).ok()  # fmt: skip

    free = Mover(nodes, tools, f"free-{mover.topic}", tmp_path)
    fill(nodes, tools, free.topic)
    for number in nodes.nodes:
        alter("brokers", str(number), "--add-config", ",".join(f"{each}={SLOW}" for each in rates))
    alter("topics", mover.topic, "--add-config", ",".join(f"{each}=*" for each in replicas))
    assert mover.throttles().count("throttled.rate=") >= 2 * len(nodes.nodes)
    held, quick = mover.plan([3, 2]), free.plan([3, 2])
    mover.run("--execute", *held).ok()
    free.run("--execute", *quick, "--additional").ok()
    eventually(lambda: "adding: 3" not in free.listed())
    assert free.replicas() == [[2, 3]] * PARTITIONS
    assert mover.listed().count("adding: 3. removing: 1.") == PARTITIONS
    for number in nodes.nodes:
        alter("brokers", str(number), "--delete-config", ",".join(rates))
    alter("topics", mover.topic, "--delete-config", ",".join(replicas))
    eventually(lambda: "adding: 3" not in mover.listed())
    assert mover.throttles() == ""
    assert mover.replicas() == [[2, 3]] * PARTITIONS
    assert values(nodes, mover.topic) == values(nodes, free.topic) == [*range(RECORDS)]


def test_a_plan_with_an_unknown_broker_is_refused_with_its_name(mover: Mover) -> None:
    refused = mover.run("--execute", *mover.plan([9, 1]))
    assert refused.code == 1
    assert "9" in refused.out
    assert mover.replicas() == [[1, 2]] * PARTITIONS


def test_a_broker_that_is_gone_is_listed_as_fenced_and_unregistered(
    nodes: ScribaNodes, tools: Tools
) -> None:
    server = ("--bootstrap-server", nodes.bootstrap)

    def listed() -> dict[str, str]:
        told = tools.run("cluster", "list-endpoints", "--include-fenced-brokers", *server).ok()
        rows = [line.split() for line in told.splitlines()[1:]]
        return {row[0]: row[4] for row in rows}

    assert listed() == {"1": "unfenced", "2": "unfenced", "3": "unfenced"}
    nodes.nodes[3].kill()
    eventually(lambda: listed()["3"] == "fenced")
    gone = tools.run("cluster", "unregister", *server, "--id", "3").ok()
    assert "Broker 3 is no longer registered." in gone
    assert {*listed()} == {"1", "2"}
    again = tools.run("cluster", "unregister", *server, "--id", "3")
    assert "there is no broker 3 to unregister" in again.err
    nodes.nodes[3].start()
    assert {*listed()} == {"1", "2", "3"}
