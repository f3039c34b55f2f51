"""A region is lost for good: an operator promotes the observers of the other, and clients go on.

The region `near` has the brokers that vote; `far` has an observer of every partition. The quorum is
one controller in each and a third elsewhere, so that it outlives either region.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from scriba.cli.main import main
from scriba.client import SyncAdmin
from scriba.settings.placement import PLACEMENT
from tests.integration.commands import Done
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

NEAR, FAR, WITNESS = (1, 2), 3, 4
TOPIC, OFFSETS = "orders", "__consumer_offsets"
ASKED = "voters=2@near;observers=1@far"
REPLICATED, NEVER_SEEN, AFTER = 200, 20, 50
SETTINGS = {
    **SWIFT,
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
}
OWN = {
    1: {"broker.rack": "near"},
    2: {"broker.rack": "near", "process.roles": "broker"},
    FAR: {"broker.rack": "far"},
    WITNESS: {"process.roles": "controller"},
}
PATIENCE = 300


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path, SETTINGS, linked=True, count=4, own=OWN) as made:
        yield made


class Operator:
    """Who types commands, in this process."""

    def __init__(self, nodes: ScribaNodes, capsys: pytest.CaptureFixture[str]) -> None:
        self._bootstrap = nodes.bootstrap
        self._capsys = capsys

    def types(self, *words: str) -> Done:
        code = main([*words, "--bootstrap", self._bootstrap, "--timeout", "60"])
        return Done(code, *self._capsys.readouterr())

    def sees_all_copied(self) -> bool:
        """Two in sync, and an observer that lacks nothing."""
        shown = self.types("topic", "describe", TOPIC, OFFSETS, "--json").json
        return all(
            [each["lag"] for each in partition["observers"]] == [0] and len(partition["isr"]) == 2
            for topic in shown
            for partition in topic["partitions"]
        )

    def sees_no_leader(self) -> bool:
        with SyncAdmin(bootstrap_servers=self._bootstrap) as admin:
            topics = admin.describe_topics([TOPIC, OFFSETS])
        return all(each.leader is None for topic in topics.values() for each in topic.partitions)


@pytest.fixture
def operator(nodes: ScribaNodes, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(nodes, capsys)


def write(nodes: ScribaNodes, numbers: range) -> None:
    """Acknowledged by all, each of them."""
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "acks": "all"})
    failed: list[Any] = []
    for number in numbers:
        producer.produce(
            TOPIC,
            b"%d" % number,
            partition=number % 2,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(PATIENCE) == 0
    assert failed == []


def member(nodes: ScribaNodes) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def all_read() -> bool:
        for record in consumer.consume(count, 0.2):
            assert record.error() is None, record.error()
            found.append(int(record.value() or b"-1"))
        return len(found) >= count

    eventually(all_read)
    return sorted(found)


def test_observers_are_promoted_after_the_region_of_the_voters_is_lost(
    nodes: ScribaNodes, operator: Operator
) -> None:
    words = ("--partitions", "2", "-c", f"{PLACEMENT}={ASKED}")
    assert operator.types("topic", "create", TOPIC, *words).code == 0
    write(nodes, range(REPLICATED))
    group = member(nodes)
    group.subscribe([TOPIC])
    assert read(group, REPLICATED) == list(range(REPLICATED))
    group.commit(asynchronous=False)
    group.close()
    placed = operator.types("config", "set", "--topic", OFFSETS, f"{PLACEMENT}={ASKED}")
    assert placed.code == 0, placed
    eventually(operator.sees_all_copied)

    assert nodes.links is not None
    for number in NEAR:
        nodes.links.cut(FAR, number)
    write(nodes, range(REPLICATED, REPLICATED + NEVER_SEEN))
    for number in NEAR:
        nodes.nodes[number].kill()
    eventually(operator.sees_no_leader)

    planned = operator.types("cluster", "promote", "far", "--dry-run", "--json").json
    after = "voters=1@far;observers=2@near"
    assert planned["placements"] == {TOPIC: after, OFFSETS: after}
    half = REPLICATED // 2
    assert [
        (each["observer"], each["end_offset"], each["unknown_from"])
        for each in planned["partitions"]
        if each["topic"] == TOPIC
    ] == [(FAR, half, half)] * 2
    asked = operator.types("cluster", "promote", "far")
    assert asked.code == 1
    assert "nothing was changed; --unclean promotes them, and loses that" in asked.err
    assert operator.sees_no_leader()
    promoted = operator.types("cluster", "promote", "far", "--unclean")
    assert promoted.code == 0, promoted
    assert promoted.out.count(f"whatever was written from offset {half} on") == 2

    write(nodes, range(1000, 1000 + AFTER))
    group = member(nodes)
    group.subscribe([TOPIC])
    assert read(group, AFTER) == list(range(1000, 1000 + AFTER)), "from where the group was"
    group.close()
    reader = member(nodes)
    reader.assign([TopicPartition(TOPIC, at, OFFSET_BEGINNING) for at in (0, 1)])
    everything = [*range(REPLICATED), *range(1000, 1000 + AFTER)]
    assert read(reader, len(everything)) == everything
    reader.close()
