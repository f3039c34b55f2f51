"""Who leads when brokers of a real cluster die and return: three controllers and three brokers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.metrics.exposition import render
from scriba.controller.image import NO_LEADER, RECOVERING, TOPIC
from scriba.events import EventKind
from tests.sim.broker_stage import BROKERS, Stage, play


async def lose_one_by_one(stage: Stage, leave: Callable[[int], Any]) -> int:
    """All three brokers go, the leader last; who that was."""
    last = stage.partition().leader
    for at in [at for at in BROKERS if at != last] + [last]:
        gone = leave(at)
        if gone is not None:
            await gone
        await stage.until(lambda at=at: at not in stage.partition().isr)  # type: ignore[misc]
    await stage.until(lambda: stage.partition().leader == NO_LEADER)
    assert stage.partition().isr == ()
    return last


@pytest.mark.parametrize("seed", range(2))
def test_topic_without_a_wish_survives_the_loss_of_any_broker(seed: int) -> None:
    async def script(stage: Stage) -> None:
        assert len(stage.partition().replicas) == 3
        assert stage.image.config(TOPIC, "t") == {"min.insync.replicas": "2"}
        before = stage.partition()
        stage.kill(before.leader)
        await stage.until(lambda: stage.partition().leader not in (before.leader, NO_LEADER), 2)
        assert before.leader not in stage.partition().isr
        assert stage.partition().leader_epoch == before.leader_epoch + 1

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_after_power_cuts_of_all_the_last_leader_returns_and_it_is_told(seed: int) -> None:
    async def script(stage: Stage) -> None:
        last = await lose_one_by_one(stage, stage.power_cut)
        assert stage.partition().last_known_elr == (last,)
        active = stage.active
        await stage.until(lambda: stage.told(active, EventKind.PARTITIONS_LEADERLESS))
        (text,) = stage.told(active, EventKind.PARTITIONS_LEADERLESS)
        assert text.startswith("1 without a leader: t-0 (waits for ")
        sample = "kafka_controller_kafkacontroller_offlinepartitionscount 1"
        assert sample in render(active).splitlines()
        others = [at for at in BROKERS if at != last]
        for at in others:
            await stage.cluster.nodes[at].start()
        await asyncio.sleep(5)
        assert stage.partition().leader == NO_LEADER, "neither may have what was acknowledged"
        await stage.cluster.nodes[last].start()
        await stage.until(lambda: stage.partition().leader == last)
        await stage.until(lambda: stage.told(active, EventKind.PARTITIONS_LED))
        await stage.until(lambda: stage.told(stage.node(last), EventKind.UNCLEAN_ELECTION))
        assert stage.told(stage.node(last), EventKind.UNCLEAN_ELECTION) == ["leads 1: t-0"]
        assert all(not stage.told(stage.node(at), EventKind.UNCLEAN_ELECTION) for at in others)
        await stage.until(lambda: set(stage.partition().isr) == set(BROKERS))
        assert stage.partition().leader_recovery_state != RECOVERING, (
            "it said that it has recovered"
        )

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_synced_records_outlive_a_power_cut_of_all_at_once(seed: int) -> None:
    async def script(stage: Stage) -> None:
        values = [b"%d" % number for number in range(30)]
        await stage.send(values)
        everybody = tuple(stage.cluster.nodes)
        for at in everybody:
            stage.power_cut(at)
        for at in everybody:
            stage.cluster.nodes[at].boot()
        await stage.until(lambda: len(stage.actives()) == 1 and "t" in stage.image.topics_by_name)
        assert await stage.read() == values
        await stage.until(lambda: len(stage.partition().isr) == 3)
        ends = {stage.node(at).replicas.find("t", 0).log.end_offset for at in BROKERS}
        assert ends == {len(values)}

    play(script, seed, {"log.flush.interval.messages": "1"})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("killed", [False, True])
def test_after_shutdowns_and_kills_any_eligible_replica_leads_and_nothing_is_flagged(
    seed: int, killed: bool
) -> None:
    async def script(stage: Stage) -> None:
        def leave(at: int) -> Any:
            return stage.kill(at) if killed else stage.cluster.nodes[at].stop()

        last = await lose_one_by_one(stage, leave)
        eligible = stage.partition().eligible_leader_replicas
        assert len(eligible) == 2
        assert last in eligible
        (other,) = [at for at in eligible if at != last]
        await stage.cluster.nodes[other].start()
        await stage.until(lambda: stage.partition().leader == other)
        assert stage.partition().leader_recovery_state != RECOVERING
        described = await stage.admin(lambda admin: admin.describe_topics(["t"]))
        (partition,) = described["t"].partitions
        assert partition.eligible_leader_replicas == (last,)

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_replica_leads_and_not_the_leader_that_lost_its_power(seed: int) -> None:
    """What only the two had in their page caches is acknowledged, and one of these is whole."""

    async def script(stage: Stage) -> None:
        leader = stage.partition().leader
        first, second = (at for at in BROKERS if at != leader)
        stage.kill(first)
        await stage.until(lambda: first not in stage.partition().isr)
        await stage.send([b"%d" % number for number in range(20)])
        stage.kill(second)
        await stage.until(lambda: stage.partition().isr == (leader,))
        stage.power_cut(leader)
        await stage.until(lambda: stage.partition().leader == NO_LEADER)
        await stage.cluster.nodes[leader].start()
        assert stage.partition().eligible_leader_replicas == (second,)
        await stage.cluster.nodes[second].start()
        await stage.until(lambda: stage.partition().leader != NO_LEADER)
        assert stage.partition().leader == second
        assert stage.partition().leader_recovery_state != RECOVERING
        await stage.cluster.nodes[first].start()
        await stage.until(lambda: len(stage.partition().isr) == 3)
        assert await stage.read() == [b"%d" % number for number in range(20)]
        for at in BROKERS:
            assert not stage.told(stage.node(at), EventKind.UNCLEAN_ELECTION)

    play(script, seed)
