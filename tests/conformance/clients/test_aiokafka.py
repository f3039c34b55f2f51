"""aiokafka, which speaks older versions of most requests: Produce 7, Fetch 11 and the like."""

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import T0


async def read(cluster: Broker, topic: str, count: int, offset: int = 0) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek(part, offset)
        return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec(cluster: Broker, topic: str, codec: str | None) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        compression_type=codec,
        enable_idempotence=codec == "lz4",
        linger_ms=20,
    )
    await producer.start()
    try:
        sent = [
            await producer.send(topic, b"%d " % n * 30, key=b"k", partition=0, timestamp_ms=T0 + n)
            for n in range(100)
        ]
        assert [(await done).offset for done in sent] == list(range(100))
    finally:
        await producer.stop()
    taken = await read(cluster, topic, 60, offset=40)
    assert [record.value for record in taken] == [b"%d " % n * 30 for n in range(40, 100)]
    assert [record.timestamp for record in taken] == [T0 + n for n in range(40, 100)]


async def test_offsets_and_topics(cluster: Broker, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    assert topic in await admin.list_topics()
    (described,) = await admin.describe_topics([topic])
    assert len(described["partitions"]) == 2
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)
    await producer.start()
    await consumer.start()
    try:
        for n in range(10):
            await producer.send_and_wait(topic, b"x", partition=1, timestamp_ms=T0 + n * 1000)
        part = TopicPartition(topic, 1)
        consumer.assign([part])
        assert await consumer.beginning_offsets([part]) == {part: 0}
        assert await consumer.end_offsets([part]) == {part: 10}
        found = await consumer.offsets_for_times({part: T0 + 4500})
        assert found[part].offset == 5
    finally:
        await consumer.stop()
        await producer.stop()
        await admin.delete_topics([topic])
        await admin.close()
