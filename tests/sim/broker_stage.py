"""Three controllers and some brokers on simulated hosts, for tests that tell them what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from scriba.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from scriba.controller.image import ClusterImage, PartitionImage
from scriba.events import EventKind
from scriba.testing.sim.actors.cast import everything
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.node import Node
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

BROKERS = (4, 5, 6)


class Stage:
    def __init__(
        self,
        sim: SimWorld,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.sim = sim
        self.complaints: list[str] = []
        self.cluster = SimCluster(
            sim, 3, brokers, settings or {}, self.complaints.append, dedicated=True, racks=racks
        )

    async def until(self, true: Callable[[], Any], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110 (whatever a test waits for)
                await asyncio.sleep(0.05)

    @property
    def active(self) -> Node:
        (node,) = [node for _, node in self.cluster.running() if _is_active(node)]
        return node

    def actives(self) -> set[int]:
        """Whoever takes itself for the active controller, paused or not."""
        return {at for at, node in self.cluster.running() if _is_active(node)}

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

    def power_cut(self, at: int) -> None:
        self.cluster.hosts[at].power_cut()

    def told(self, node: Node, kind: EventKind) -> list[str]:
        return [each.text for each in node.events.page(0, 1000).events if each.kind is kind]

    @property
    def servers(self) -> str:
        return ",".join(f"{name}:{CLIENT_PORT}" for name in self.cluster.brokers)

    async def send(self, values: list[bytes]) -> None:
        async def client(world: ProcessWorld) -> None:
            async with Producer(bootstrap_servers=self.servers, _ports=world) as producer:
                for value in values:
                    await producer.send("t", value)

        await self.sim.host("client").start(client).task

    async def read(self) -> list[bytes]:
        found: list[bytes] = []

        async def client(world: ProcessWorld) -> None:
            async with Consumer(bootstrap_servers=self.servers, _ports=world) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                records, _ = await everything(consumer, TopicPartition("t", 0))
                found.extend(record.value for record in records)

        await self.sim.host("client").start(client).task
        return found

    async def admin(self, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
        answers: list[Any] = []

        async def client(world: ProcessWorld) -> None:
            async with Admin({"bootstrap.servers": self.servers}, _ports=world) as admin:
                answers.append(await ask(admin))

        await self.sim.host("client").start(client).task
        return answers[0]


def _is_active(node: Node) -> bool:
    return getattr(node, "metadata", None) is not None and node.metadata.active is not None


def play(
    script: Callable[[Stage], Awaitable[None]],
    seed: int,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Plays a script with three brokers, all of which have the topic `t`."""
    sim = SimWorld(seed)
    stage = Stage(sim, settings=settings)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", 1)]))
        await stage.until(lambda: len(stage.partition().isr) == 3)
        await script(stage)

    sim.run(main())
    assert not stage.complaints
