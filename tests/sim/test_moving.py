"""`scriba cluster drain` and `balance` on a real cluster: in waves, with a throttle, again after a
crash of whoever ran them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.cli.cluster.moving import (
    RATES,
    REPLICAS,
    Throttling,
    carry_out,
    look,
    take_back_throttles,
)
from scriba.cli.cluster.reassign import check, document, page
from scriba.cli.problems import CommandError
from scriba.client import Admin, ConfigOp, ConfigResource, NewTopic, TopicPartition
from scriba.placement.planning import balance, drain, loads
from scriba.testing.sim.world.world import SimWorld
from tests.sim.broker_stage import Stage

BROKERS = (4, 5, 6, 7)
PARTITIONS = 12


def play(script: Callable[[Stage], Awaitable[None]]) -> None:
    stage = Stage(SimWorld(1), 4)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 4)
        placed = {n: [4 + n % 3, 4 + (n + 1) % 3] for n in range(PARTITIONS)}
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", assignments=placed)]))
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


async def move(stage: Stage, admin: Admin, plan: Any, at_once: int = 3) -> list[str]:
    facts, _ = await look(admin)
    told: list[str] = []
    clock = stage.sim.loop.time
    await carry_out(admin, facts, plan(facts), at_once, clock, asyncio.sleep, told.append)
    return told


def test_a_new_broker_gets_its_share_and_a_drained_one_is_empty() -> None:
    async def script(stage: Stage) -> None:
        await stage.admin(lambda admin: move(stage, admin, balance))
        facts, under_way = await stage.admin(look)
        assert not under_way
        assert [load.replicas for load in loads(facts.placed, facts).values()] == [6, 6, 6, 6]
        await stage.admin(lambda admin: move(stage, admin, lambda facts: drain(facts, {5})))
        facts, _ = await stage.admin(look)
        assert [load.replicas for load in loads(facts.placed, facts).values()] == [8, 0, 8, 8]
        await stage.until(lambda: not tuple(stage.node(5).replicas))

    play(script)


def test_whoever_runs_it_again_goes_on_with_what_is_under_way() -> None:
    async def begin(admin: Admin) -> None:
        facts, _ = await look(admin)
        plan = drain(facts, {4})
        first = dict(list(plan.items())[:2])
        await admin.alter_partition_reassignments(first)  # and then it died

    async def script(stage: Stage) -> None:
        stage.kill(7)
        await stage.until(lambda: stage.image.brokers[7].fenced)
        await stage.cluster.nodes[7].start()
        await stage.admin(begin)
        await stage.admin(lambda admin: move(stage, admin, lambda facts: drain(facts, {4})))

        def emptied() -> bool:
            partitions = stage.image.topics_by_name["t"].partitions.values()
            return all(4 not in each.replicas for each in partitions)

        await stage.until(emptied)

    play(script)


def test_a_throttle_is_set_and_taken_back_and_anothers_is_respected() -> None:
    async def rates(admin: Admin) -> set[str | None]:
        brokers = [ConfigResource.broker(broker) for broker in BROKERS]
        found = await admin.describe_configs(brokers, names=RATES)
        return {entry.value for entries in found.values() for entry in entries.values()}

    async def script(stage: Stage) -> None:
        facts, _ = await stage.admin(look)
        plan = balance(facts)
        await stage.admin(lambda a: Throttling(a, 1000, BROKERS).set(plan, facts.placed, {}))
        configs = stage.image.config(2, "t")
        where = next(w for w in plan if {*plan[w]} != {*facts.placed[w]})
        (new,) = {*plan[where]} - {*facts.placed[where]}
        named = configs["follower.replication.throttled.replicas"].split(",")
        assert f"{where.partition}:{new}" in named
        assert await stage.admin(rates) == {"1000"}
        await stage.admin(lambda a: Throttling(a, 1000, BROKERS).set(plan, facts.placed, {}))
        with pytest.raises(CommandError, match="set by somebody else; give --throttle 1000"):
            await stage.admin(lambda a: Throttling(a, 2000, BROKERS).set(plan, facts.placed, {}))
        await stage.admin(lambda admin: take_back_throttles(admin, BROKERS))
        assert await stage.admin(rates) == {str(2**63 - 1)}
        assert stage.image.config(2, "t") == {}
        other = {ConfigResource.broker(4): [(RATES[0], ConfigOp.SET, "7")]}
        await stage.admin(lambda admin: admin.incremental_alter_configs(other))

    play(script)


def test_the_only_replica_that_is_fetched_from_a_leader_goes_on_when_its_throttle_is_gone() -> None:
    """Nothing else is asked of that leader, whose answers would wake whoever waits."""

    def is_behind(stage: Stage) -> bool:
        replica = stage.node(7).replicas.get("t", 0)
        return replica is not None and replica.log.end_offset > 0

    async def script(stage: Stage) -> None:
        await stage.admin(lambda a: a.create_topics([NewTopic("t", assignments={0: [4]})]))
        await stage.send([b"x" * 1000] * 10)
        throttled = {
            ConfigResource.broker(7): [(RATES[1], ConfigOp.SET, "1")],
            ConfigResource.topic("t"): [(REPLICAS[1], ConfigOp.SET, "0:7")],
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs(throttled))
        await stage.until(lambda: stage.node(7).settings.follower_replication_throttled_rate == 1)
        await stage.admin(lambda a: a.alter_partition_reassignments({("t", 0): [4, 7]}))
        await stage.until(lambda: is_behind(stage))
        await stage.send([b"x" * 1000] * 10)
        await asyncio.sleep(2)
        assert stage.partition().isr == (4,)
        free = {
            resource: [(name, ConfigOp.DELETE, None) for name, _, _ in ops]
            for resource, ops in throttled.items()
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs(free))
        await stage.until(lambda: {*stage.partition().isr} == {4, 7})

    stage = Stage(SimWorld(1), 4)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 4)
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def test_a_plan_is_checked_before_anything_begins_and_shown_as_a_difference() -> None:
    async def script(stage: Stage) -> None:
        stage.kill(7)
        await stage.until(lambda: stage.image.brokers[7].fenced)
        facts, _ = await stage.admin(look)
        where = TopicPartition("t", 0)
        for replicas, told in (
            ((4, 4), "t-0 names broker 4 twice"),
            ((), "t-0 is to have no replicas"),
            ((4, 7), "t-0 names broker 7, which is not there or fenced; choose from 4, 5, 6"),
            ((4, 99), "t-0 names broker 99, which"),
        ):
            with pytest.raises(CommandError, match=told):
                check({where: replicas}, facts)
        with pytest.raises(CommandError, match="there is no partition t-99"):
            check({TopicPartition("t", 99): (4,)}, facts)
        shown = page(document(facts, {where: (6, 5)}), 0)
        assert shown[1].split() == ["t-0", "4,5", "6,5", "0", "B"]
        assert "1 partition, 0 B to copy" in shown[-1]

    play(script)
