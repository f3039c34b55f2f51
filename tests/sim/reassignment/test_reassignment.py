"""Replicas move between brokers of a real cluster while clients write, whoever dies meanwhile.

Three controllers (1 to 3) and four brokers (4 to 7). A partition with data has its replicas on 4, 5
and 6, and moves to 7, 5 and 6: broker 4, which leads, is its source, 7 its target.
"""

import asyncio

import pytest

from scriba.broker.metrics.exposition import render
from scriba.client import (
    Admin,
    BrokerError,
    ConfigResource,
    NewTopic,
)
from scriba.errors import ErrorCode
from tests.sim.reassignment.moving import (
    AFTER,
    BEFORE,
    CONTROLLER,
    OTHERS,
    RECORDS,
    SOURCE,
    TARGET,
    Moving,
    in_sync_are_exempt,
    play,
    set_to,
)


def active(stage: Moving) -> int:
    return next(at for at, node in stage.cluster.running() if node is stage.active)


@pytest.mark.parametrize("victim", [SOURCE, TARGET, CONTROLLER])
def test_it_is_done_and_nothing_is_lost_whoever_dies_while_the_target_copies(victim: int) -> None:
    """At its other steps: test_reassignment_crashes."""

    async def script(stage: Moving) -> None:
        writer = stage.sim.host("writer").start(lambda world: stage.write(world, 100_000))
        moving = asyncio.ensure_future(stage.move(AFTER))
        async with asyncio.timeout(60):
            while stage.copied() < RECORDS // 3:  # noqa: ASYNC110 (the very step is waited for)
                await asyncio.sleep(0.001)
        dies = victim or active(stage)
        stage.kill(dies)
        await asyncio.sleep(2)
        await stage.cluster.nodes[dies].start()
        await stage.settle(AFTER)
        await moving
        await stage.until(lambda: stage.holds(SOURCE) == [])
        stage.stopping = True
        await writer.task
        assert len(stage.acknowledged) > RECORDS
        assert [value for value in await stage.read() if value] == stage.acknowledged

    play(script)


def test_a_full_disk_at_the_target_holds_the_move_up_and_nobody_else() -> None:
    async def script(stage: Moving) -> None:
        host = stage.cluster.hosts[TARGET]
        before, host.disk_faults.capacity = host.disk_faults.capacity, host.volume.used + 20_000
        await stage.move(AFTER)
        await stage.until(lambda: stage.copied() > 0)
        await asyncio.sleep(5)
        assert 0 < stage.copied() < RECORDS
        assert {*stage.partition().isr} == {*BEFORE}
        assert stage.partition().is_reassigning
        written = len(stage.acknowledged)
        await stage.sim.host("writer").start(lambda world: stage.write(world, 50)).task
        assert len(stage.acknowledged) == written + 50
        host.disk_faults.capacity = before
        await stage.settle(AFTER)
        assert await stage.read() == stage.acknowledged

    play(script)


def test_the_source_removes_what_was_taken_away_while_it_was_gone() -> None:
    async def script(stage: Moving) -> None:
        stage.kill(SOURCE)
        await stage.until(lambda: stage.partition().leader != SOURCE)
        await stage.move(AFTER)
        await stage.until(lambda: stage.partition().replicas == AFTER)
        assert stage.holds(SOURCE) == ["t-0"]
        await stage.settle(AFTER)
        await stage.until(lambda: stage.holds(SOURCE) == [])
        assert await stage.read() == stage.acknowledged

    play(script)


def test_cancelled_in_the_middle_the_target_has_nothing_left() -> None:
    async def script(stage: Moving) -> None:
        moving = asyncio.ensure_future(stage.move(AFTER))
        await stage.until(lambda: stage.copied() > 0)
        await moving
        await stage.move(None)
        await stage.settle(BEFORE)
        await stage.until(lambda: stage.holds(TARGET) == [])
        await stage.move(AFTER)
        await stage.settle(AFTER)
        assert stage.holds(TARGET) == ["t-0"]
        assert await stage.read() == stage.acknowledged

    play(script)


def test_a_replica_comes_and_goes_faster_than_its_files() -> None:
    async def script(stage: Moving) -> None:
        for _ in range(3):
            await stage.move(AFTER)
            await stage.settle(AFTER)
            await stage.move(BEFORE)
            await stage.settle(BEFORE)
        await stage.until(lambda: stage.holds(TARGET) == [])
        await stage.until(lambda: stage.holds(SOURCE) == ["t-0"])
        assert await stage.read() == stage.acknowledged

    play(script)


def test_one_becomes_three_and_one_again() -> None:
    async def script(stage: Moving) -> None:
        topic = NewTopic("alone", assignments={0: [5]})
        await stage.admin(lambda admin: admin.create_topics([topic]))

        async def to(*replicas: int) -> None:
            move = {("alone", 0): list(replicas)}
            await stage.admin(lambda admin: admin.alter_partition_reassignments(move))
            await stage.until(lambda: {*stage.partition("alone").isr} == {*replicas})
            assert stage.partition("alone").replicas == replicas

        await to(5, 6, 7)
        await to(7)
        assert stage.partition("alone").leader == 7

    play(script)


def test_while_it_runs_it_is_listed_and_counted_and_nothing_is_under_replicated() -> None:
    async def script(stage: Moving) -> None:
        stage.kill(TARGET)
        await stage.until(lambda: stage.image.brokers[TARGET].fenced)
        await stage.move(AFTER)
        under_way = await stage.admin(lambda admin: admin.list_partition_reassignments())
        (found,) = under_way.values()
        assert (found.adding, found.removing, found.target) == ((TARGET,), (SOURCE,), AFTER)
        await stage.until(lambda: "reassigningpartitions 1" in render(stage.node(SOURCE)))
        lines = render(stage.node(SOURCE)).splitlines()
        assert "kafka_server_replicamanager_underreplicatedpartitions 0" in lines
        described = await stage.admin(lambda admin: admin.describe_topics(["t"]))
        assert described["t"].partitions[0].replicas == (*AFTER, SOURCE)
        await stage.settle(AFTER)
        assert await stage.admin(lambda admin: admin.list_partition_reassignments()) == {}

    play(script)


def test_a_topic_is_deleted_in_the_middle_of_a_move() -> None:
    async def script(stage: Moving) -> None:
        moving = asyncio.ensure_future(stage.move(AFTER))
        await stage.until(lambda: stage.copied() > 0)
        await moving
        await stage.admin(lambda admin: admin.delete_topics(["t"]))
        for broker in (SOURCE, TARGET, *OTHERS):
            await stage.until(lambda broker=broker: stage.holds(broker) == [])  # type: ignore[misc]

    play(script)


def test_the_client_is_told_why_a_move_is_refused() -> None:
    async def refusal(admin: Admin, replicas: list[int] | None) -> BrokerError:
        with pytest.raises(BrokerError) as refused:
            await admin.alter_partition_reassignments({("t", 0): replicas})
        return refused.value

    async def script(stage: Moving) -> None:
        unknown = await stage.admin(lambda admin: refusal(admin, [5, 99]))
        assert unknown.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "names broker 99, which the cluster does not have" in str(unknown)
        nothing = await stage.admin(lambda admin: refusal(admin, None))
        assert nothing.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

    play(script)


# ---- throttles ----


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "named"])
def test_a_throttle_holds_within_ten_percent(side: str, replicas: str) -> None:
    rate = 10_000
    broker = SOURCE if side == "leader" else TARGET

    async def script(stage: Moving) -> None:
        await stage.admin(
            lambda admin: admin.incremental_alter_configs(
                {
                    ConfigResource.topic("t"): set_to(
                        **{
                            f"{side}_replication_throttled_replicas": "*"
                            if replicas == "*"
                            else f"0:{broker}"
                        }
                    ),
                    ConfigResource.broker(broker): set_to(
                        **{f"{side}_replication_throttled_rate": str(rate)}
                    ),
                }
            )
        )
        await stage.until(lambda: stage.throttled(side, broker) == rate)
        size = stage.node(SOURCE).replicas.find("t", 0).log.size
        begun = stage.sim.loop.time()
        await stage.move(AFTER)
        await stage.until(lambda: stage.partition().replicas == AFTER, 600)
        took = stage.sim.loop.time() - begun
        assert size / took == pytest.approx(rate, rel=0.1)

    play(script)


def test_in_sync_replicas_are_exempt_from_the_throttle() -> None:
    play(in_sync_are_exempt)
