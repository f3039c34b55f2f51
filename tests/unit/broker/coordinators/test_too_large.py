"""Records that the topic of the coordinators can never take: an error for who caused them, and
nothing for the others."""

from collections.abc import Callable

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import groups
from tests.unit.broker.repeating import Committer

InANode = Callable[..., None]


def test_a_commit_too_large_for_the_topic_is_refused_and_nobody_else_notices(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready(2)
        await one.commit(1, 1)
        loads = node.group_coordinators.counts.loads.count
        large = "m" * 4_000
        for _ in range(3):
            codes = await one.commit(2, 2, metadata=large)
            assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
            assert await one.commit(3, 3) == [0, 0]
        assert node.group_coordinators.counts.loads.count == loads
        assert node.group_coordinators.counts.failures == 0
        assert (await one.store_read_back()).offsets == one.store().offsets

    in_a_node(script, message_max_bytes=2_000, group_initial_rebalance_delay_ms=0)


def test_members_hear_that_their_assignment_cannot_be_stored_and_rebalance(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        loads = node.group_coordinators.counts.loads.count
        await one.join()
        large = groups.SyncGroupRequestAssignment(member_id=one.member_id, assignment=b"x" * 4_000)
        await one.join(sync=False)
        sync = groups.SyncGroupRequest(
            group_id="g",
            generation_id=one.generation,
            member_id=one.member_id,
            assignments=[large],
        )
        answer = await one.peer.call(sync, 2, groups.SyncGroupResponse)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        beat = groups.HeartbeatRequest(
            group_id="g", generation_id=one.generation, member_id=one.member_id
        )
        told = await one.peer.call(beat, 2, groups.HeartbeatResponse)
        assert told.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        await one.join()
        assert await one.commit(2) == [0]
        assert (
            node.group_coordinators.counts.loads.count,
            node.group_coordinators.counts.failures,
        ) == (
            loads,
            0,
        )
        read = await one.store_read_back()
        assert read.offsets == one.store().offsets

    in_a_node(script, message_max_bytes=2_000, group_initial_rebalance_delay_ms=0)


def test_a_consumer_whose_subscription_is_too_large_is_refused_and_nobody_else_notices(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        loads = node.group_coordinators.counts.loads.count
        beat = groups.ConsumerGroupHeartbeatRequest(
            group_id="h",
            member_id="m",
            rebalance_timeout_ms=60_000,
            topic_partitions=[],
            subscribed_topic_names=["t", *(f"{number:0200}" for number in range(20))],
        )
        response = groups.ConsumerGroupHeartbeatResponse
        assert (await one.peer.call(beat, 1, response)).error_code == -1
        beat.subscribed_topic_names = ["t"]
        assert (await one.peer.call(beat, 1, response)).error_code == 0
        assert await one.commit(1) == [0]
        assert (
            node.group_coordinators.counts.loads.count,
            node.group_coordinators.counts.failures,
        ) == (
            loads,
            0,
        )

    in_a_node(script, message_max_bytes=2_000, group_initial_rebalance_delay_ms=0)
