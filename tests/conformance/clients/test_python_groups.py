"""kafka-python and aiokafka: groups, transactions, and the administration of both."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import ProducerFenced
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import MemberToRemove, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import (
    CooperativeStickyAssignor,
)
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor,
)
from kafka.errors import (
    NoError,
    ProducerFencedError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import Connection, batch, create_topic, produce, produced

PATIENCE = 300.0
ASSIGNORS = {
    assignor.name: assignor
    for assignor in (RangePartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor)
}


@pytest.fixture
def admin(swift: Broker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=swift.bootstrap)
    yield client
    client.close()


@pytest.fixture
def join(swift: Broker) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(topic: str, **settings: Any) -> Any:
        chosen = {
            "group_id": topic,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 45_000,
            **settings,
        }
        made.append(KafkaConsumer(bootstrap_servers=swift.bootstrap, **chosen))
        # A leader that has not heard of the topic when it shares out gives nobody anything, and
        # does not come back to it, at Kafka as here.
        eventually(lambda: bool(made[-1].partitions_for_topic(topic)))
        made[-1].subscribe([topic])
        return made[-1]

    yield make
    for one in made:
        one.close()


def fill(cluster: Broker, topic: str, partitions: int, each: int = 5) -> None:
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, partitions)
        for partition in range(partitions):
            data = batch([b"%d" % n for n in range(each)]).encode()
            assert produced(connection.call(produce(data, topic, partition), 9)).error_code == 0


def polled(consumers: list[Any], told: Callable[[list[Any]], bool]) -> list[Any]:
    """Polls all of them until what came is enough.

    They poll at the same time: a member of this client drops an assignment that comes while it
    does not poll, and joins again. In turns, each would be late for the other for ever.
    """
    taken: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    with ThreadPoolExecutor(len(consumers)) as beside:
        while not told(taken):
            assert time.monotonic() < deadline, [one.assignment() for one in consumers]
            for polls in beside.map(lambda one: one.poll(1000), consumers):
                for records in polls.values():
                    taken += records
    return taken


def shared(consumers: list[Any], partitions: int) -> bool:
    held = [sorted(part.partition for part in one.assignment()) for one in consumers]
    whole = sorted(p for each in held for p in each) == list(range(partitions))
    return whole and max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize("strategy", ASSIGNORS)
def test_members_of_kafka_python_share_and_take_over(
    swift: Broker, join: Callable[..., Any], topic: str, strategy: str
) -> None:
    fill(swift, topic, 4)
    chosen = {"partition_assignment_strategy": [ASSIGNORS[strategy]]}
    first = join(topic, **chosen)
    assert len(polled([first], lambda taken: len(taken) >= 20)) == 20
    second = join(topic, **chosen)
    polled([first, second], lambda _: shared([first, second], 4))
    first.close()
    polled([second], lambda _: shared([second], 4))


def test_offsets_and_groups_are_managed_by_kafka_python(
    swift: Broker, admin: Any, join: Callable[..., Any], topic: str
) -> None:
    fill(swift, topic, 2)
    member = join(topic, group_instance_id="one")
    polled([member], lambda taken: len(taken) == 10)
    part, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member.commit({part: OffsetAndMetadata(3, "remark", -1)})
    assert member.committed(part, metadata=True) == OffsetAndMetadata(3, "remark", -1)

    (listed,) = [one for one in admin.list_groups() if one["group_id"] == topic]
    assert (listed["group_state"], listed["group_type"]) == ("Stable", "classic")
    described = admin.describe_groups([topic])[topic]
    (one,) = described["members"]
    assert one["group_instance_id"] == "one"
    given = one["member_assignment"]["assigned_partitions"]
    assert given == [{"topic": topic, "partitions": [0, 1]}]
    busy = admin.alter_group_offsets(topic, {part: OffsetAndMetadata(1, "", -1)})
    assert busy == {part: UnknownMemberIdError}
    assert admin.delete_groups([topic]) == {topic: "NonEmptyGroupError"}

    gone = admin.remove_group_members(topic, [MemberToRemove(group_instance_id="one")])
    assert gone == {"one": NoError}
    member.close()
    moved = admin.reset_group_offsets(topic, {part: OffsetSpec.EARLIEST, other: OffsetSpec.LATEST})
    assert {where: told["offset"] for where, told in moved.items()} == {part: 0, other: 5}
    found = admin.list_group_offsets({topic: None})[topic]
    assert {where: told.offset for where, told in found.items()} == {part: 0, other: 5}
    assert admin.delete_group_offsets(topic, [part]) == {part: NoError}
    assert set(admin.list_group_offsets({topic: None})[topic]) == {other}
    assert admin.delete_groups([topic]) == {topic: "OK"}
    assert topic not in {one["group_id"] for one in admin.list_groups()}


def test_kafka_python_reads_writes_and_commits_in_transactions(
    swift: Broker, admin: Any, join: Callable[..., Any], topic: str
) -> None:
    fill(swift, topic, 1)
    out = f"{topic}-out"
    admin.create_topics({out: {"num_partitions": 1, "replication_factor": 1}})
    settings = {"bootstrap_servers": swift.bootstrap, "transactional_id": topic}
    member = join(topic, isolation_level="read_committed")
    polled([member], lambda taken: len(taken) == 5)
    part = TopicPartition(topic, 0)

    def transform(producer: Any, upto: int) -> None:
        producer.begin_transaction()
        producer.send(out, b"up to %d" % upto, partition=0)
        offsets = {part: OffsetAndMetadata(upto, "", -1)}
        producer.send_offsets_to_transaction(offsets, member.group_metadata())
        producer.flush(PATIENCE)

    first = KafkaProducer(**settings)
    first.init_transactions()
    transform(first, 2)
    first.commit_transaction()
    eventually(lambda: member.committed(part) == 2)
    transform(first, 3)
    first.abort_transaction()
    transform(first, 4)
    open_now = admin.describe_transactions([topic])[topic]
    assert open_now.state.value == "Ongoing"
    assert TopicPartition(out, 0) in open_now.topic_partitions

    twin = KafkaProducer(**settings)
    twin.init_transactions()
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    transform(twin, 5)
    twin.commit_transaction()
    eventually(lambda: member.committed(part) == 5)
    reader = join(out, isolation_level="read_committed")
    taken = polled([reader], lambda taken: len(taken) >= 2)
    assert [record.value for record in taken] == [b"up to 2", b"up to 5"]
    first.close(1)
    twin.close(1)


async def gather(consumers: list[Any], count: int) -> list[Any]:
    taken: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            for one in consumers:
                for records in (await one.getmany(timeout_ms=20)).values():
                    taken += records
    return taken


async def test_members_of_aiokafka_share_commit_and_go_on(swift: Broker, topic: str) -> None:
    fill(swift, topic, 4)
    settings = {
        "bootstrap_servers": swift.bootstrap,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 45_000,
    }
    first = AIOKafkaConsumer(topic, **settings)
    second = AIOKafkaConsumer(topic, **settings)
    await first.start()
    await second.start()
    try:
        async with asyncio.timeout(PATIENCE):
            while not shared([first, second], 4):
                await asyncio.gather(first.getmany(timeout_ms=20), second.getmany(timeout_ms=20))
        part = min(first.assignment())
        await first.commit({part: (2, "a remark")})
        assert await first.committed(part) == 2
    finally:
        await first.stop()
        await second.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=swift.bootstrap)
    await admin.start()
    try:
        assert (topic, "consumer") in await admin.list_consumer_groups()
        offsets = await admin.list_consumer_group_offsets(topic)
        assert {(p.partition, o.offset, o.metadata) for p, o in offsets.items()} == {
            (part.partition, 2, "a remark")
        }
    finally:
        await admin.close()
    heir = AIOKafkaConsumer(topic, **settings)
    await heir.start()
    try:
        taken = await gather([heir], 18)
        mine = [record.offset for record in taken if record.partition == part.partition]
        assert mine == [2, 3, 4]
    finally:
        await heir.stop()


async def test_aiokafka_reads_writes_and_commits_in_transactions(swift: Broker, topic: str) -> None:
    fill(swift, topic, 1)
    out = f"{topic}-out"
    fill(swift, out, 1, each=1)
    part = AIOTopicPartition(topic, 0)
    settings = {"bootstrap_servers": swift.bootstrap}
    reading = {**settings, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = AIOKafkaConsumer(topic, group_id=topic, **reading)
    reader = AIOKafkaConsumer(out, isolation_level="read_committed", **reading)
    first = AIOKafkaProducer(transactional_id=topic, **settings)
    twin = AIOKafkaProducer(transactional_id=topic, **settings)
    await first.start()
    await consumer.start()
    await reader.start()

    async def transform(producer: Any, upto: int) -> None:
        await producer.send_and_wait(out, b"up to %d" % upto, partition=0)
        await producer.send_offsets_to_transaction({part: upto}, topic)

    async def reached(offset: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while await consumer.committed(part) != offset:
                await consumer.getmany(timeout_ms=10)

    try:
        async with first.transaction():
            await transform(first, 2)
        await reached(2)
        await first.begin_transaction()
        await transform(first, 3)
        await first.abort_transaction()
        await first.begin_transaction()
        await transform(first, 4)
        await twin.start()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        async with twin.transaction():
            await transform(twin, 5)
        await reached(5)
        taken = await gather([reader], 3)
        assert [record.value for record in taken] == [b"0", b"up to 2", b"up to 5"]
    finally:
        for one in (reader, consumer, first, twin):
            await one.stop()
