"""What a group's offsets are while topics go and coordinators refuse, on simulated time."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from scriba.client import (
    Admin,
    BrokerError,
    ClientError,
    Closed,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.client.clients import T0, read
from tests.unit.client.groups import AT, committed, in_a_group

GOING = TopicPartition("going", 0)


async def a_topic_that_goes(world: ProcessWorld) -> None:
    async with Admin(AT, _ports=world) as admin, Producer(AT, _ports=world) as p:
        await admin.create_topics([NewTopic("going", partitions=1)])
        await p.send("going", b"x")


async def delete(world: ProcessWorld) -> None:
    async with Admin(AT, _ports=world) as admin:
        await admin.delete_topics(["going"])


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_deleted_topic_does_not_hold_up_the_automatic_commits_of_others(by_hand: bool) -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        await a_topic_that_goes(world)
        if by_hand:
            c.assign([T0, GOING])
        else:
            c.subscribe(["t", "going"])
        await read(c, 11)
        await delete(world)
        for _ in range(10):
            await c.poll(100)  # several times an automatic commit is due
        async with Producer(AT, _ports=world) as p:
            for _ in range(10):
                await p.send("t", b"more")
        before = world.clock.mono_ms()
        await read(c, 10)
        while await committed(world) != 20:
            await c.poll(100)
        assert world.clock.mono_ms() - before < 10_000

    in_a_group(work, auto_commit_interval_ms=300, allow_auto_create_topics=False)


def test_a_commit_that_waits_for_a_deleted_topic_leaves_time_for_the_last_one() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        await a_topic_that_goes(world)
        c.assign([T0, GOING])
        await read(c, 11)
        await delete(world)
        c.commit_nowait({GOING: 1})
        await c.close(timeout_ms=10_000)
        assert await committed(world) == 10

    in_a_group(work, auto_commit_interval_ms=60_000, allow_auto_create_topics=False)


def test_who_closes_once_more_waits_for_the_last_commit_of_the_first() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        c.subscribe("t", on_revoked=lambda partitions: asyncio.sleep(2))
        await read(c, 10)
        first = asyncio.create_task(c.close())
        await asyncio.sleep(0)
        await c.close(timeout_ms=100)
        assert c.assignment()
        await c.close()
        assert not c.assignment()
        assert await committed(world) == 10
        await first

    in_a_group(work, auto_commit_interval_ms=60_000)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("when", ["in the close", "in a poll before"])
@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_a_listener_that_takes_too_long_does_not_outlast_the_limit(
    protocol: Literal["classic", "consumer"], when: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the group is told all the same, so that another member gets the partitions at once."""

    async def work(c: Consumer, world: ProcessWorld) -> None:
        began = asyncio.Event()

        async def slow(partitions: Sequence[TopicPartition]) -> None:
            began.set()
            await asyncio.sleep(3600)

        in_the_close = when == "in the close"
        if in_the_close:
            c.subscribe("t", on_revoked=slow)
        else:
            c.subscribe("t", on_assigned=slow)
        polling: asyncio.Task[Any] | None = None
        if in_the_close:
            await read(c, 10)
        else:
            polling = asyncio.create_task(c.poll(60_000))
            await began.wait()
        before = world.clock.mono_ms()
        await (c.close(5_000) if call == "close" else c.unsubscribe(5_000))
        assert world.clock.mono_ms() - before <= 5_000
        assert not c.assignment()
        assert "a listener was given up" in caplog.text
        if polling is not None:
            await asyncio.wait([polling])
            assert not polling.cancelled()
        async with Consumer(AT, _ports=world, group_id="g", group_protocol=protocol) as other:
            other.subscribe("t")
            while not other.assignment():
                await other.poll(100)
        assert world.clock.mono_ms() - before < 10_000

    in_a_group(work, auto_commit_interval_ms=60_000, group_protocol=protocol)


@pytest.mark.parametrize("how", ["close", "close without a commit", "unsubscribe", "at once"])
def test_a_commit_that_is_given_up_is_told_to_whoever_asked(how: str) -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        told: list[tuple[Any, ClientError | None]] = []
        await a_topic_that_goes(world)
        c.subscribe(["t", "going"])
        await read(c, 11)
        await delete(world)
        c.commit_nowait({GOING: 1}, lambda *outcome: told.append(outcome))
        if how == "unsubscribe":
            await c.unsubscribe(5_000)
        else:
            limit = 0 if how == "at once" else 5_000
            await c.close(limit, commit=how == "close")
        [(offsets, failure)] = told
        assert offsets == {GOING: OffsetAndMetadata(1)}
        assert isinstance(failure, Closed)

    in_a_group(work, auto_commit_interval_ms=60_000, allow_auto_create_topics=False)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_partition_is_read_after_its_committed_offset_was_refused(by_hand: bool) -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        assert c._group is not None
        stored = c._group.offsets._committed
        fetch = stored.fetch
        asked = 0

        async def refused_at_first(*asking: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return await fetch(*asking)

        stored.fetch = refused_at_first  # type: ignore[assignment, method-assign]
        if by_hand:
            c.assign([T0])
        else:
            c.subscribe("t")
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await c.poll(60_000)
        assert len(await read(c, 10)) == 10

    in_a_group(work)


@pytest.mark.parametrize("automatic", [False, True])
def test_a_block_that_is_left_by_an_exception_commits_nothing_though_its_listener_does(
    automatic: bool,
) -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        revoked: list[TopicPartition] = []

        async def parting(partitions: Sequence[TopicPartition]) -> None:
            revoked.extend(partitions)
            await c.commit()

        async def fail() -> None:
            async with c:
                c.subscribe("t", on_revoked=parting)
                assert len(await c.poll(60_000, max_records=4)) == 4
                raise RuntimeError("work on a record failed")

        with pytest.raises(RuntimeError, match="work on"):
            await fail()
        assert revoked == [T0]
        assert await committed(world) is None

    in_a_group(work, enable_auto_commit=automatic, auto_commit_interval_ms=60_000)


def test_an_offset_at_which_nobody_can_go_on_is_not_committed() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        c.assign([T0])
        with pytest.raises(ValueError, match="t-0: offset -5 is negative"):
            await c.commit({T0: -5})
        with pytest.raises(ValueError, match="negative"):
            c.commit_nowait({T0: OffsetAndMetadata(-1)})
        async with Admin(AT, _ports=world) as admin:
            with pytest.raises(ValueError, match="negative"):
                await admin.alter_group_offsets("g", {T0: -1})
        async with Producer(AT, _ports=world, transactional_id="x") as p, p.transaction():
            with pytest.raises(ValueError, match="negative"):
                await p.send_offsets_to_transaction({T0: -1}, "g")
        assert await committed(world) is None

    in_a_group(work, enable_auto_commit=False)


def test_an_offset_below_zero_that_another_client_committed_is_none() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        assert c._group is not None
        async with Consumer(AT, _ports=world, group_id="g") as other:
            assert other._group is not None
            other.assign([])
            await other._group.offsets.commit({T0: OffsetAndMetadata(-5)}, 60_000)
        c.assign([T0])
        assert len(await read(c, 10)) == 10

    in_a_group(work)


def test_a_member_whose_coordinator_was_refused_joins_without_a_second_error() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        assert c._group is not None
        coordinator = c._group._coordinator
        connect = coordinator.connect
        asked = 0

        async def refused_at_first() -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return await connect()

        coordinator.connect = refused_at_first  # type: ignore[method-assign]
        c.subscribe("t")
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await c.poll(60_000)
        assert len(await read(c, 10)) == 10

    in_a_group(work, group_protocol="consumer")
