"""A whole node in the simulator, killed again and again under our producer and consumer."""

import asyncio
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.client.admin.admin import Admin
from scriba.client.admin.model import NewTopic
from scriba.client.consuming.consumer import Consumer
from scriba.client.producing.producer import Producer
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

AT = {"bootstrap.servers": "broker:9092"}
RECORDS = 600


class Scene:
    def __init__(self, seed: int) -> None:
        self.sim = SimWorld(seed)
        self.draw = self.sim.rng.fork("kills")
        self.produced = asyncio.Event()

    async def node(self, world: ProcessWorld) -> None:
        settings = NodeSettings.parse(
            {
                "listeners": "PLAINTEXT://broker:9092",
                "scriba.allow.insecure.bind": "true",
                "log.dirs": "/data",
            }
        )
        node = Node(settings, world)
        await node.start()
        await node.wait_stopped()

    async def produce(self, world: ProcessWorld) -> None:
        async with Admin(AT, _ports=world) as admin:
            await admin.create_topics([NewTopic("t", partitions=2)])
        async with Producer(AT, _ports=world, linger_ms=1, batch_size=300) as producer:
            deliveries = []
            for n in range(RECORDS):
                deliveries.append(await producer.enqueue("t", b"%d" % n, partition=n % 2))
                await asyncio.sleep(0.01)
            await producer.flush()
            places = [await delivery for delivery in deliveries]
        for partition in (0, 1):
            offsets = [place.offset for place in places if place.partition == partition]
            assert offsets == list(range(RECORDS // 2))
        self.produced.set()

    async def consume(self, world: ProcessWorld) -> list[list[int]]:
        seen: list[list[int]] = [[], []]
        async with Consumer(
            AT, _ports=world, auto_offset_reset="earliest", allow_auto_create_topics=False
        ) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            while sum(map(len, seen)) < RECORDS:
                for record in await consumer.poll(60_000):
                    seen[record.partition].append(int(record.value))
        return seen

    async def play(self) -> list[list[int]]:
        host = self.sim.host("broker")
        process = host.start(self.node)
        result: list[list[list[int]]] = []

        async def consume(world: ProcessWorld) -> None:
            result.append(await self.consume(world))

        clients: list[asyncio.Task[Any]] = [
            self.sim.host("clients").start(work).task for work in (self.produce, consume)
        ]
        while not self.produced.is_set():
            await asyncio.sleep(self.draw.between(0.5, 2.5))
            process.kill()
            await asyncio.sleep(self.draw.between(0.0, 1.0))
            process = host.start(self.node)
            for client in clients:
                if client.done():
                    client.result()
        await asyncio.gather(*clients)
        return result[0]


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_killed_under_the_producer_loses_nothing_and_doubles_nothing(seed: int) -> None:
    scene = Scene(seed)
    seen = scene.sim.run(scene.play())
    assert seen == [list(range(0, RECORDS, 2)), list(range(1, RECORDS, 2))]
