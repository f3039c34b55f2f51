"""A leader that its clients reach and the other nodes do not.

The others elect a new one. The old one cannot know that: it goes on to say that it leads, takes
records that it can never acknowledge, and names itself as coordinator. Whoever has no connection
but to that one must come to ask another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from scriba.events import EventKind
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from tests.sim.broker_stage import BROKERS, Stage

TOPIC, GROUP, TID = "t", "readers", "writer"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
SETTINGS = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "500",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
PATIENCE: dict[str, Any] = {"request_timeout_ms": 5_000, "metadata_max_age_ms": 10_000}
WITHIN_S = 60
"""Virtual time in which clients must have found the way; nothing is healed before."""


class Scene:
    def __init__(self, seed: int) -> None:
        self.sim = SimWorld(seed)
        self.cluster = SimCluster(self.sim, 3, 0, SETTINGS, pytest.fail)
        self.leader = 1

    @property
    def bootstrap(self) -> str:
        """The leader alone: nobody has a connection to another by chance."""
        return f"{self.cluster.name(self.leader)}:{CLIENT_PORT}"

    def leader_of(self, topic: str, by: int) -> int:
        node = self.cluster.nodes[by].node
        assert node is not None
        return node.image.topics_by_name[topic].partitions[0].leader

    async def make_topic(self, world: ProcessWorld, *, beside: str = "") -> None:
        """Led by whoever leads `beside`, which is there already."""
        self.leader = self.leader_of(beside, 1) if beside else 1
        others = [at for at in self.cluster.ids if at != self.leader]
        async with Admin(bootstrap_servers=self.bootstrap, _ports=world) as admin:
            configs = {"min.insync.replicas": "2"}
            placed = {0: [self.leader, *others]}
            await admin.create_topics([NewTopic(TOPIC, assignments=placed, configs=configs)])

    def producer(self, world: ProcessWorld, **more: Any) -> Producer:
        return Producer(bootstrap_servers=self.bootstrap, _ports=world, **PATIENCE, **more)

    def consumer(self, world: ProcessWorld, **more: Any) -> Consumer:
        return Consumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            _ports=world,
            **PATIENCE,
            **more,
        )

    async def cut_off(self) -> None:
        """Returns when the others have elected another leader."""
        others = [at for at in self.cluster.ids if at != self.leader]
        for other in others:
            self.sim.network.cut(self.cluster.name(self.leader), self.cluster.name(other))
        async with asyncio.timeout(WITHIN_S):
            while self.leader_of(TOPIC, others[0]) in (self.leader, -1):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert self.leader_of(TOPIC, self.leader) == self.leader, "it cannot know"


def play(script: Callable[[Scene, ProcessWorld], Awaitable[None]], seed: int) -> None:
    scene = Scene(seed)

    async def main() -> None:
        await scene.cluster.start()
        done: list[bool] = []

        async def client(world: ProcessWorld) -> None:
            await script(scene, world)
            done.append(True)

        await scene.sim.host("client").start(client).task
        assert done

    scene.sim.run(main())


async def read_one(consumer: Consumer) -> bytes | None:
    async with asyncio.timeout(WITHIN_S):
        while not (found := await consumer.poll(1_000)):
            pass
    value: bytes | None = found[0].value
    return value


@pytest.mark.parametrize("seed", range(2))
def test_producer_finds_the_new_leader(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world)
        async with scene.producer(world) as producer:
            await producer.send(TOPIC, b"before", partition=0)
            await scene.cut_off()
            async with asyncio.timeout(WITHIN_S):
                await producer.send(TOPIC, b"after", partition=0)

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_producer_that_begins_at_the_old_leader_gets_its_id_elsewhere(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world)
        await scene.cut_off()
        async with scene.producer(world) as producer, asyncio.timeout(WITHIN_S):
            await producer.send(TOPIC, b"after", partition=0)

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_consumer_that_hears_nothing_from_the_old_leader_reads_from_the_new_one(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world)
        async with scene.consumer(world) as consumer, scene.producer(world) as producer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            await producer.send(TOPIC, b"before", partition=0)
            assert await read_one(consumer) == b"before"
            await scene.cut_off()
            await producer.send(TOPIC, b"after", partition=0)
            assert await read_one(consumer) == b"after"

    play(script, seed)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_member_of_a_group_commits_at_the_new_coordinator(protocol: str) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        more = {"group_id": GROUP, "group_protocol": protocol}
        where = TopicPartition(TOPIC, 0)
        async with scene.consumer(world, **more) as early:
            await early.committed([where])  # there are coordinators from now on
        await scene.make_topic(world, beside=OFFSETS)
        async with scene.consumer(world, **more) as consumer, scene.producer(world) as producer:
            consumer.subscribe([TOPIC])
            await producer.send(TOPIC, b"before", partition=0)
            assert await read_one(consumer) == b"before"
            await consumer.commit()
            await scene.cut_off()
            await producer.send(TOPIC, b"after", partition=0)
            assert await read_one(consumer) == b"after"
            async with asyncio.timeout(WITHIN_S):
                await consumer.commit()
                found = (await consumer.committed([where]))[where]
            assert found is not None
            assert found.offset == 2

    play(script, seed=1)


@pytest.mark.parametrize("seed", range(2))
def test_transaction_is_committed_by_the_new_coordinator(seed: int) -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        async with scene.producer(world, transactional_id="first"):
            pass  # there are coordinators from now on
        await scene.make_topic(world, beside=TRANSACTIONS)
        async with scene.producer(world, transactional_id=TID) as producer:
            await scene.cut_off()
            await producer.begin_transaction()
            await producer.send(TOPIC, b"after", partition=0)
            await producer.commit_transaction()
        async with scene.consumer(world, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            assert await read_one(consumer) == b"after"

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_leader_that_only_controllers_and_clients_reach_steps_down(seed: int) -> None:
    """At Kafka's defaults: before it has shrunk an ISR to itself, and whoever writes goes on."""
    stage = Stage(SimWorld(seed))
    leader, *others = BROKERS

    async def write(world: ProcessWorld) -> None:
        async with Producer(bootstrap_servers=stage.servers, acks="all", _ports=world) as producer:
            await producer.send(TOPIC, b"before", partition=0)
            for other in others:
                stage.sim.network.cut(stage.cluster.name(leader), stage.cluster.name(other))
            async with asyncio.timeout(WITHIN_S):
                await producer.send(TOPIC, b"after", partition=0)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == len(BROKERS))
        configs = {"min.insync.replicas": "2"}
        topic = NewTopic(TOPIC, assignments={0: list(BROKERS)}, configs=configs)
        await stage.admin(lambda admin: admin.create_topics([topic]))
        await stage.sim.host("client").start(write).task
        told = [event.kind for event in stage.node(leader).events.page(0, 256).events]
        assert EventKind.LEADER_CUT_OFF in told
        assert EventKind.ISR_SHRUNK not in told
        assert stage.partition(TOPIC).leader == others[0]
        stage.sim.network.heal()
        await stage.until(lambda: {*stage.partition(TOPIC).isr} == {*BROKERS})

    stage.sim.run(main())
    assert not stage.complaints


def test_administrator_whose_broker_reaches_no_controller_is_served_by_another() -> None:
    async def script(scene: Scene, world: ProcessWorld) -> None:
        await scene.make_topic(world)
        async with Admin(bootstrap_servers=scene.bootstrap, _ports=world, **PATIENCE) as admin:
            await admin.describe_topics([TOPIC])
            await scene.cut_off()
            async with asyncio.timeout(WITHIN_S):
                await admin.create_topics([NewTopic("another", 1, 1)])

    play(script, seed=1)
