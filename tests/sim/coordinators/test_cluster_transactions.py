"""Transactions over three brokers: each leads one partition, and any of them coordinates.

A reader of what is committed finds each number in all partitions or in none, as its producer was
told, when brokers die in the middle, and however often their coordinator moves.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scriba.broker.node import Node
from scriba.client import (
    Admin,
    ClientError,
    Consumer,
    Isolation,
    NewTopic,
    Producer,
    TopicPartition,
    TransactionError,
)
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

NODES = (1, 2, 3)
TOPIC, TID, GROUP = "numbers", "counter", "readers"
MANY = 10_000
"""More transactions than there is time for."""
BOOTSTRAP = "n1:9092,n2:9092,n3:9092"
SETTINGS = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "500",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "log.flush.interval.messages": "1",
}
Script = Callable[["Scene", ProcessWorld], Awaitable[None]]


class Scene:
    def __init__(self, seed: int) -> None:
        self.sim = SimWorld(seed)
        self.cluster = SimCluster(self.sim, 3, 0, SETTINGS, pytest.fail)
        self.told: dict[int, bool] = {}
        self.stopping = False

    def node(self, node_id: int) -> Node:
        node = self.cluster.nodes[node_id].node
        assert node is not None
        return node

    def coordinator(self) -> int:
        """Who coordinates the producer, as the first node knows."""
        node = self.node(next(at for at, _ in self.cluster.running()))
        topic = node.image.topics_by_name[node.txn_coordinators.topic]
        return topic.partitions[node.txn_coordinators.partition_of(TID)].leader

    async def mid_commit(self) -> None:
        """Returns when a transaction's outcome stands and its markers are on their way."""
        async with asyncio.timeout(60):
            while not self.node(self.coordinator()).txn_markers._ending:  # noqa: ASYNC110
                await asyncio.sleep(0.0002)

    async def restart(self, node_id: int, after_s: float = 0.5) -> None:
        self.cluster.nodes[node_id].process.kill()
        await asyncio.sleep(after_s)
        await self.cluster.nodes[node_id].start()

    async def make_topic(self, world: ProcessWorld, factor: int) -> None:
        """Each broker leads one partition."""
        placed = {n: [*NODES[n : n + factor], *NODES[: max(0, n + factor - 3)]] for n in range(3)}
        async with Admin(bootstrap_servers=BOOTSTRAP, _ports=world) as admin:
            configs = {"min.insync.replicas": str(min(2, factor))}
            await admin.create_topics([NewTopic(TOPIC, assignments=placed, configs=configs)])

    async def count(self, world: ProcessWorld, numbers: range) -> None:
        """One transaction for each number, to all three partitions; every third is aborted."""
        left = list(numbers)
        while left and not self.stopping:
            try:
                async with Producer(
                    bootstrap_servers=BOOTSTRAP, transactional_id=TID, _ports=world
                ) as producer:
                    while left and not self.stopping:
                        await self.transact(producer, left[0])
                        left.pop(0)
            except (TransactionError, ClientError):
                await asyncio.sleep(0.1)
                left.pop(0)  # what became of it is not known

    async def transact(self, producer: Producer, number: int) -> None:
        commit = number % 3 != 2
        try:
            async with producer.transaction():
                for partition in range(3):
                    await producer.send(TOPIC, b"%d" % number, partition=partition)
                if not commit:
                    raise Aborted
        except Aborted:
            pass
        self.told[number] = commit

    async def read(self, world: ProcessWorld) -> list[list[int]]:
        """What is committed in each partition, once nothing is open any more."""
        found: list[list[int]] = [[], [], []]
        async with (
            Consumer(
                bootstrap_servers=BOOTSTRAP,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                _ports=world,
            ) as consumer,
            Admin(bootstrap_servers=BOOTSTRAP, _ports=world) as admin,
        ):
            wheres = [TopicPartition(TOPIC, n) for n in range(3)]
            ends = await self.stable_ends(admin, wheres)
            consumer.assign(wheres)
            while await self.behind(consumer, ends):
                for record in await consumer.poll(timeout_ms=500):
                    assert record.value is not None
                    found[record.partition].append(int(record.value))
        return found

    async def behind(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        return [await consumer.position(at) for at in ends] != list(ends.values())

    async def stable_ends(
        self, admin: Admin, wheres: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        async with asyncio.timeout(60):
            while True:
                stable = await admin.list_offsets(
                    dict.fromkeys(wheres, -1), isolation=Isolation.READ_COMMITTED
                )
                ends = await admin.list_offsets(dict.fromkeys(wheres, -1))
                if stable == ends:
                    return {where: end.offset for where, end in ends.items() if end is not None}
                await asyncio.sleep(0.1)

    async def check(self, world: ProcessWorld) -> None:
        found = await self.read(world)
        assert found[0] == found[1] == found[2]
        assert found[0] == sorted(set(found[0]))
        for number, commit in self.told.items():
            assert (number in found[0]) == commit, number


class Aborted(Exception):
    """The producer has changed its mind."""


def play(script: Script, seed: int = 1) -> None:
    scene = Scene(seed)

    async def main() -> None:
        await scene.cluster.start()

        async def client(world: ProcessWorld) -> None:
            await script(scene, world)

        await scene.sim.host("client").start(client).task
        for node in scene.cluster.nodes.values():
            await node.stop()

    scene.sim.run(main())


def test_a_transaction_ends_on_three_brokers() -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world, factor=1)
        await scene.count(world, range(20))
        assert len(scene.told) == 20
        await scene.check(world)

    play(script)


@pytest.mark.parametrize("seed", range(3))
def test_a_coordinator_that_dies_leaves_no_transaction_open(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world, factor=3)
        counting = asyncio.ensure_future(scene.count(world, range(MANY)))
        for _ in range(3):
            await asyncio.sleep(1.5)
            await scene.mid_commit()
            await scene.restart(scene.coordinator())
        scene.stopping = True
        await counting
        assert len(scene.told) > 3
        await scene.check(world)

    play(script, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_partition_that_is_away_gets_its_marker_when_it_is_back(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world, factor=1)
        await scene.count(world, range(3))
        other = next(at for at in NODES if at != scene.coordinator())
        counting = asyncio.ensure_future(scene.count(world, range(3, MANY)))
        for _ in range(2):
            await asyncio.sleep(1)
            await scene.mid_commit()
            await scene.restart(other, after_s=3)
        scene.stopping = True
        await counting
        await scene.check(world)

    play(script, seed)
