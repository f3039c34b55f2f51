"""The fast path of a repeated OffsetCommit: it leaves behind what the handler does, or is not
taken."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from scriba.broker.fastpath.commit import PATIENCE
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import groups
from scriba.wire.messages.admin import DeleteTopicsRequest, DeleteTopicsResponse
from tests.unit.broker.repeating import Committer, Nobody

InANode = Callable[..., None]


@pytest.mark.parametrize("version", range(2, 11))
@pytest.mark.parametrize("partitions", [1, 3])
def test_both_ways_store_the_same(in_a_node: InANode, version: int, partitions: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready(partitions)
        rounds = [[n * 10 + index for index in range(partitions)] for n in range(5)]
        rounds += [[2**40, *range(1, partitions)], [0] * partitions]
        await one.commit(*rounds[0], version=version, metadata="said")
        for offsets in rounds[1:]:
            assert await one.short(*offsets, version=version, metadata="said")
            assert one.offsets() == offsets
            live, read = one.store(), await one.store_read_back()
            assert live.offsets == read.offsets
            assert live.by_topic == read.by_topic
        (first, *_) = one.store().offsets["g"].values()
        assert (first.metadata, first.leader_epoch) == ("said", 3 if version >= 6 else -1)
        assert first.topic_id == node.image.topics_by_name["t"].id

    in_a_node(script)


def test_the_time_of_a_repeated_commit_is_its_own(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        times: list[int] = []
        for offset in range(4):
            await asyncio.sleep(1)
            begun = world.clock.wall_ms()
            await one.commit(offset)
            times.append(one.store().offsets["g"]["t", 0].commit_ms)
            assert begun <= times[-1] <= world.clock.wall_ms()
        assert len(set(times)) == 4
        assert node.counters.fastpath_commits > 0
        assert (await one.store_read_back()).offsets == one.store().offsets

    in_a_node(script)


def test_what_differs_goes_the_ordinary_way(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready(2)
        await one.commit(1)
        assert await one.short(2)
        assert not await one.short(3, metadata="else")
        assert not await one.short(4, 4)
        assert not await one.short(5, version=8)
        assert not await one.short(6, group="another")
        assert not await one.short(7, version=4, retention_ms=1_000)
        assert not await one.short(7, version=4, retention_ms=1_000)
        assert one.offsets() == [7, 4]
        assert await one.commit(1, 1, 1) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert one.offsets() == [1, 1]

    in_a_node(script)


def test_a_client_that_never_repeats_itself_finds_the_fast_path_when_it_does(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        for n in range(3 * PATIENCE):
            assert not await one.short(n, metadata=f"{n:03}")
        taken = [await one.short(n) for n in range(PATIENCE + 2)]
        assert taken[-1]
        assert taken == sorted(taken)

    in_a_node(script)


def test_a_member_of_an_older_generation_is_refused_after_the_short_way_too(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.join()
        await one.commit(1)
        assert await one.short(2)
        older = one.generation
        await one.join()
        one.generation = older
        assert await one.commit(3) == [ErrorCode.ILLEGAL_GENERATION]
        one.generation += 1
        assert await one.commit(4) == [0]
        assert one.offsets() == [4]

    in_a_node(script, group_initial_rebalance_delay_ms=0)


def test_commits_the_short_way_keep_a_session_alive(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.join()
        for n in range(10):
            await asyncio.sleep(8)
            await one.commit(n)
        assert node.counters.fastpath_commits >= 8
        await asyncio.sleep(11)
        assert await one.commit(11) == [ErrorCode.UNKNOWN_MEMBER_ID]

    in_a_node(script, group_initial_rebalance_delay_ms=0)


def test_a_topic_made_anew_is_not_mistaken_for_the_old_one(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        assert await one.short(2)
        old = node.image.topics_by_name["t"].id
        await one.peer.call(DeleteTopicsRequest(topic_names=["t"]), 5, DeleteTopicsResponse)
        await one.create("t")
        assert not await one.short(3)
        assert one.store().offsets["g"]["t", 0].topic_id == node.image.topics_by_name["t"].id != old

    in_a_node(script)


def test_a_group_that_was_deleted_comes_back_with_the_next_commit(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        assert await one.short(2)
        delete = groups.DeleteGroupsRequest(groups_names=["g"])
        gone = await one.peer.call(delete, 2, groups.DeleteGroupsResponse)
        assert gone.results[0].error_code == 0
        assert "g" not in one.store().groups
        assert await one.short(3)
        read = await one.store_read_back()
        assert one.offsets() == [3]
        assert read.offsets == one.store().offsets
        assert set(read.groups) == set(one.store().groups) == {"g"}

    in_a_node(script)


def test_a_lane_is_not_taken_past_an_authoriser(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        assert await one.short(2)
        node.access = Nobody()
        assert await one.commit(3) == [ErrorCode.GROUP_AUTHORIZATION_FAILED]

    in_a_node(script)


def test_a_coordinator_that_moved_or_rests_is_asked_the_ordinary_way(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        assert await one.short(2)
        partition = node.replicas.find(
            "__consumer_offsets", node.group_coordinators.partition_of("g")
        )
        node.group_coordinators.unload(partition.index)
        assert await one.commit(3) == [ErrorCode.NOT_COORDINATOR]
        node.group_coordinators.lead(partition)
        answers: list[int] = []
        while answers != [0]:
            answers = await one.commit(4)
            await asyncio.sleep(0.01)
        assert await one.short(5)
        assert one.offsets() == [5]
        assert (await one.store_read_back()).offsets == one.store().offsets

    in_a_node(script)


def test_an_answer_waits_for_the_device_where_only_that_counts(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        partition = node.replicas.find(
            "__consumer_offsets", node.group_coordinators.partition_of("g")
        )
        for offset in range(3):
            assert await one.short(offset)
            assert partition.log.flushed_offset == partition.log.end_offset

    in_a_node(script, log_flush_interval_messages=1)


def test_a_full_disk_is_told_as_on_the_ordinary_way(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Committer(node, world).ready()
        await one.commit(1)
        assert await one.short(2)
        assert isinstance(world.disk, SimDisk)
        faults = world.disk.volume.faults
        roomy, faults.capacity = faults.capacity, world.disk.volume.used
        assert await one.commit(3) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        faults.capacity = roomy
        answers: Sequence[int] = ()
        while answers != [0]:
            await asyncio.sleep(0.05)
            answers = await one.commit(4)
        assert one.offsets() == [4]
        assert (await one.store_read_back()).offsets == one.store().offsets

    in_a_node(script)
