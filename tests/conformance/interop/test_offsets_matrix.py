"""Offsets that each client commits, with a remark, are read back by every other.

Each has a group of its own. Kafka's tool leaves no remark; it resets, where all others commit.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata as PythonOffset

from scriba.client import OffsetAndMetadata, SyncConsumer
from tests.conformance.kafkajs import kafkajs
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Connection, batch, create_topic, produce, produced

TOPIC = "matrix"
RECORDS = 20
REMARK = "bis hierher, größer als ∞"
PATIENCE = 300.0

Found = tuple[int, str | None]
"""Offset and remark; None where the reader does not show it."""


def by_confluent(cluster: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    place = TopicPartition(TOPIC, 0, offset, metadata=REMARK)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def by_kafka_python(cluster: Broker, group: str, offset: int) -> None:
    settings = {"group_id": group, "enable_auto_commit": False}
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, **settings)
    part = PythonTopicPartition(TOPIC, 0)
    consumer.assign([part])
    consumer.commit({part: PythonOffset(offset, REMARK, -1)})
    consumer.close()


def by_aiokafka(cluster: Broker, group: str, offset: int) -> None:
    async def commit() -> None:
        settings = {"group_id": group, "enable_auto_commit": False}
        async with AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:
            part = AIOTopicPartition(TOPIC, 0)
            consumer.assign([part])
            await consumer.commit({part: (offset, REMARK)})

    asyncio.run(commit())


def by_kafkajs(cluster: Broker, group: str, offset: int) -> None:
    """It commits only as a member."""
    place = {"partition": 0, "offset": str(offset), "metadata": REMARK}
    wanted = {"topic": TOPIC, "partitions": 1, "members": 1, "count": 1, "commit": [place]}
    kafkajs(cluster, ["consume", {"groupId": group}, wanted])


def by_scriba(cluster: Broker, group: str, offset: int) -> None:
    with SyncConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.commit({(TOPIC, 0): OffsetAndMetadata(offset, REMARK)})


COMMITTERS: Mapping[str, Callable[[Broker, str, int], None]] = {
    "confluent-kafka": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
    "kafkajs": by_kafkajs,
    "scriba": by_scriba,
}


def seen_by_confluent(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    found: list[Found] = []
    for group in groups:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        (place,) = consumer.committed([TopicPartition(TOPIC, 0)], PATIENCE)
        found.append((place.offset, confluent_remark(place)))
        consumer.close()
    return found


def confluent_remark(place: TopicPartition) -> str:
    """Its binding reads on behind the text, up to the next zero byte, whatever is there."""
    try:
        return place.metadata or ""
    except UnicodeDecodeError as error:
        return bytes(error.object[: error.start]).decode()


def seen_by_kafka_python(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    found: list[Found] = []
    for group in groups:
        consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group)
        place = consumer.committed(PythonTopicPartition(TOPIC, 0), metadata=True)
        found.append((place.offset, place.metadata))
        consumer.close()
    return found


def seen_by_aiokafka(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    async def read() -> list[Found]:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        part = AIOTopicPartition(TOPIC, 0)
        try:
            places = [(await admin.list_consumer_group_offsets(group))[part] for group in groups]
            return [(place.offset, place.metadata) for place in places]
        finally:
            await admin.close()

    return asyncio.run(read())


def seen_by_kafkajs(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    asked = [["admin", "fetchOffsets", {"groupId": one, "topics": [TOPIC]}] for one in groups]
    places = [told[0]["partitions"][0] for told in kafkajs(cluster, *asked)]
    return [(int(place["offset"]), place["metadata"] or "") for place in places]


def seen_by_scriba(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    found: list[Found] = []
    for group in groups:
        with SyncConsumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
            (place,) = consumer.committed([(TOPIC, 0)]).values()
            assert place is not None
            found.append((place.offset, place.metadata))
    return found


def seen_by_java(cluster: Broker, tools: Tools, groups: Sequence[str]) -> list[Found]:
    named = [part for group in groups for part in ("--group", group)]
    to = ["--bootstrap-server", cluster.bootstrap]
    told = tools.run("consumer-groups", *to, "--describe", *named).ok()
    rows = [line.split() for line in told.splitlines() if f" {TOPIC} " in line]
    offsets = {row[0]: int(row[3]) for row in rows}
    return [(offsets[group], None) for group in groups]


READERS: Mapping[str, Callable[[Broker, Tools, Sequence[str]], list[Found]]] = {
    "confluent-kafka": seen_by_confluent,
    "kafka-python": seen_by_kafka_python,
    "aiokafka": seen_by_aiokafka,
    "kafkajs": seen_by_kafkajs,
    "scriba": seen_by_scriba,
    "java": seen_by_java,
}


@pytest.fixture(scope="module")
def committed(
    swift: Broker, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    """By group, what was committed."""
    with Connection(swift.port) as connection:
        create_topic(connection, TOPIC)
        data = batch([b"x"] * RECORDS).encode()
        assert produced(connection.call(produce(data, TOPIC), 9)).error_code == 0
    found: dict[str, Found] = {}
    for offset, (name, commit) in enumerate(COMMITTERS.items(), 1):
        commit(swift, f"by-{name}", offset)
        found[f"by-{name}"] = (offset, REMARK)
    plan: Path = tmp_path_factory.mktemp("plan") / "plan.csv"
    plan.write_text(f"{TOPIC},0,{len(COMMITTERS) + 1}\n")
    to = ["--bootstrap-server", swift.bootstrap, "--group", "by-java", "--execute"]
    tools.run("consumer-groups", *to, "--reset-offsets", "--from-file", str(plan)).ok()
    found["by-java"] = (len(COMMITTERS) + 1, "")
    return found


@pytest.mark.parametrize("reader", READERS)
def test_what_anyone_committed_everyone_reads(
    swift: Broker, tools: Tools, committed: dict[str, Found], reader: str
) -> None:
    seen = READERS[reader](swift, tools, list(committed))
    for (group, (offset, remark)), (found, told) in zip(committed.items(), seen, strict=True):
        assert found == offset, group
        if told is not None:
            beyond = len(remark or "") if reader == "confluent-kafka" else len(told)
            # It also committed the zero behind its text as part of it.
            assert told[:beyond].rstrip("\0") == remark, group
