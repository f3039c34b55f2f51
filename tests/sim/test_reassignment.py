"""Replicas move between brokers of a real cluster while clients write, whoever dies meanwhile.

Three controllers (1 to 3) and four brokers (4 to 7). A partition with data has its replicas on 4, 5
and 6, and moves to 7, 5 and 6: broker 4, which leads, is its source, 7 its target.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from scriba.broker.metrics.exposition import render
from scriba.client import (
    Admin,
    BrokerError,
    ClientError,
    ConfigOp,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
)
from scriba.controller.image import PartitionImage
from scriba.errors import ErrorCode
from scriba.testing.sim.cluster import DATA
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from tests.sim.broker_stage import Stage

SOURCE, TARGET, OTHERS = 4, 7, (5, 6)
BEFORE, AFTER = (SOURCE, *OTHERS), (TARGET, *OTHERS)
CONTROLLER: Final = 0
"""Whichever controller is active."""
RECORDS = 150
SETTINGS = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "replica.fetch.max.bytes": "4000",
    "log.flush.interval.messages": "1",
}


class Moving(Stage):
    def __init__(self, seed: int) -> None:
        super().__init__(SimWorld(seed), 4, SETTINGS)
        self.acknowledged: list[bytes] = []
        self.stopping = False

    async def set_up(self) -> None:
        await self.cluster.start()
        await self.until(lambda: len(self.image.brokers) == 4)
        configs = {"min.insync.replicas": "2", "file.delete.delay.ms": "1000"}
        topic = NewTopic("t", assignments={0: list(BEFORE)}, configs=configs)
        await self.admin(lambda admin: admin.create_topics([topic]))
        await self.until(lambda: len(self.partition().isr) == 3)
        await self.sim.host("writer").start(lambda world: self.write(world, RECORDS)).task

    async def write(self, world: ProcessWorld, count: int) -> None:
        """Writes until it is told to stop, or has written so many."""
        number = len(self.acknowledged)
        async with Producer(bootstrap_servers=self.servers, acks="all", _ports=world) as producer:
            for _ in range(count):
                value = b"%d " % number + b"x" * 500
                try:
                    await producer.send("t", value, partition=0)
                except ClientError:
                    continue
                self.acknowledged.append(value)
                number += 1
                if self.stopping:
                    return
                if number > RECORDS:
                    await asyncio.sleep(0.02)

    async def read(self) -> list[bytes]:
        found: list[bytes] = []

        async def client(world: ProcessWorld) -> None:
            consumer = Consumer(bootstrap_servers=self.servers, _ports=world)
            async with consumer:
                consumer.assign([("t", 0)])
                consumer.seek_to_beginning()
                while len(found) < len(self.acknowledged):
                    found.extend(record.value or b"" for record in await consumer.poll(1000))

        async with asyncio.timeout(120):
            await self.sim.host("reader").start(client).task
        return found

    async def move(self, replicas: tuple[int, ...] | None) -> None:
        await self.admin(lambda admin: admin.alter_partition_reassignments({("t", 0): replicas}))

    def holds(self, broker: int) -> list[str]:
        """Directories of the partition on a broker's disk."""
        found = self.cluster.hosts[broker].volume.files()
        return sorted({path.split("/")[2] for path in found if path.startswith(f"{DATA}/t-0")})

    def copied(self) -> int:
        """How far the target has come."""
        node = self.cluster.nodes[TARGET].node
        replica = None if node is None else node.replicas.get("t", 0)
        return 0 if replica is None else replica.log.end_offset

    def throttled(self, side: str, broker: int) -> int:
        return int(getattr(self.node(broker).settings, f"{side}_replication_throttled_rate"))

    async def settle(self, replicas: tuple[int, ...]) -> None:
        await self.cluster.start()

        def settled() -> bool:
            now: PartitionImage = self.partition()
            return {*now.replicas} == {*replicas} == {*now.isr} and not now.is_reassigning

        await self.until(settled)


def play(script: Callable[[Moving], Awaitable[None]], seed: int = 0) -> None:
    stage = Moving(seed)

    async def main() -> None:
        await stage.set_up()
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def active(stage: Moving) -> int:
    return next(at for at, node in stage.cluster.running() if node is stage.active)


STEPS: dict[str, Callable[[Moving], bool]] = {
    "the target is to be added": lambda stage: stage.partition().is_reassigning,
    "the target copies": lambda stage: stage.copied() >= RECORDS // 3,
    "the target takes over": lambda stage: stage.partition().replicas == AFTER,
    "the source lets go": lambda stage: stage.holds(SOURCE) != ["t-0"],
}


@pytest.mark.parametrize("victim", [SOURCE, TARGET, CONTROLLER])
@pytest.mark.parametrize("step", STEPS)
def test_it_is_done_and_nothing_is_lost_whoever_dies_at_any_step(step: str, victim: int) -> None:
    async def script(stage: Moving) -> None:
        writer = stage.sim.host("writer").start(lambda world: stage.write(world, 100_000))
        moving = asyncio.ensure_future(stage.move(AFTER))
        async with asyncio.timeout(60):
            while not STEPS[step](stage):  # noqa: ASYNC110 (the very step is waited for)
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


def set_to(**values: str) -> list[tuple[str, ConfigOp, str]]:
    return [(name.replace("_", "."), ConfigOp.SET, value) for name, value in values.items()]


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
    async def script(stage: Moving) -> None:
        every = {
            ConfigResource.broker(broker): set_to(
                leader_replication_throttled_rate="1", follower_replication_throttled_rate="1"
            )
            for broker in (SOURCE, TARGET, *OTHERS)
        }
        named = {
            ConfigResource.topic("t"): set_to(
                leader_replication_throttled_replicas="*",
                follower_replication_throttled_replicas="*",
            )
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs({**every, **named}))
        await stage.until(lambda: stage.throttled("leader", SOURCE) == 1)
        await stage.move(AFTER)
        before = len(stage.acknowledged)
        async with asyncio.timeout(10):
            await stage.sim.host("writer").start(lambda world: stage.write(world, 50)).task
        assert len(stage.acknowledged) == before + 50
        assert {*stage.partition().isr} == {*BEFORE}
        assert stage.copied() < RECORDS // 2
        gone = {
            resource: [(name, ConfigOp.DELETE, None) for name, _, _ in ops]
            for resource, ops in {**every, **named}.items()
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs(gone))
        await stage.settle(AFTER)
        assert await stage.read() == stage.acknowledged

    play(script)
