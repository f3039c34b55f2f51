"""Transactions of our producer, in both generations, against brokers of both kinds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from scriba.client import (
    AbortableTransactionError,
    Admin,
    Consumer,
    ConsumerGroupMetadata,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    SyncConsumer,
    SyncProducer,
    TopicPartition,
    TransactionError,
    TransactionStateError,
    UpgradeType,
)
from tests.typed import present
from tools.kafka.broker_fixtures import BACK_SOON
from tools.kafka.brokers import TESTED, Broker, running

T = TypeVar("T")

FEATURE = "transaction.version"

Offsets = dict[tuple[str, int], int | OffsetAndMetadata]


async def becomes(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    for _ in range(30_000):
        if await ask() == wanted:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never became {wanted!r}")


async def level_is(bootstrap: str, level: int | None) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:

        async def now() -> int | None:
            return (await admin.describe_features())[FEATURE].finalized

        await becomes(now, level)


@pytest.fixture(params=[2, 1], ids=["second-generation", "first-generation"])
async def generation(request: pytest.FixtureRequest, broker: Broker) -> AsyncIterator[int]:
    """The protocol of the test; afterwards the broker is in the newer one again."""
    if request.param == 1:
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.update_features({FEATURE: 0}, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
        await level_is(broker.bootstrap, None)
    yield request.param
    if request.param == 1:
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.update_features({FEATURE: 2})
        await level_is(broker.bootstrap, 2)


@pytest.fixture
async def partitioned(broker: Broker, topic: str) -> str:
    """A topic with two partitions."""
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2)])
    return topic


def producer(broker: Broker, name: str, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=broker.bootstrap, transactional_id=name, **settings)


class Regret(Exception):
    """What makes a test's transaction end badly."""


async def regretted(
    p: Producer, topic: str, value: bytes, *partitions: int, offsets: Offsets | None = None
) -> None:
    async with p.transaction() as transaction:
        for partition in partitions:
            await p.send(topic, value, partition=partition)
        await p.enqueue(topic, value, partition=0)
        if offsets is not None:
            await transaction.send_offsets(offsets, f"{topic}-group")
        raise Regret


async def committed(broker: Broker, topic: str) -> list[bytes]:
    """What read_committed sees up to the end, for which no transaction may be open."""
    return await everything(broker, topic, "read_committed")


Isolation = Literal["read_uncommitted", "read_committed"]


async def everything(
    broker: Broker, topic: str, isolation: Isolation = "read_uncommitted"
) -> list[bytes]:
    values: list[bytes] = []
    async with (
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        Consumer(
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level=isolation,
        ) as consumer,
    ):
        partitions = await consumer.partitions(topic)
        consumer.assign(partitions)

        async def nothing_open() -> bool:
            found = await admin.describe_producers(partitions)
            return all(p.transaction_start_offset is None for ps in found.values() for p in ps)

        if isolation == "read_committed":
            await becomes(nothing_open, True)
        async with asyncio.timeout(300):
            for where, end in (await consumer.end_offsets(partitions)).items():
                while await consumer.position(where) < end:
                    values += [present(record.value) for record in await consumer.poll(100)]
    return sorted(values)


# -- visibility ----------------------------------------------------------------------------------


async def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    broker: Broker, partitioned: str, generation: int
) -> None:
    async with producer(broker, partitioned) as p:
        for n in range(3):
            async with p.transaction():
                for partition in (0, 1):
                    await p.enqueue(partitioned, b"yes %d" % n, partition=partition)
            with pytest.raises(Regret):
                await regretted(p, partitioned, b"no %d" % n, n % 2)
        async with p.transaction():
            pass  # nothing in it, nothing to ask
    seen = await committed(broker, partitioned)
    assert seen == sorted([b"yes %d" % n for n in range(3)] * 2)
    assert {b"no 0", b"no 1", b"no 2"} <= set(await everything(broker, partitioned))


async def test_an_open_transaction_is_not_seen_until_it_is_committed(
    broker: Broker, partitioned: str, generation: int
) -> None:
    async with (
        producer(broker, partitioned) as p,
        Consumer(
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
    ):
        where = TopicPartition(partitioned, 0)
        consumer.assign([where])
        await p.begin_transaction()
        await p.send(partitioned, b"1", partition=0)
        async with Producer(bootstrap_servers=broker.bootstrap) as plain:
            await plain.send(partitioned, b"2", partition=0)
        assert await consumer.end_offsets([where]) == {where: 0}
        assert await consumer.poll(50) == []
        await p.commit_transaction()
        seen: list[ConsumerRecord[Any, Any]] = []
        async with asyncio.timeout(300):
            while len(seen) < 2:
                seen += await consumer.poll(1000)
        assert [record.value for record in seen] == [b"1", b"2"]


async def test_many_large_transactions_keep_their_order(
    broker: Broker, partitioned: str, generation: int
) -> None:
    async with producer(broker, partitioned, batch_size=500, linger_ms=0) as p:
        for n in range(5):
            async with p.transaction():
                for k in range(100):
                    await p.enqueue(partitioned, b"%03d" % (100 * n + k), partition=k % 2)
    assert await committed(broker, partitioned) == [b"%03d" % n for n in range(500)]


# -- offsets -------------------------------------------------------------------------------------


async def test_offsets_go_with_the_transaction(
    broker: Broker, partitioned: str, generation: int
) -> None:
    group = f"{partitioned}-group"
    async with (
        producer(broker, partitioned) as p,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):

        async def settle_at(wanted: dict[tuple[str, int], OffsetAndMetadata]) -> None:
            """Kafka answers the end of a transaction before its offsets show in a full list."""
            async with asyncio.timeout(300):
                while True:
                    if await admin.list_group_offsets(group, require_stable=True) == wanted:
                        return
                    await asyncio.sleep(0.02)

        async with p.transaction() as transaction:
            await transaction.send_offsets({(partitioned, 0): 3}, group)
        await settle_at({(partitioned, 0): OffsetAndMetadata(3)})
        both: Offsets = {(partitioned, 0): 9, (partitioned, 1): 9}
        with pytest.raises(Regret):
            await regretted(p, partitioned, b"no", 1, offsets=both)
        await settle_at({(partitioned, 0): OffsetAndMetadata(3)})
        place = OffsetAndMetadata(7, "remark", 0)
        async with p.transaction() as transaction:
            await p.send(partitioned, b"y", partition=1)
            await transaction.send_offsets({(partitioned, 0): 5}, ConsumerGroupMetadata(group))
            await transaction.send_offsets({(partitioned, 1): place}, group)
        await settle_at({(partitioned, 0): OffsetAndMetadata(5), (partitioned, 1): place})
    assert await committed(broker, partitioned) == [b"y"]


async def test_a_member_that_the_group_does_not_know_cannot_commit_and_the_rest_is_aborted(
    broker: Broker, partitioned: str, generation: int
) -> None:
    stranger = ConsumerGroupMetadata(f"{partitioned}-group", 5, "stranger")
    async with producer(broker, partitioned) as p:
        with pytest.raises(AbortableTransactionError):
            async with p.transaction() as transaction:
                await transaction.send_offsets({(partitioned, 0): 1}, stranger)
        async with p.transaction():
            await p.send(partitioned, b"yes", partition=0)
    assert await committed(broker, partitioned) == [b"yes"]


# -- fencing and time ----------------------------------------------------------------------------


async def test_a_zombie_is_fenced_and_what_it_wrote_is_never_seen(
    broker: Broker, partitioned: str, generation: int
) -> None:
    zombie = producer(broker, partitioned)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send(partitioned, b"zombie", partition=0)
    async with producer(broker, partitioned) as p:
        with pytest.raises(TransactionError):
            await zombie.send(partitioned, b"zombie", partition=1)
        with pytest.raises(TransactionError):
            await zombie.commit_transaction()
        with pytest.raises(ProducerFenced):
            await zombie.abort_transaction()
        with pytest.raises(ProducerFenced):
            await zombie.begin_transaction()
        await zombie.close()
        async with p.transaction():
            await p.send(partitioned, b"alive", partition=0)
    assert await committed(broker, partitioned) == [b"alive"]


async def test_a_zombie_that_only_commits_is_fenced_too(
    broker: Broker, partitioned: str, generation: int
) -> None:
    async with producer(broker, partitioned) as zombie:
        await zombie.begin_transaction()
        await zombie.send(partitioned, b"zombie", partition=0)
        async with producer(broker, partitioned):
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
    assert await committed(broker, partitioned) == []


async def test_a_transaction_that_takes_too_long_is_aborted_for_it(
    own_broker: Broker, topic: str
) -> None:
    async with (
        producer(own_broker, topic, transaction_timeout_ms=300) as p,
        Admin(bootstrap_servers=own_broker.bootstrap) as admin,
    ):
        await p.begin_transaction()
        await p.send(topic, b"late")

        async def state() -> str:
            return (await admin.describe_transactions([topic]))[topic].state

        await becomes(state, "CompleteAbort")
        with pytest.raises(ProducerFenced):
            await p.commit_transaction()
    async with producer(own_broker, topic) as p, p.transaction():
        await p.send(topic, b"in time")
    assert await committed(own_broker, topic) == [b"in time"]


# -- a broker that dies --------------------------------------------------------------------------

QUICK = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    **BACK_SOON,
}


@pytest.fixture
def own_broker(broker: Broker, tmp_path: Path) -> Iterator[Broker]:
    """A broker of the same kind for one test alone, which may kill it."""
    kind = next(kind for kind in TESTED.values() if isinstance(broker, kind))
    with running(kind(tmp_path / "own", QUICK)) as own:
        yield own


async def test_a_transaction_outlives_its_broker(own_broker: Broker, topic: str) -> None:
    """kill -9 before the commit, and again while one is under way: all of it, nothing twice."""
    async with producer(own_broker, topic, retry_backoff_ms=20, linger_ms=0) as p:
        async with p.transaction():
            await p.send(topic, b"before")
        await p.begin_transaction()
        await p.send(topic, b"across 1")
        own_broker.kill()
        rest = asyncio.ensure_future(p.enqueue(topic, b"across 2"))
        await asyncio.to_thread(own_broker.start)
        await rest
        await p.commit_transaction()
        await p.begin_transaction()
        await p.send(topic, b"after")
        ending = asyncio.ensure_future(p.commit_transaction())
        await asyncio.sleep(0)  # it is on its way
        own_broker.kill()
        await asyncio.to_thread(own_broker.start)
        await ending
    assert await committed(own_broker, topic) == [b"across 1", b"across 2", b"after", b"before"]


async def test_a_transaction_whose_producer_died_is_ended_by_the_next_one(
    own_broker: Broker, topic: str
) -> None:
    lost = producer(own_broker, topic)
    await lost.start()
    await lost.begin_transaction()
    await lost.send(topic, b"lost")
    await lost._cluster.close()  # as if the process had gone: nothing is said
    own_broker.kill()
    await asyncio.to_thread(own_broker.start)
    async with producer(own_broker, topic) as p, p.transaction():
        await p.send(topic, b"found")
    assert await committed(own_broker, topic) == [b"found"]


# -- misuse --------------------------------------------------------------------------------------


async def test_calls_in_the_wrong_order_say_so_and_harm_nothing(
    broker: Broker, partitioned: str
) -> None:
    async with Producer(bootstrap_servers=broker.bootstrap) as plain:
        with pytest.raises(TransactionStateError, match="transactional_id"):
            await plain.begin_transaction()
    async with producer(broker, partitioned) as p:
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            await p.send(partitioned, b"outside")
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            p.send_nowait(partitioned, b"outside")
        with pytest.raises(TransactionStateError):
            await p.commit_transaction()
        async with p.transaction():
            with pytest.raises(TransactionStateError, match="open transaction"):
                await p.begin_transaction()
            await p.send(partitioned, b"inside")
    assert await committed(broker, partitioned) == [b"inside"]


async def test_closing_aborts_what_is_open(broker: Broker, partitioned: str) -> None:
    async with producer(broker, partitioned) as p:
        await p.begin_transaction()
        await p.send(partitioned, b"open")
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:

        async def state() -> str:
            return (await admin.describe_transactions([partitioned]))[partitioned].state

        await becomes(state, "CompleteAbort")


async def test_a_record_that_is_refused_spoils_its_transaction_and_no_other(
    broker: Broker, partitioned: str, generation: int
) -> None:
    async with producer(broker, partitioned, max_request_size=5_000_000) as p:
        with pytest.raises(AbortableTransactionError, match="MESSAGE_TOO_LARGE"):
            async with p.transaction():
                await p.send(partitioned, b"x" * 2_000_000, partition=0)
        with pytest.raises(AbortableTransactionError, match="MESSAGE_TOO_LARGE"):
            async with p.transaction():  # noticed at the end
                await p.enqueue(partitioned, b"x" * 2_000_000, partition=0)
        async with p.transaction():
            await p.send(partitioned, b"yes", partition=0)
    assert await committed(broker, partitioned) == [b"yes"]


# -- without an event loop -----------------------------------------------------------------------


def test_the_synchronous_face_has_transactions_too(broker: Broker, topic: str) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as p:
        with p.transaction() as transaction:
            p.send(topic, b"1")
            p.send_nowait(topic, b"2")
            transaction.send_offsets({(topic, 0): 2}, topic)
        p.begin_transaction()
        p.send_nowait(topic, b"3")
        p.abort_transaction()
        p.begin_transaction()
        p.send(topic, b"4")
        p.commit_transaction()
    with SyncConsumer(
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign(consumer.partitions(topic))
        seen = [next(consumer).value for _ in range(3)]
    assert seen == [b"1", b"2", b"4"]
