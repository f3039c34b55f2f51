"""A partition with data that moves between brokers of a simulated cluster while clients write.

Three controllers (1 to 3) and four brokers (4 to 7). The partition has its replicas on 4, 5 and 6,
and moves to 7, 5 and 6: broker 4, which leads, is its source, 7 its target.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from scriba.client import ClientError, ConfigOp, ConfigResource, Consumer, NewTopic, Producer
from scriba.controller.image import PartitionImage
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


Script = Callable[[Moving], Awaitable[None]]


def play(script: Script, seed: int = 0) -> None:
    stage = Moving(seed)

    async def main() -> None:
        await stage.set_up()
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def set_to(**values: str) -> list[tuple[str, ConfigOp, str]]:
    return [(name.replace("_", "."), ConfigOp.SET, value) for name, value in values.items()]


async def in_sync_are_exempt(stage: Moving) -> None:
    """Records are acknowledged however slowly a new replica is filled."""
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
