"""Groups of our own consumers, against brokers of both kinds."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from scriba.client import (
    Admin,
    BrokerError,
    ClientError,
    ConfigResource,
    Consumer,
    OffsetAndMetadata,
    OffsetError,
    ResourceType,
    SyncConsumer,
    TopicPartition,
)
from scriba.errors import ErrorCode
from tests.integration.client.members import QUICK, STRATEGIES, create, fill, member, numbers
from tools.kafka.brokers import Broker

PROTOCOLS = ["classic", "consumer"]
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}

DYING = """
import sys
from scriba.client import SyncConsumer
address, group, topic, protocol = sys.argv[1:]
quick = {"heartbeat_interval_ms": 100, "session_timeout_ms": 1000} if protocol == "classic" else {}
consumer = SyncConsumer(bootstrap_servers=address, group_id=group, group_protocol=protocol, **quick)
consumer.subscribe(topic)
while not consumer.assignment():
    consumer.poll(50)
print("here", flush=True)
while True:
    consumer.poll(50)
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_two_members_share_and_one_that_leaves_is_replaced(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 4)
    await fill(quick_broker, topic, 4, 100)
    async with member(quick_broker, topic, topic, group_protocol=protocol) as first:
        await first.has(0, 1, 2, 3)
        await first.until(lambda: len(first.seen) == 100)
        async with member(quick_broker, topic, topic, group_protocol=protocol) as second:
            await first.has_some(2)
            await second.has_some(2)
            theirs = second.consumer.assignment()
            await fill(quick_broker, topic, 4, 100, first=100)
            await first.until(lambda: len(first.seen) == 150)
            await second.until(lambda: len(second.seen) == 50)
        await first.has(0, 1, 2, 3)
        await fill(quick_broker, topic, 4, 100, first=200)
        await first.until(lambda: len(first.seen) == 250)
        assert numbers(first, second) == list(range(300)), "nothing twice, nothing left out"
        assert not first.happened("lost")
        assert second.happened("revoked") == theirs


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_that_is_killed_is_missed_when_its_session_ends(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 2)
    async with Admin(bootstrap_servers=quick_broker.bootstrap) as admin:
        group = ConfigResource(ResourceType.GROUP, topic)
        await admin.alter_configs({group: {"consumer.session.timeout.ms": "2000"}})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", DYING, quick_broker.bootstrap, topic, topic, protocol),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"here\n"
    async with member(quick_broker, topic, topic, group_protocol=protocol) as survivor:
        await survivor.has_some(1)
        process.kill()
        await process.wait()
        await survivor.has(0, 1)


async def test_a_cooperative_member_keeps_what_stays(quick_broker: Broker, topic: str) -> None:
    await create(quick_broker, topic, 4)
    async with member(quick_broker, topic, topic, **COOPERATIVE) as first:
        await first.has(0, 1, 2, 3)
        async with member(quick_broker, topic, topic, **COOPERATIVE) as second:
            await second.has_some(2)
            await first.has_some(2)
            moved = second.consumer.assignment()
            assert first.happened("revoked") == moved, "only what moved was given up"
        await first.has(0, 1, 2, 3)
        assert first.happened("revoked") == moved
        assert sorted(first.happened("assigned")[4:]) == moved


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_every_assignor_shares_out_by_agreement(
    quick_broker: Broker, topic: str, strategy: str
) -> None:
    await create(quick_broker, topic, 3)
    chosen: dict[str, Any] = {"partition_assignment_strategy": strategy}
    async with (
        member(quick_broker, topic, topic, **chosen) as first,
        member(quick_broker, topic, topic, **chosen) as second,
    ):
        await first.until(
            lambda: (
                len(first.consumer.assignment()) + len(second.consumer.assignment()) == 3
                and first.consumer.assignment()
                and second.consumer.assignment()
            )
        )
        assert not set(first.consumer.assignment()) & set(second.consumer.assignment())


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_static_member_that_restarts_finds_its_partitions_without_a_rebalance(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 2)
    static: dict[str, Any] = {"group_protocol": protocol, "group_instance_id": "one"}
    async with member(quick_broker, topic, topic, group_protocol=protocol) as other:
        async with member(quick_broker, topic, topic, **static) as before:
            await before.has_some(1)
            await other.has_some(1)
            mine = before.consumer.assignment()
            told = list(other.events)
        async with member(quick_broker, topic, topic, **static) as after:
            await after.until(after.consumer.assignment)
            assert after.consumer.assignment() == mine
            after_id = after.consumer.group_metadata().group_instance_id
            assert after_id == "one"
        assert other.events == told, "the other one noticed nothing"


async def test_a_second_member_of_the_same_static_name_takes_over(
    quick_broker: Broker, topic: str
) -> None:
    await create(quick_broker, topic, 1)
    async with member(quick_broker, topic, topic, group_instance_id="one") as old:
        await old.has(0)
        async with member(quick_broker, topic, topic, group_instance_id="one") as new:
            await new.has(0)
            with pytest.raises(BrokerError) as caught:
                await old.until(lambda: False)
            assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_pattern_takes_in_a_topic_that_is_created_later(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, f"{topic}-a", 1)
    await create(quick_broker, f"other-{topic}-a", 1)
    pattern = f"{topic}-[a-c]"
    async with member(quick_broker, topic, pattern=pattern, group_protocol=protocol) as reader:
        await reader.until(lambda: reader.consumer.subscription() == {f"{topic}-a"})
        await create(quick_broker, f"{topic}-b", 1)
        await reader.until(lambda: reader.consumer.subscription() == {f"{topic}-a", f"{topic}-b"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_added_partitions_are_shared_out(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 1)
    async with member(quick_broker, topic, topic, group_protocol=protocol) as reader:
        await reader.has(0)
        async with Admin(bootstrap_servers=quick_broker.bootstrap) as admin:
            await admin.create_partitions({topic: 3})
        await reader.has(0, 1, 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_member_that_does_not_poll_leaves_and_comes_back(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 2)
    slow: dict[str, Any] = {"group_protocol": protocol, "max_poll_interval_ms": 1000}
    async with member(quick_broker, topic, topic, **slow) as sleeper:
        await sleeper.has(0, 1)
        await sleeper.stop()
        async with member(quick_broker, topic, topic, group_protocol=protocol) as other:
            await other.has(0, 1)
            assert len(sleeper.consumer.assignment()) == 2, "it does not know yet"
            with pytest.raises(BrokerError) as refused:
                await sleeper.consumer.commit({(topic, 0): 1})
            assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
            sleeper.go()
            await sleeper.until(lambda: len(sleeper.happened("lost")) == 2)
            await sleeper.has_some(1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_subscription_can_change_and_end(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, f"{topic}-a", 1)
    await create(quick_broker, f"{topic}-b", 1)
    async with member(quick_broker, topic, f"{topic}-a", group_protocol=protocol) as reader:
        consumer = reader.consumer
        await reader.until(lambda: consumer.assignment() == [(f"{topic}-a", 0)])
        with pytest.raises(ClientError, match="unsubscribe first"):
            consumer.assign([(f"{topic}-a", 0)])
        consumer.subscribe([f"{topic}-b"], on_revoked=reader.callbacks()["on_revoked"])
        await reader.until(lambda: consumer.assignment() == [(f"{topic}-b", 0)])
        await reader.stop()
        await consumer.unsubscribe()
        assert consumer.assignment() == []
        assert (f"{topic}-b", 0) in reader.happened("revoked")
        consumer.assign([(f"{topic}-a", 0)])
        assert await consumer.position((f"{topic}-a", 0)) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_automatic_commits_resume_exactly(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 3)
    await fill(quick_broker, topic, 3, 300)
    settings: dict[str, Any] = {
        "bootstrap_servers": quick_broker.bootstrap,
        "group_id": topic,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
    }
    seen: list[int] = []
    for end in (1, 50, 173, 300):
        async with Consumer(**settings, **STRATEGIES[protocol]) as consumer:
            consumer.subscribe(topic)
            async with asyncio.timeout(300):
                async for record in consumer:
                    seen.append(int(record.value))
                    if len(seen) == end:
                        break
    assert sorted(seen) == list(range(300))
    async with Consumer(**settings, **STRATEGIES[protocol]) as consumer:
        found = await consumer.committed(await consumer.partitions(topic))
    assert {place.offset for place in found.values() if place} == {100}
    assert {place.leader_epoch for place in found.values() if place} == {0}


async def test_automatic_commits_happen_while_records_come(
    quick_broker: Broker, topic: str
) -> None:
    where = TopicPartition(topic, 0)
    await create(quick_broker, topic, 1)
    await fill(quick_broker, topic, 1, 10)
    async with (
        member(quick_broker, topic, topic, auto_commit_interval_ms=50) as reader,
        Consumer(bootstrap_servers=quick_broker.bootstrap, group_id=topic) as other,
    ):
        await reader.until(lambda: len(reader.seen) == 10)
        async with asyncio.timeout(300):
            while (await other.committed([where]))[where] is None:
                pass


async def test_records_whose_work_failed_are_read_again(quick_broker: Broker, topic: str) -> None:
    await create(quick_broker, topic, 1)
    await fill(quick_broker, topic, 1, 10)
    settings: dict[str, Any] = {**QUICK, "group_id": topic, "auto_offset_reset": "earliest"}

    async def works_badly() -> None:
        async with Consumer(bootstrap_servers=quick_broker.bootstrap, **settings) as consumer:
            consumer.subscribe(topic)
            async for record in consumer:
                assert record.offset == 0
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await works_badly()
    async with Consumer(bootstrap_servers=quick_broker.bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        assert (await asyncio.wait_for(anext(consumer), 300)).offset == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_offsets_are_committed_by_hand_with_a_remark_and_an_epoch(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 2)
    await fill(quick_broker, topic, 2, 20)
    manual: dict[str, Any] = {"group_protocol": protocol, "enable_auto_commit": False}
    done: list[object] = []
    async with member(quick_broker, topic, topic, **manual) as reader:
        consumer = reader.consumer
        await reader.until(lambda: len(reader.seen) == 20)
        assert await consumer.committed([(topic, 0)]) == {(topic, 0): None}
        await consumer.commit({(topic, 0): OffsetAndMetadata(3, "half way", 0), (topic, 1): 4})
        assert await consumer.committed([(topic, 0), (topic, 1)]) == {
            (topic, 0): OffsetAndMetadata(3, "half way", 0),
            (topic, 1): OffsetAndMetadata(4),
        }
        consumer.commit_nowait(done=lambda offsets, failure: done.append((offsets, failure)))
        await reader.until(lambda: done)
        everything = {(topic, n): OffsetAndMetadata(10, "", 0) for n in (0, 1)}
        assert done == [(everything, None)]
        me = consumer.group_metadata()
        assert (me.group_id, me.generation_id > 0, bool(me.member_id)) == (topic, True, True)
    async with Consumer(bootstrap_servers=quick_broker.bootstrap, group_id=topic) as by_hand:
        by_hand.assign([(topic, 0)])
        assert await by_hand.position((topic, 0)) == 10, "the group's offset is where it begins"
        await by_hand.commit({(topic, 0): 2})
        assert by_hand.group_metadata().generation_id == -1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_a_committed_offset_and_a_reset_the_application_decides(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 1)
    await fill(quick_broker, topic, 1, 5)
    settings: dict[str, Any] = {"auto_offset_reset": "none", "group_protocol": protocol}
    async with Consumer(
        bootstrap_servers=quick_broker.bootstrap,
        group_id=topic,
        **settings,
        **STRATEGIES[protocol],
    ) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(OffsetError, match=r"auto\.offset\.reset is none"):
            await asyncio.wait_for(anext(consumer), 300)
        consumer.seek((topic, 0), 3)
        assert [record.offset for record in await consumer.poll(30_000)] == [3, 4]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_callbacks_of_plain_code_run_where_it_polls_and_may_call(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    asyncio.run(create(quick_broker, topic, 1))
    asyncio.run(fill(quick_broker, topic, 1, 5))
    seen: list[int] = []
    told: list[object] = []
    settings: dict[str, Any] = {
        "bootstrap_servers": quick_broker.bootstrap,
        "group_id": topic,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **STRATEGIES[protocol],
    }
    with SyncConsumer(**settings) as consumer:

        def on_assigned(partitions: object) -> None:
            consumer.seek((topic, 0), 1)

        def on_revoked(partitions: object) -> None:
            consumer.commit()
            told.append(partitions)

        consumer.subscribe(topic, on_assigned=on_assigned, on_revoked=on_revoked)
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 3:
                break
        consumer.commit_nowait(done=lambda offsets, failure: told.append(failure))
        while None not in told:
            consumer.committed([(topic, 0)])
    assert seen == [1, 2, 3]
    assert [TopicPartition(topic, 0)] in told
    with SyncConsumer(**settings) as after:
        assert after.committed([(topic, 0)]) == {(topic, 0): OffsetAndMetadata(4)}


async def test_a_listener_that_fails_is_told_by_poll_and_the_rebalance_goes_on(
    quick_broker: Broker, topic: str
) -> None:
    await create(quick_broker, topic, 1)
    await fill(quick_broker, topic, 1, 1)

    async def fails(partitions: object) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def polls(partitions: object) -> None:
        await consumer.poll()

    async with Consumer(
        bootstrap_servers=quick_broker.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        **QUICK,
    ) as consumer:
        consumer.subscribe(topic, on_assigned=fails)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(anext(consumer), 300)
        assert (await asyncio.wait_for(anext(consumer), 300)).offset == 0
        await consumer.unsubscribe()
        consumer.subscribe(topic, on_assigned=polls)
        with pytest.raises(ClientError, match="cannot poll"):
            await asyncio.wait_for(anext(consumer), 300)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_beginning(
    quick_broker: Broker, topic: str, protocol: str
) -> None:
    await create(quick_broker, topic, 1)
    await fill(quick_broker, topic, 1, 10)
    async with member(
        quick_broker, topic, topic, group_protocol=protocol, allow_auto_create_topics=False
    ) as reader:
        await reader.has_seen(10)
        async with Admin(bootstrap_servers=quick_broker.bootstrap) as admin:
            await admin.delete_topics([topic])
        await reader.has()
        await create(quick_broker, topic, 1)
        await fill(quick_broker, topic, 1, 3, first=100)
        await reader.has_seen(13)
        assert [int(record.value) for record in reader.seen[10:]] == [100, 101, 102]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_is_told_that_its_topic_does_not_exist(
    broker: Broker, topic: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "group.protocol": protocol},
        allow_auto_create_topics=False,
    )
    async with consumer, asyncio.timeout(300):
        consumer.subscribe(f"{topic}-missing")
        while "no such topic" not in caplog.text:
            assert await consumer.poll(200) == []
    assert f"topic {topic}-missing: no such topic or partition here (fix:" in caplog.text
