"""What an operator asks of groups and transactions, against brokers of both kinds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from scriba.client import (
    Admin,
    BrokerError,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    PartlyFailed,
    Producer,
    ProducerFenced,
    TopicPartition,
)
from scriba.errors import ErrorCode
from tools.kafka.brokers import Broker

Protocol = Literal["classic", "consumer"]


@asynccontextmanager
async def member(
    broker: Broker, topic: str, group: str, protocol: Protocol
) -> AsyncIterator[Consumer]:
    """A consumer that has got its partitions, and polls on."""
    async with Consumer(
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        group_protocol=protocol,
        client_id="reader",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(topic)
        async with asyncio.timeout(300):
            while not consumer.assignment():
                await consumer.poll(100)
        yield consumer


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_is_listed_described_and_deleted(
    broker: Broker, topic: str, protocol: Protocol
) -> None:
    group = f"{topic}-{protocol}"
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2)])
        async with member(broker, topic, group, protocol):
            [listed] = [g for g in await admin.list_groups() if g.group_id == group]
            assert (listed.type, listed.state) == (protocol, "Stable")
            assert listed in await admin.list_groups(states=["Stable"], types=[protocol])
            assert listed not in await admin.list_groups(states=["Empty"])
            described = (await admin.describe_groups([group]))[group]
            assert (described.type, described.state) == (protocol, "Stable")
            assert described.assignor == ("range" if protocol == "classic" else "uniform")
            [only] = described.members
            assert only.client_id == "reader"
            assert only.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
            assert only.target is None
            with pytest.raises(BrokerError) as busy:
                await admin.delete_groups([group])
            assert busy.value.code is ErrorCode.NON_EMPTY_GROUP
            with pytest.raises(BrokerError) as stranger:
                await admin.alter_group_offsets(group, {(topic, 0): 0})
            assert stranger.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await admin.describe_groups([group]))[group].members == ()
        await admin.delete_groups([group])
        with pytest.raises(BrokerError) as gone:
            await admin.describe_groups([group])
        assert gone.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_of_a_group_without_members(broker: Broker, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2)])
        assert await admin.list_group_offsets(topic) == {}
        place = OffsetAndMetadata(9, "remark", 0)
        await admin.alter_group_offsets(topic, {first: 4, second: place})
        assert await admin.list_group_offsets(topic) == {first: OffsetAndMetadata(4), second: place}
        assert await admin.list_group_offsets(topic, [second]) == {second: place}
        await admin.delete_group_offsets(topic, [first])
        assert await admin.list_group_offsets(topic) == {second: place}
        with pytest.raises(PartlyFailed) as some:
            await admin.delete_groups([topic, f"{topic}-none"])
        assert list(some.value.errors) == [f"{topic}-none"]
        assert await admin.list_group_offsets(topic) == {}
        with pytest.raises(BrokerError) as missing:
            await admin.alter_group_offsets(topic, {(f"{topic}-none", 0): 1}, timeout_ms=5000)
        assert missing.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_producer_is_fenced_by_hand_and_its_transaction_aborted(
    broker: Broker, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    async with (
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer,
    ):
        await admin.create_topics([NewTopic(topic, 1)])
        await producer.begin_transaction()
        await producer.send(topic, b"open")
        [listed] = await admin.list_transactions(pattern=topic)
        assert (listed.transactional_id, listed.state) == (topic, "Ongoing")
        assert await admin.list_transactions(pattern=topic, states=["Empty"]) == []
        assert await admin.list_transactions(producer_ids=[listed.producer_id]) == [listed]
        described = (await admin.describe_transactions([topic]))[topic]
        assert described.partitions == (where,)
        assert described.timeout_ms == 60_000
        assert described.start_ms is not None
        [active] = (await admin.describe_producers([where]))[where]
        assert active.producer_id == listed.producer_id == described.producer_id
        assert active.transaction_start_offset == 0
        fenced = await admin.fence_producers([topic])
        assert fenced[topic][1] > described.producer_epoch
        [after] = (await admin.describe_producers([where]))[where]
        assert after.transaction_start_offset is None
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
        with pytest.raises(BrokerError) as unknown:
            await admin.describe_transactions([f"{topic}-none"])
        assert unknown.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_marker_written_by_hand_ends_a_transaction_in_one_partition(
    broker: Broker, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    async with (
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer,
    ):
        async with producer.transaction():
            await producer.send(topic, b"done")
        await producer.begin_transaction()
        await producer.send(topic, b"open")
        [active] = (await admin.describe_producers([where]))[where]
        await admin.abort_transaction(
            where, active.producer_id, active.producer_epoch, active.coordinator_epoch
        )
        [after] = (await admin.describe_producers([where]))[where]
        assert after.transaction_start_offset is None
        with pytest.raises(BrokerError) as old:
            await admin.abort_transaction(where, active.producer_id, active.producer_epoch - 1)
        assert old.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
