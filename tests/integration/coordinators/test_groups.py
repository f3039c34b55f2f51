"""Consumer groups of foreign clients on a running broker, before and after a restart.

Every story holds for Apache Kafka as well (`SCRIBA_TARGET=both`).
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaConsumer

from tools.kafka.broker_fixtures import TARGETS, eventually
from tools.kafka.brokers import TESTED, Broker, running

PATIENCE = 300.0
PROTOCOLS = ["classic", "cooperative", "consumer"]
SWIFT = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
"""Members of the consumer protocol act when they send a heartbeat, else every five seconds."""


@pytest.fixture(scope="module", params=TARGETS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker for all stories; they keep apart by the names of their topics."""
    place = tmp_path_factory.mktemp(request.param)
    with running(TESTED[request.param](place, settings=SWIFT)) as broker:
        yield broker


@pytest.fixture(params=TARGETS)
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker for one story alone, which may stop, kill and restart it."""
    with running(TESTED[request.param](tmp_path / request.param, settings=SWIFT)) as broker:
        yield broker


def fill(cluster: Broker, topic: str, partitions: int, each: int) -> set[tuple[int, int]]:
    """A new topic with `each` records in every partition; the places of all of them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    produce(cluster, topic, partitions, each)
    return {(p, n) for p in range(partitions) for n in range(each)}


def produce(cluster: Broker, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(each):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % n, partition=partition)
    assert producer.flush(PATIENCE) == 0


class Members:
    """Consumers of one group that take turns in polling."""

    def __init__(self, cluster: Broker, group: str, protocol: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if protocol == "consumer":
            self._settings["group.protocol"] = "consumer"
        else:
            self._settings["session.timeout.ms"] = 45_000
            self._settings["heartbeat.interval.ms"] = 200
        if protocol == "cooperative":
            self._settings["partition.assignment.strategy"] = "cooperative-sticky"
        self.all: list[Consumer] = []
        self.seen: set[tuple[int, int]] = set()
        self.seen_by: dict[Consumer, int] = {}

    def join(self, topics: list[str], **settings: Any) -> Consumer:
        extra = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer(self._settings | extra)
        consumer.subscribe(topics)
        self.all.append(consumer)
        self.seen_by[consumer] = 0
        return consumer

    def poll_until(self, told: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not told():
            assert time.monotonic() < deadline, f"it never came true: {self.owned()}"
            for consumer in self.all:
                message = consumer.poll(0.01)
                if message is not None:
                    assert message.error() is None, message.error()
                    place = (message.partition(), message.offset())
                    assert place[0] is not None
                    assert place[1] is not None
                    self.seen.add((place[0], place[1]))
                    self.seen_by[consumer] += 1

    def owned(self) -> list[list[int]]:
        return [sorted(part.partition for part in c.assignment()) for c in self.all]

    def share(self, partitions: int) -> bool:
        """Whether each partition has one owner, and each member its even share."""
        owned = self.owned()
        sizes = [len(each) for each in owned]
        together = sorted(p for each in owned for p in each)
        return together == list(range(partitions)) and max(sizes) - min(sizes) <= 1

    def leave(self, consumer: Consumer) -> None:
        self.all.remove(consumer)
        consumer.close()


@contextmanager
def members(cluster: Broker, group: str, protocol: str) -> Iterator[Members]:
    group_of = Members(cluster, group, protocol)
    try:
        yield group_of
    finally:
        for consumer in group_of.all:
            consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go_and_every_record_is_read(
    cluster: Broker, topic: str, protocol: str
) -> None:
    everything = fill(cluster, topic, 6, 50)
    with members(cluster, topic, protocol) as group:
        first = group.join([topic])
        group.poll_until(lambda: group.seen >= everything)
        group.join([topic])
        group.poll_until(lambda: group.share(6))
        third = group.join([topic])
        group.poll_until(lambda: group.share(6))
        assert [len(each) for each in group.owned()] == [2, 2, 2]
        produce(cluster, topic, 6, 50)
        more = {(p, n) for p in range(6) for n in range(100)}
        group.poll_until(lambda: group.seen >= more)
        assert all(group.seen_by.values())
        group.leave(first)
        group.poll_until(lambda: group.share(6))
        group.leave(third)
        group.poll_until(lambda: group.share(6))
        assert group.owned() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_that_are_added_get_an_owner(cluster: Broker, topic: str, protocol: str) -> None:
    fill(cluster, topic, 2, 1)
    with members(cluster, topic, protocol) as group:
        quick = {"topic_metadata_refresh_interval_ms": 300}
        group.join([topic], **quick)
        group.join([topic], **quick)
        group.poll_until(lambda: group.share(2))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
        group.poll_until(lambda: group.share(6))
        assert [len(each) for each in group.owned()] == [3, 3]


@pytest.mark.parametrize("way", ["clean", "kill -9"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_restart_keeps_groups_and_offsets(
    own_cluster: Broker, topic: str, protocol: str, way: str
) -> None:
    everything = fill(own_cluster, topic, 4, 25)
    parts = [TopicPartition(topic, p) for p in range(4)]
    with members(own_cluster, topic, protocol) as group:
        member = group.join([topic])
        group.poll_until(lambda: group.seen >= everything)
        offsets = [TopicPartition(topic, p, 10 + p, metadata=f"after {9 + p}") for p in range(4)]
        member.commit(offsets=offsets, asynchronous=False)
        if way == "clean":
            assert own_cluster.stop() in (0, 143)
        else:
            own_cluster.kill()
        own_cluster.start()
        produce(own_cluster, topic, 4, 5)
        later = {(p, n) for p in range(4) for n in range(30)}
        group.poll_until(lambda: group.seen >= later)
        committed = member.committed(parts, PATIENCE)
        assert [(each.offset, each.metadata) for each in committed] == [
            (10 + p, f"after {9 + p}") for p in range(4)
        ]
    with members(own_cluster, topic, protocol) as again:
        again.join([topic])
        rest = {(p, n) for p in range(4) for n in range(10 + p, 30)}
        again.poll_until(lambda: again.seen >= rest)
        assert again.seen == rest


def test_what_one_client_commits_every_other_reads(cluster: Broker, topic: str) -> None:
    fill(cluster, topic, 1, 10)
    with members(cluster, topic, "classic") as group:
        member = group.join([topic])
        group.poll_until(lambda: len(group.seen) == 10)
        place = TopicPartition(topic, 0, 3, metadata="by librdkafka")
        member.commit(offsets=[place], asynchronous=False)
    assert _kafka_python_reads(cluster, topic) == list(range(3, 7))
    assert asyncio.run(_aiokafka_reads(cluster, topic)) == list(range(7, 10))
    with members(cluster, topic, "consumer") as group:
        member = group.join([topic])
        group.poll_until(lambda: group.share(1))
        (place,) = member.committed([TopicPartition(topic, 0)], PATIENCE)
        assert (place.offset, place.metadata or "") == (10, "")


def _kafka_python_reads(cluster: Broker, topic: str) -> list[int]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=topic,
        enable_auto_commit=False,
        max_poll_records=4,
        session_timeout_ms=45_000,
    )
    try:
        found: list[int] = []
        deadline = time.monotonic() + PATIENCE
        while not found:
            assert time.monotonic() < deadline
            for records in consumer.poll(200).values():
                found += (record.offset for record in records)
        consumer.commit()
        return found
    finally:
        consumer.close()


async def _aiokafka_reads(cluster: Broker, topic: str) -> list[int]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=topic,
        enable_auto_commit=False,
        session_timeout_ms=45_000,
    )
    await consumer.start()
    try:
        async with asyncio.timeout(PATIENCE):
            found = [(await consumer.getone()).offset for _ in range(3)]
            await consumer.commit()
        return found
    finally:
        await consumer.stop()


DIES = """
import sys
from confluent_kafka import Consumer
settings = {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
consumer = Consumer(settings)
consumer.subscribe([sys.argv[2]])
while not consumer.assignment():
    consumer.poll(0.1)
print("owns", flush=True)
while True:
    consumer.poll(0.1)
"""


def test_a_member_that_dies_loses_its_partitions_to_the_others(
    cluster: Broker, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, 4, 1)
    script = tmp_path / "member.py"
    script.write_text(DIES)
    command = [sys.executable, str(script), cluster.bootstrap, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "owns\n"
            with members(cluster, topic, "classic") as group:
                group.join([topic])
                group.poll_until(lambda: len(group.owned()[0]) == 2)
                other.kill()
                group.poll_until(lambda: group.share(4))
        finally:
            other.kill()


def test_groups_are_listed_described_altered_and_deleted(cluster: Broker, topic: str) -> None:
    fill(cluster, topic, 2, 5)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with members(cluster, topic, "classic") as group:
        member = group.join([topic], client_id="described")
        group.poll_until(lambda: group.share(2))
        member.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        described = admin.describe_consumer_groups([topic])[topic].result()
        assert described.state is ConsumerGroupState.STABLE
        (one,) = described.members
        assert (one.client_id, one.host) == ("described", "/127.0.0.1")
        owned = sorted(part.partition for part in one.assignment.topic_partitions)
        assert owned == [0, 1]
        with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([topic])[topic].result()
    eventually(lambda: _state(admin, topic) is ConsumerGroupState.EMPTY)
    there = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 1, 4)])
    admin.alter_consumer_group_offsets([there])[topic].result()
    asked = ConsumerGroupTopicPartitions(topic)
    offsets = admin.list_consumer_group_offsets([asked])[topic].result()
    found = sorted((part.partition, part.offset) for part in offsets.topic_partitions or [])
    assert found == [(0, 5), (1, 4)]
    admin.delete_consumer_groups([topic])[topic].result()
    assert _state(admin, topic) is None


def _state(admin: AdminClient, group: str) -> ConsumerGroupState | None:
    listed = admin.list_consumer_groups().result()
    assert not listed.errors
    return next((each.state for each in listed.valid if each.group_id == group), None)


def test_a_deleted_topic_takes_its_offsets_along(cluster: Broker, topic: str) -> None:
    fill(cluster, topic, 1, 5)
    kept = f"{topic}-kept"
    fill(cluster, kept, 1, 5)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    both = [TopicPartition(topic, 0, 2), TopicPartition(kept, 0, 3)]
    there = ConsumerGroupTopicPartitions(topic, both)
    admin.alter_consumer_group_offsets([there])[topic].result()
    admin.delete_topics([topic])[topic].result()

    def left() -> list[tuple[str, int]]:
        asked = ConsumerGroupTopicPartitions(topic)
        offsets = admin.list_consumer_group_offsets([asked])[topic].result()
        return [(part.topic, part.offset) for part in offsets.topic_partitions or []]

    eventually(lambda: left() == [(kept, 3)])


def test_an_internal_topic_is_told_apart_and_compacted(own_cluster: Broker, topic: str) -> None:
    fill(own_cluster, topic, 1, 1)
    consumer = KafkaConsumer(bootstrap_servers=own_cluster.bootstrap)
    assert "__consumer_offsets" not in consumer.topics()
    with members(own_cluster, topic, "classic") as group:
        group.join([topic])
        group.poll_until(lambda: group.share(1))
    admin = AdminClient({"bootstrap.servers": own_cluster.bootstrap})
    offsets = admin.list_topics().topics["__consumer_offsets"]
    assert len(offsets.partitions) == 50
    consumer.close()
