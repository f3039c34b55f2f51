"""Three controllers, whole nodes on simulated hosts: they found, elect, copy and fail over."""

import asyncio

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from tests.sim.quorum.nodes import SimQuorum, play, write, written


@pytest.mark.parametrize("seed", range(4))
def test_three_empty_controllers_found_one_cluster_and_elect(seed: int) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader(within_s=3)
        assert leader == 1, "the lowest id founds, and has the first word"
        assert len({node.cluster_id for node in quorum.alive.values()}) == 1
        await write(quorum.node(leader), 1234)
        await quorum.same_image()
        for node in quorum.alive.values():
            assert written(node) == 1234
            assert node.image.features["kraft.version"] == 1
            assert {v.id: v.directory for v in node.metadata.quorum.raft.voters.values()} == {
                i: other.log_dirs.metadata_home.id for i, other in quorum.alive.items()
            }
            assert not node.events.counts[EventKind.QUORUM_PEER_REFUSES], (
                "the founder leads before the others know its cluster; nobody is a stranger"
            )

    play(story, seed)


def test_nobody_founds_while_a_voter_has_not_answered() -> None:
    async def story(quorum: SimQuorum) -> None:
        quorum.nodes[1].boot()
        quorum.nodes[2].boot()
        await asyncio.sleep(20)
        assert not any(node.cluster_id for node in quorum.alive.values())
        await quorum.start(3)
        await quorum.leader(within_s=3)

    play(story)


def test_killed_leader_is_followed_by_another_at_once_and_nothing_is_lost() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        for round_ in range(6):
            leader = await quorum.leader()
            await write(quorum.node(leader), 1000 + round_)
            quorum.kill(leader)
            began = asyncio.get_running_loop().time()
            heir = await quorum.leader(within_s=0.9)
            assert asyncio.get_running_loop().time() - began < 0.9, "no time-out passed"
            assert written(quorum.node(heir)) == 1000 + round_ or heir != leader
            await quorum.start(leader)
            await quorum.same_image()
            assert written(quorum.node(leader)) == 1000 + round_

    play(story)


def test_silent_leader_is_replaced_and_comes_back_as_a_follower() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await quorum.same_image()  # who has not fetched the log yet does not know that it votes
        others = [i for i in quorum.ids if i != leader]
        deposed = quorum.node(leader)
        for other in others:
            quorum.sim.network.cut(f"n{leader}", f"n{other}")
        heir = await quorum.until(
            lambda: next((i for i in quorum.actives() if i != leader), None), 8, "no heir"
        )
        await write(quorum.node(heir), 77)
        waiting = deposed.metadata.active
        if waiting is not None:
            with pytest.raises(KafkaError) as refused:
                await write(deposed, 66)
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
        quorum.sim.network.heal()
        await quorum.same_image()
        assert [written(node) for node in quorum.alive.values()] == [77, 77, 77]
        assert await quorum.leader() == heir, "one who was cut off disturbs nobody"

    play(story)


def test_leader_that_stops_in_good_order_names_its_heir() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await write(quorum.node(leader), 5)
        await quorum.nodes[leader].stop()
        quorum.nodes[leader].node = None
        heir = await quorum.leader(within_s=0.5)
        assert heir != leader
        await quorum.same_image()

    play(story)


def test_minority_commits_nothing_and_says_so() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        for other in quorum.ids:
            if other != leader:
                quorum.kill(other)
        with pytest.raises(KafkaError) as refused:
            await write(quorum.node(leader), 9)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert quorum.actives() == []
        await quorum.start(*(i for i in quorum.ids if i != leader))
        await quorum.leader()
        await quorum.same_image()

    play(story)


@pytest.mark.parametrize("seed", range(6))
def test_vote_of_a_new_controller_outlives_its_power_before_its_log_is_synced(seed: int) -> None:
    """Else the directory's own name goes, with the vote in it: the log syncs it with its first
    records."""

    async def story(quorum: SimQuorum) -> None:
        faults = quorum.hosts[2].disk_faults
        faults.stall, faults.stall_times, faults.stall_in = 1.0, 1 << 20, "partition.metadata"
        await quorum.start()
        quorum.kill(await quorum.leader())
        epoch = quorum.node(await quorum.leader()).metadata.quorum.epoch
        assert quorum.node(2).metadata.quorum.log.flushed_offset == 0
        quorum.hosts[2].power_cut()
        faults.stall = 0.0
        await quorum.start(2)
        assert quorum.node(2).metadata.quorum.epoch == epoch

    play(story, seed)


def test_voter_that_lost_its_disk_follows_and_does_not_vote() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        lost = next(i for i in quorum.ids if i != leader)
        quorum.kill(lost)
        await write(quorum.node(leader), 31)
        quorum.replace_disk(lost)
        await quorum.start(lost)
        await quorum.same_image()
        assert not quorum.node(lost).metadata.quorum.raft.is_voter
        assert quorum.node(lost).cluster_id == quorum.node(leader).cluster_id
        quorum.kill(leader)
        await asyncio.sleep(10)
        assert quorum.actives() == [], "one voter of three and an observer are no majority"

    play(story)
