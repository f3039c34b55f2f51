"""Our clients against live brokers of both kinds, and against other people's clients."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer as ForeignProducer
from confluent_kafka import TopicPartition as ForeignPartition

from scriba.client import (
    ALL_RECORDS,
    Admin,
    BrokerError,
    ConfigOp,
    ConfigResource,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetError,
    OffsetSpec,
    PartlyFailed,
    Producer,
    TimedOut,
    TopicPartition,
)
from scriba.errors import ErrorCode
from tools.kafka.brokers import Broker

T = TypeVar("T")

T0 = 1_700_000_000_000


async def becomes(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Waits for it: metadata spreads after the answer to the change that made it."""
    for _ in range(30_000):
        if await ask() == wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never became {wanted!r}")


async def read(
    broker: Broker, topic: str, count: int, **settings: Any
) -> list[ConsumerRecord[Any, Any]]:
    taken: list[ConsumerRecord[Any, Any]] = []
    async with Consumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", **settings
    ) as consumer:
        consumer.assign(await consumer.partitions(topic))
        async with asyncio.timeout(300):
            while len(taken) < count:
                taken += await consumer.poll(1000)
    return taken


Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_sent_comes_back(broker: Broker, topic: str, codec: Compression) -> None:
    async with Producer(
        bootstrap_servers=broker.bootstrap, compression_type=codec, value_serializer="str"
    ) as producer:
        deliveries = [
            await producer.enqueue(
                topic,
                f"value {n} " * 20,
                b"key" if n % 2 else None,
                timestamp=T0 + n,
                headers=[("h", b"%d" % n), ("h", None)],
            )
            for n in range(500)
        ]
        assert [(await d).offset for d in deliveries] == list(range(500))
    taken = await read(broker, topic, 500, value_deserializer="str")
    assert [r.offset for r in taken] == list(range(500))
    assert [r.value for r in taken] == [f"value {n} " * 20 for n in range(500)]
    assert [r.timestamp for r in taken] == [T0 + n for n in range(500)]
    assert taken[7].key == b"key"
    assert tuple(taken[7].headers) == (("h", b"7"), ("h", None))


async def test_nulls_empties_and_large_records(broker: Broker, topic: str) -> None:
    values = [None, b"", b"x" * 900_000]
    async with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for value in values:
            await producer.send(topic, value, b"")
        with pytest.raises(BrokerError) as caught:
            async with Producer(
                bootstrap_servers=broker.bootstrap, max_request_size=5_000_000
            ) as large:
                await large.send(topic, b"x" * 2_000_000)
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    taken = await read(broker, topic, 3)
    assert [r.value for r in taken] == values
    assert [r.key for r in taken] == [b"", b"", b""]


async def test_positions_by_offset_time_and_name(broker: Broker, topic: str) -> None:
    where = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        for n in range(10):
            await producer.send(topic, b"%d" % n, timestamp=T0 + 1000 * n)
    async with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([where])
        consumer.seek(where, 4)
        first = (await consumer.poll(30_000))[0]
        assert (first.offset, first.value) == (4, b"4")
        assert consumer.lag(where) == 0
        consumer.seek_to_time(T0 + 6500, where)
        assert (await consumer.poll(30_000))[0].offset == 7
        consumer.seek_to_end()
        assert await consumer.position(where) == 10
        consumer.seek(where, 11)
        with pytest.raises(OffsetError):
            await consumer.poll(30_000)
        assert await consumer.end_offsets([where]) == {where: 10}
        assert await consumer.beginning_offsets([where]) == {where: 0}
        found = await consumer.offsets_for_times({where: T0 + 1})
        assert found[where] == (1, T0 + 1000, 0)


async def test_a_waiting_consumer_gets_records_as_they_are_sent(broker: Broker, topic: str) -> None:
    async with (
        Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer,
        Consumer(bootstrap_servers=broker.bootstrap) as consumer,
    ):
        await producer.send(topic, b"before")
        consumer.assign([(topic, 0)])
        assert await consumer.position((topic, 0)) == 1
        for n in range(20):
            await producer.send(topic, b"%d" % n)
            async with asyncio.timeout(300):
                assert (await anext(consumer)).value == b"%d" % n


async def test_keys_go_where_other_clients_put_them(broker: Broker, topic: str) -> None:
    keys = [b"key-%d" % n for n in range(60)]
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions=7)])
    async with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for key in keys:
            await producer.enqueue(topic, b"ours", key)
    foreign = ForeignProducer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys:
        foreign.produce(topic, b"theirs", key)
    await asyncio.to_thread(foreign.flush, 30)
    homes: dict[bytes, set[int]] = {}
    for record in await read(broker, topic, 120):
        homes.setdefault(record.key, set()).add(record.partition)
    assert len(homes) == 60
    assert all(len(partitions) == 1 for partitions in homes.values())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_we_write_others_read_and_the_other_way_round(
    broker: Broker, topic: str, codec: Compression
) -> None:
    foreign = ForeignProducer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 20}
    )
    for n in range(100):
        foreign.produce(topic, b"theirs %d" % n, partition=0, headers=[("h", b"1")])
    await asyncio.to_thread(foreign.flush, 30)
    async with Producer(bootstrap_servers=broker.bootstrap, compression_type=codec) as producer:
        for n in range(100):
            await producer.enqueue(topic, b"ours %d" % n, headers={"h": b"1"})
    expected = [b"theirs %d" % n for n in range(100)] + [b"ours %d" % n for n in range(100)]
    ours = await read(broker, topic, 200)
    assert [r.value for r in ours] == expected
    assert all(tuple(r.headers) == (("h", b"1"),) for r in ours)

    def read_foreign() -> list[bytes]:
        consumer = ForeignConsumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "x",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([ForeignPartition(topic, 0, 0)])
        taken: list[bytes] = []
        while len(taken) < 200:
            taken += [m.value() or b"" for m in consumer.consume(200, 1) if not m.error()]
        consumer.close()
        return taken

    assert await asyncio.to_thread(read_foreign) == expected


async def test_admin_of_topics(broker: Broker, topic: str) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        new = NewTopic(topic, partitions=3, configs={"retention.ms": "100000"})
        await admin.create_topics([new], validate_only=True)
        made = (await admin.create_topics([new]))[topic]
        assert (made.partitions, made.replication_factor) == (3, 1)
        assert made.configs["retention.ms"] == "100000"
        with pytest.raises(BrokerError) as caught:
            await admin.create_topics([new])
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        with pytest.raises(PartlyFailed) as several:
            await admin.create_topics([new, NewTopic(f"{topic}-2", 1)])
        assert list(several.value.errors) == [topic]
        assert list(several.value.results) == [f"{topic}-2"]
        described = (await admin.describe_topics([topic]))[topic]
        assert described.id == made.id
        assert [p.partition for p in described.partitions] == [0, 1, 2]
        assert all(p.leader in p.isr for p in described.partitions)

        async def count() -> int:
            return len((await admin.describe_topics([topic]))[topic].partitions)

        await admin.create_partitions({topic: 5})
        await becomes(count, 5)
        with pytest.raises(BrokerError) as fewer:
            await admin.create_partitions({topic: 2})
        assert fewer.value.code == ErrorCode.INVALID_PARTITIONS
        assert topic in [listing.name for listing in await admin.list_topics()]
        await admin.delete_topics([topic, f"{topic}-2"])
        with pytest.raises(BrokerError) as gone:
            await admin.delete_topics([topic])
        assert gone.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(TimedOut, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.list_offsets({("no-such-topic", 0): OffsetSpec.LATEST}, timeout_ms=300)


async def test_admin_of_records_and_offsets(broker: Broker, topic: str) -> None:
    where = TopicPartition(topic, 0)
    async with (
        Producer(bootstrap_servers=broker.bootstrap) as producer,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        for n in range(10):
            await producer.enqueue(topic, b"x", timestamp=T0 + n)
        await producer.flush()
        places = {
            OffsetSpec.EARLIEST: 0,
            OffsetSpec.LATEST: 10,
            OffsetSpec.MAX_TIMESTAMP: 9,
            T0 + 4: 4,
        }
        for spec, offset in places.items():
            found = (await admin.list_offsets({where: spec}))[where]
            assert found is not None
            assert found.offset == offset
        assert (await admin.list_offsets({where: T0 + 99}))[where] is None
        [active] = (await admin.describe_producers([where]))[where]
        assert (active.last_sequence, active.transaction_start_offset) == (9, None)
        assert await admin.delete_records({where: 4}) == {where: 4}
        assert await admin.delete_records({where: ALL_RECORDS}) == {where: 10}
        with pytest.raises(BrokerError) as caught:
            await admin.delete_records({where: 99})
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_admin_of_configurations(broker: Broker, topic: str) -> None:
    resource = ConfigResource.topic(topic)
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1)])

        async def own() -> dict[str, str]:
            entries = (await admin.describe_configs([resource]))[resource]
            return {name: e.value or "" for name, e in entries.items() if e.source == 1}

        await admin.alter_configs({resource: {"retention.ms": "5000", "segment.ms": "9000"}})
        await becomes(own, {"retention.ms": "5000", "segment.ms": "9000"})
        await admin.incremental_alter_configs(
            {resource: [("segment.ms", ConfigOp.DELETE, None), ("flush.ms", ConfigOp.SET, "7")]}
        )
        await becomes(own, {"retention.ms": "5000", "flush.ms": "7"})
        await admin.replace_configs({resource: {"retention.ms": "6000"}})
        await becomes(own, {"retention.ms": "6000"})
        with pytest.raises(BrokerError) as caught:
            await admin.alter_configs({resource: {"retention.ms": "soon"}})
        assert caught.value.code == ErrorCode.INVALID_CONFIG
        entry = (
            await admin.describe_configs([resource], names=["retention.ms"], documentation=True)
        )[resource]["retention.ms"]
        assert entry.documentation
        assert entry.synonyms[0].value == "6000"
        node = (await admin.describe_cluster()).nodes[0].id
        of_broker = ConfigResource.broker(node)
        assert "log.dirs" in (await admin.describe_configs([of_broker]))[of_broker]


async def test_admin_of_the_cluster(broker: Broker, topic: str) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1)])
        cluster = await admin.describe_cluster()
        [node] = cluster.nodes
        assert f"{node.host}:{node.port}" == broker.bootstrap

        async def has_replica() -> bool:
            [directory] = (await admin.describe_log_dirs())[node.id]
            assert directory.total_bytes
            return (topic, 0) in directory.replicas

        await becomes(has_replica, True)
        assert (await admin.describe_features())["metadata.version"].finalized
        with pytest.raises(BrokerError):
            await admin.update_features({"metadata.version": 1})
        quorum = await admin.describe_quorum()
        assert quorum.leader in [voter.id for voter in quorum.voters]
        assert ConfigResource.topic(topic) in await admin.list_config_resources()
