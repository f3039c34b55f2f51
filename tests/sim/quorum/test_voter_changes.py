"""Voters come and go while the quorum lives: AddRaftVoter, RemoveRaftVoter, and who asks."""

import asyncio
from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.raft.roles import Role
from scriba.testing.sim.world.world import SimWorld
from scriba.wire.messages import quorum as messages
from tests.sim.quorum.nodes import PORT, SimQuorum, play, write, written
from tests.sim.quorum.voter_requests import add_request, ask, new_controller, remove_request, told


def voters_of(quorum: SimQuorum) -> list[set[int]]:
    return [set(node.metadata.quorum.raft.voters) for node in quorum.alive.values()]


async def all_have(quorum: SimQuorum, *voters: int) -> None:
    def same() -> bool | None:
        return True if all(each == set(voters) for each in voters_of(quorum)) else None

    await quorum.until(same, 20, f"not all have the voters {voters}")


def test_fourth_controller_is_added_counts_and_can_lead() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        new_controller(quorum, 4)
        await quorum.start(4)
        await quorum.same_image()
        answer = await ask(quorum, leader, add_request(quorum.node(4)), by=4)
        assert told(answer) == (ErrorCode.NONE, "")
        await all_have(quorum, 1, 2, 3, 4)
        others = [i for i in quorum.ids if i != leader]
        quorum.kill(others[0])
        await write(quorum.node(leader), 5)  # three of four
        quorum.kill(others[1])
        late = asyncio.ensure_future(write(quorum.node(leader), 6))
        await asyncio.sleep(1)
        assert not late.done(), "two of four are no majority"
        late.cancel()
        await quorum.start(*others)
        await quorum.leader()
        await quorum.same_image()
        assert written(quorum.node(4)) in (5, 6)

    play(story)


def test_removed_leader_leads_until_then_and_follows_after() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        node = quorum.node(leader)
        answer = await ask(quorum, leader, remove_request(node, leader))
        assert told(answer) == (ErrorCode.NONE, "")
        heir = await quorum.leader(among=lambda i: i != leader)
        await all_have(quorum, *(i for i in quorum.ids if i != leader))
        await write(quorum.node(heir), 9)
        await quorum.same_image()
        assert node.metadata.quorum.raft.role is Role.FOLLOWER
        quorum.kill(leader)
        await write(quorum.node(heir), 10)
        await quorum.start(leader)
        await quorum.same_image()
        assert not quorum.node(leader).metadata.quorum.raft.is_voter
        assert written(quorum.node(leader)) == 10

    play(story)


def test_quorum_shrinks_to_one_and_grows_again_and_the_last_voter_stays() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        node = quorum.node(leader)
        others = [i for i in quorum.ids if i != leader]
        for each in others:
            answer = await ask(quorum, leader, remove_request(node, each), by=each)
            assert told(answer) == (ErrorCode.NONE, "")
        await all_have(quorum, leader)
        code, text = told(await ask(quorum, leader, remove_request(node, leader), by=others[0]))
        assert code is ErrorCode.INVALID_REQUEST
        assert "the last voter" in text
        for each in others:
            request = add_request(quorum.node(each))
            assert told(await ask(quorum, leader, request, by=each))[0] is ErrorCode.NONE
        await all_have(quorum, 1, 2, 3)
        quorum.kill(leader)
        heir = await quorum.leader()
        await write(quorum.node(heir), 4)

    play(story)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "controller of"),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST, "named by its id"),
        ({"voter_directory_id": bytes(16)}, ErrorCode.INVALID_REQUEST, "id of its directory"),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST, "listener CONTROLLER"),
        (
            {
                "listeners": [
                    messages.AddRaftVoterRequestListener(name="OTHER", host="n4", port=9093)
                ]
            },
            ErrorCode.INVALID_REQUEST,
            "listener CONTROLLER",
        ),
        ({"voter_id": 2}, ErrorCode.DUPLICATE_VOTER, "remove that one first"),
        ({"voter_directory_id": b"x" * 16}, ErrorCode.REQUEST_TIMED_OUT, "another directory"),
        ({"voter_id": 77}, ErrorCode.REQUEST_TIMED_OUT, "does not fetch the metadata"),
        (
            {
                "listeners": [
                    messages.AddRaftVoterRequestListener(name="CONTROLLER", host="n4", port=1)
                ]
            },
            ErrorCode.REQUEST_TIMED_OUT,
            "n4:1 does not answer",
        ),
    ],
)
def test_voter_that_cannot_be_added_is_refused_and_nothing_is_written(
    changes: dict[str, Any], code: ErrorCode, text: str
) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        new_controller(quorum, 4)
        await quorum.start(4)
        await quorum.same_image()
        before = quorum.node(leader).metadata.quorum.facts
        answer = await ask(quorum, leader, add_request(quorum.node(4), **changes), by=4)
        assert told(answer)[0] is code, told(answer)
        assert text in told(answer)[1]
        assert quorum.node(leader).metadata.quorum.facts == before

    play(story)


def test_broker_alone_is_no_voter_though_it_follows_and_answers() -> None:
    """It would be counted, and would not vote: the next election might have no majority."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        new_controller(quorum, 4, process_roles="broker", listeners=f"PLAINTEXT://n4:{PORT}")
        await quorum.start(4)
        await quorum.same_image()
        before = quorum.node(leader).metadata.quorum.facts
        answer = await ask(quorum, leader, add_request(quorum.node(4)), by=1)
        assert told(answer)[0] is ErrorCode.INVALID_REQUEST
        assert f"controller 4 at n4:{PORT} takes no votes" in told(answer)[1]
        assert quorum.node(leader).metadata.quorum.facts == before

    play(story)


def test_observer_that_is_gone_is_forgotten_after_a_while() -> None:
    """Its number is free again for who joins, and nobody waits for what it lacks."""
    asked = messages.DescribeQuorumRequest(
        topics=[
            messages.DescribeQuorumRequestTopicData(
                topic_name="__cluster_metadata",
                partitions=[messages.DescribeQuorumRequestPartitionData(partition_index=0)],
            )
        ]
    )

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        new_controller(quorum, 4)
        await quorum.start(4)
        await quorum.same_image()

        async def observers() -> list[int]:
            answer = await ask(quorum, leader, asked)
            return [each.replica_id for each in answer.topics[0].partitions[0].observers]

        assert await observers() == [4]
        quorum.kill(4)
        await asyncio.sleep(290)
        assert await observers() == [4]
        await asyncio.sleep(20)
        assert await observers() == []

    play(story)


def test_voter_that_lags_is_refused_by_how_much() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        new_controller(quorum, 4)
        await quorum.start(4)
        await quorum.same_image()
        request = add_request(quorum.node(4), timeout_ms=1000)
        for each in (*quorum.ids,):
            quorum.sim.network.cut("n4", f"n{each}")
        await asyncio.sleep(4)
        for value in range(5):
            await write(quorum.node(leader), value + 1)
        asker = next(i for i in quorum.ids if i != leader)
        code, text = told(await ask(quorum, leader, request, by=asker))
        assert code is ErrorCode.REQUEST_TIMED_OUT
        assert "controller 4 lags behind" in text

    play(story)


def test_second_change_waits_for_the_first() -> None:
    """Two at once would make two majorities that need not meet."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        for new in (4, 5):
            new_controller(quorum, new)
            await quorum.start(new)
        await quorum.same_image()
        raft = quorum.node(leader).metadata.quorum.raft
        seen: list[int] = []

        def watch(*args: Any) -> None:
            seen.append(raft.voters_since - raft.high_watermark)
            rightly(*args)

        rightly, raft.set_voters = raft.set_voters, watch  # type: ignore[assignment,method-assign]
        answers = await asyncio.gather(
            *(ask(quorum, leader, add_request(quorum.node(new)), by=new) for new in (4, 5))
        )
        assert [told(answer)[0] for answer in answers] == [ErrorCode.NONE] * 2
        assert len(seen) == 2
        assert all(ahead < 0 for ahead in seen), "each began when the one before was committed"
        await all_have(quorum, 1, 2, 3, 4, 5)

    play(story)


def test_voters_that_a_truncation_takes_back_count_nowhere() -> None:
    """Voters count from the record on, committed or not; and no longer once it is cut off."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await quorum.same_image()
        deposed = quorum.node(leader)
        others = [i for i in quorum.ids if i != leader]
        for other in others:
            quorum.sim.network.cut(f"n{leader}", f"n{other}")
        change = asyncio.ensure_future(deposed.metadata.call(remove_request(deposed, others[0])))
        await quorum.until(
            lambda: others[0] not in deposed.metadata.quorum.raft.voters or None, 1, "not written"
        )
        since = deposed.metadata.quorum.history.since
        heir = await quorum.until(
            lambda: next((i for i in quorum.actives() if i != leader), None), 8, "no heir"
        )
        await write(quorum.node(heir), 77)
        assert set(deposed.metadata.quorum.raft.voters) == {leader, others[1]}
        quorum.sim.network.heal()
        await quorum.same_image()
        with pytest.raises(KafkaError) as refused:
            await change
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        for at in (None, leader, heir):
            if at is not None:
                quorum.kill(at)
                await quorum.start(at)
                await quorum.leader()
                await quorum.same_image()
            await all_have(quorum, 1, 2, 3)
            for node in quorum.alive.values():
                history = node.metadata.quorum.history
                assert {voter.id for voter in history.voters()} == {1, 2, 3}
                assert history.since != since
        assert {written(node) for node in quorum.alive.values()} == {77}

    play(story)


def test_request_to_one_who_does_not_lead_says_so() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        other = next(i for i in quorum.ids if i != leader)
        new_controller(quorum, 4)
        await quorum.start(4)
        answer = await ask(quorum, other, add_request(quorum.node(4)), by=4)
        assert told(answer)[0] is ErrorCode.NOT_CONTROLLER
        answer = await ask(quorum, other, remove_request(quorum.node(other), other), by=4)
        assert told(answer)[0] is ErrorCode.NOT_CONTROLLER

    play(story)


# ---- controllers that join by themselves ----


def test_new_controller_joins_by_itself() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await quorum.leader()
        new_controller(quorum, 4, controller_quorum_auto_join_enable="true")
        await quorum.start(4)
        await all_have(quorum, 1, 2, 3, 4)
        assert quorum.node(4).metadata.quorum.raft.is_voter

    play(story)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_voter_that_lost_its_disk_comes_back_with_its_new_directory(seed: int) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        lost, third = (i for i in quorum.ids if i != leader)
        before = quorum.node(lost).metadata.quorum.raft.own
        quorum.kill(lost)
        await write(quorum.node(leader), 31)
        quorum.replace_disk(lost)
        await quorum.start(lost)
        raft = quorum.node(lost).metadata.quorum.raft
        await quorum.until(lambda: True if raft.is_voter else None, 20, "it is no voter again")
        assert raft.own.directory != before.directory
        await all_have(quorum, 1, 2, 3)
        quorum.kill(third)
        await write(quorum.node(leader), 32)
        assert written(quorum.node(leader)) == 32, "it counts for the majority again"

    play(story, seed=seed, controller_quorum_auto_join_enable="true")


def test_voter_that_lost_its_disk_is_put_back_by_hand() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        lost = next(i for i in quorum.ids if i != leader)
        quorum.kill(lost)
        quorum.replace_disk(lost)
        await quorum.start(lost)
        await quorum.same_image()
        request = add_request(quorum.node(lost))
        code, text = told(await ask(quorum, leader, request, by=lost))
        assert (code, "remove that one first" in text) == (ErrorCode.DUPLICATE_VOTER, True)
        gone = remove_request(quorum.node(leader), lost)
        assert told(await ask(quorum, leader, gone, by=lost))[0] is ErrorCode.NONE
        assert told(await ask(quorum, leader, request, by=lost))[0] is ErrorCode.NONE
        await all_have(quorum, 1, 2, 3)
        assert quorum.node(lost).metadata.quorum.raft.is_voter

    play(story)


# ---- from a node alone ----


def alone(sim: SimWorld) -> SimQuorum:
    return SimQuorum(sim, 1, {"controller.quorum.voters": ""})


def test_node_that_was_founded_alone_grows_to_three_and_back() -> None:
    sim = SimWorld(3)
    quorum = alone(sim)

    async def main() -> None:
        await quorum.start()
        await write(quorum.node(1), 1)
        for new in (2, 3):
            new_controller(
                quorum, new, servers="n1:9093", controller_quorum_auto_join_enable="true"
            )
            await quorum.start(new)
            await all_have(quorum, *range(1, new + 1))
            await write(quorum.node(await quorum.leader()), new)
        quorum.kill(1)
        heir = await quorum.leader()
        await write(quorum.node(heir), 4)
        await quorum.start(1)  # it was told of nobody, and finds them by what its log says
        await quorum.same_image()
        assert written(quorum.node(1)) == 4
        for gone in (2, 3):
            leader = await quorum.leader()
            answer = await ask(quorum, leader, remove_request(quorum.node(leader), gone))
            assert told(answer)[0] is ErrorCode.NONE
            await asyncio.sleep(5)
            assert gone not in quorum.node(1).metadata.quorum.raft.voters, "it stays out"
            quorum.kill(gone)
        await all_have(quorum, 1)
        await write(quorum.node(await quorum.leader()), 5)
        quorum.kill(1)
        await quorum.start(1)
        await quorum.until(lambda: written(quorum.node(1)) == 5 or None, 5, "it lost its data")
        quorum.kill(1)

    sim.run(main())


def test_founder_that_was_removed_follows_those_who_stayed() -> None:
    """It was told of nobody when it was founded; its log says where the others are."""
    sim = SimWorld(5)
    quorum = alone(sim)

    async def main() -> None:
        await quorum.start()
        new_controller(quorum, 2, servers="n1:9093", controller_quorum_auto_join_enable="true")
        await quorum.start(2)
        await all_have(quorum, 1, 2)
        leader = await quorum.leader()
        answer = await ask(quorum, leader, remove_request(quorum.node(leader), 1))
        assert told(answer)[0] is ErrorCode.NONE
        await quorum.leader(among=lambda i: i == 2)
        quorum.kill(1)
        await write(quorum.node(2), 8)
        await quorum.start(1)
        await quorum.same_image()
        assert written(quorum.node(1)) == 8
        for node_id in quorum.ids:
            quorum.kill(node_id)
        quorum.kill(2)

    sim.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_leader_of_two_that_is_removed_through_the_other_is_told_to_be_gone(seed: int) -> None:
    """The one that stays leads at once, and drops the connection on which the answer would come:
    whoever asks again hears that it is done, not that there is no such voter."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        third = next(i for i in quorum.ids if i != leader)
        gone = remove_request(quorum.node(leader), third)
        assert told(await ask(quorum, leader, gone))[0] is ErrorCode.NONE
        await all_have(quorum, *(i for i in quorum.ids if i != third))
        other = next(i for i in quorum.ids if i not in (leader, third))
        node = quorum.node(other)
        answer = await node.controller.call(remove_request(node, leader))
        assert told(answer)[0] is ErrorCode.NONE
        await all_have(quorum, other)

    play(story, seed=seed)
