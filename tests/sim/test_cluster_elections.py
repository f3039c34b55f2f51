"""Who leads when brokers of a real cluster die and return: three controllers and three brokers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.broker.metrics.exposition import render
from scriba.client import Admin, NewTopic
from scriba.controller.image import NO_LEADER, RECOVERING, TOPIC, ClusterImage, PartitionImage
from scriba.events import EventKind
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.node import Node
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

BROKERS = (4, 5, 6)


class Stage:
    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.complaints: list[str] = []
        self.cluster = SimCluster(sim, 3, 3, {}, self.complaints.append, dedicated=True)

    async def until(self, true: Callable[[], Any], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110 (whatever a test waits for)
                await asyncio.sleep(0.05)

    @property
    def active(self) -> Node:
        (node,) = [node for _, node in self.cluster.running() if _is_active(node)]
        return node

    @property
    def image(self) -> ClusterImage:
        return self.active.metadata.image

    def partition(self, topic: str = "t") -> PartitionImage:
        return self.image.topics_by_name[topic].partitions[0]

    def node(self, at: int) -> Node:
        node = self.cluster.nodes[at].node
        assert node is not None
        return node

    def kill(self, at: int) -> None:
        self.cluster.nodes[at].process.kill()

    def told(self, node: Node, kind: EventKind) -> list[str]:
        return [each.text for each in node.events.page(0, 1000).events if each.kind is kind]

    async def admin(self, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
        answers: list[Any] = []

        async def client(world: ProcessWorld) -> None:
            servers = ",".join(f"{name}:{CLIENT_PORT}" for name in self.cluster.brokers)
            async with Admin({"bootstrap.servers": servers}, _ports=world) as admin:
                answers.append(await ask(admin))

        await self.sim.host("client").start(client).task
        return answers[0]


def _is_active(node: Node) -> bool:
    return getattr(node, "metadata", None) is not None and node.metadata.active is not None


def play(script: Callable[[Stage], Awaitable[None]], seed: int) -> None:
    sim = SimWorld(seed)
    stage = Stage(sim)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", 1)]))
        await stage.until(lambda: len(stage.partition().isr) == 3)
        await script(stage)

    sim.run(main())
    assert not stage.complaints


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
def test_after_crashes_of_all_the_last_leader_returns_and_it_is_told(seed: int) -> None:
    async def script(stage: Stage) -> None:
        last = await lose_one_by_one(stage, stage.kill)
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
def test_after_clean_shutdowns_any_eligible_replica_leads_and_nothing_is_flagged(
    seed: int,
) -> None:
    async def script(stage: Stage) -> None:
        last = await lose_one_by_one(stage, lambda at: stage.cluster.nodes[at].stop())
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
