"""What happens to a consumer between two of its steps, in virtual time."""

import asyncio
from collections.abc import Sequence

import pytest

from scriba.client import ClientError, Consumer
from scriba.client.consuming.list_offsets import look_up
from scriba.client.model import Isolation, OffsetSpec, TopicPartition
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.unit.client.clients import T0, consumer, fill, offsets, read
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.groups import committed, in_a_group


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("timeout_ms", [0, 1000])
def test_a_poll_that_is_cancelled_takes_nothing_with_it(steps: int, timeout_ms: int) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 3, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([T0])
            seen = await c.poll(1000, max_records=1)
            polling = asyncio.ensure_future(c.poll(timeout_ms, max_records=2))
            for _ in range(steps):
                await asyncio.sleep(0)
            polling.cancel()
            await asyncio.wait([polling])
            if not polling.cancelled():
                seen += polling.result()
            while len(seen) < 6:
                more = await c.poll(1000)
                assert more
                seen += more
            assert offsets(seen) == list(range(6))

    cluster.run(main)


@pytest.mark.parametrize("taken", [1, 3, 5, 9])
def test_records_that_are_given_back_come_again_in_their_order(taken: int) -> None:
    """However many of them are taken then, and given back once more."""
    cluster = FakeCluster()
    for log in cluster.topic("t", partitions=2):
        fill(log, 4, 4, 4)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0), ("t", 1)])
            seen: list[tuple[int, int]] = []
            while len(seen) < 24:
                ahead = await c.poll(5000, max_records=taken)
                seen.append((ahead[0].partition, ahead[0].offset))
                c._fetcher.give_back(ahead[1:])
                assert await c.position(("t", ahead[0].partition)) == ahead[0].offset + 1
            assert [offset for p, offset in seen if p == 0] == list(range(12))
            assert [offset for p, offset in seen if p == 1] == list(range(12))
            assert await c.poll(0) == []

    cluster.run(main)


def test_records_of_a_log_that_was_truncated_are_not_given_back() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 3, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([T0])
            ahead = await read(c, 6)
            c.seek(T0, 2)
            c._fetcher.give_back(ahead[3:])
            assert await c.position(T0) == 3
            assert offsets(await read(c, 3)) == [3, 4, 5]
            c._fetcher.give_back([])
            c.assign([])
            c._fetcher.give_back(ahead)
            assert c.assignment() == []

    cluster.run(main)


@pytest.mark.parametrize("waited_ms", range(0, 400, 25))
def test_who_seeks_while_the_connection_is_made_anew_reads_there(waited_ms: int) -> None:
    cluster = FakeCluster(faults=NetFaults(delay_ms=(40, 60)))
    [log] = cluster.topic("t")
    fill(log, 3, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([T0])
            assert offsets(await c.poll(5000, max_records=3)) == [0, 1, 2]
            cluster.stop(1)
            cluster.start(1)
            fill(log, 3)
            await asyncio.sleep(waited_ms / 1000)
            c.seek(T0, 1)
            assert offsets(await c.poll(60_000, max_records=1)) == [1]

    cluster.run(main)


def test_a_topic_that_leaves_the_picture_as_its_offsets_are_asked_for_harms_nobody() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            await c.partitions("t")
            asyncio.get_running_loop().call_soon(c._cluster.forget, ["t"])
            wanted = {T0: int(OffsetSpec.LATEST)}
            found = await look_up(c._cluster, wanted, Isolation.READ_UNCOMMITTED)
            place = found.offsets[T0]
            assert place is not None
            assert place.offset == 3

    cluster.run(main)


# -- in a group, with a real node ------------------------------------------------------------------


def test_a_commit_that_nobody_waits_for_is_not_lost_with_the_consumer() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        told: list[ClientError | None] = []
        c.subscribe("t")
        assert len(await c.poll(60_000, max_records=4)) == 4
        c.commit_nowait({T0: 4}, lambda offsets, failure: told.append(failure))
        await c.close()
        assert told == [None]
        assert await committed(world) == 4

    in_a_group(work, enable_auto_commit=False)


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe"])
def test_what_a_listener_cannot_do_is_told(call: str) -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        async def assigned(partitions: Sequence[TopicPartition]) -> None:
            await getattr(c, call)()

        c.subscribe("t", on_assigned=assigned)
        with pytest.raises(ClientError, match=f"a listener cannot {call}"):
            await c.poll(60_000)
        assert len(await c.poll(1000)) == 10, "and it goes on"

    in_a_group(work)


def test_a_member_that_was_dropped_is_nobody_else_until_it_has_partitions_again() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        c.subscribe("t")
        assert len(await c.poll(60_000, max_records=4)) == 4
        me = c.group_metadata()
        assert me.member_id
        assert me.generation_id == 1
        peer = await Peer.connect(world.net, "broker", 9092)
        gone = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=me.member_id)])
        await peer.call(gone, 5, LeaveGroupResponse)
        for _ in range(20):
            await asyncio.sleep(1)
            assert c.group_metadata() == me, "whoever commits what it has read is found out"
        await c.poll(60_000)
        now = c.group_metadata()
        assert now.generation_id > me.generation_id
        assert now.member_id != me.member_id

    in_a_group(work)
