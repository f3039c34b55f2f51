"""A consumer in a group at a real node, on simulated time."""

import asyncio
from typing import Any

from scriba.broker.node import Node
from scriba.client import Admin, Consumer, NewTopic, Producer
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from tests.unit.client.clients import T0

AT = {"bootstrap.servers": "broker:9092"}


def in_a_group(work: Any, **settings: Any) -> None:
    """Runs `work(consumer, world)` beside a node with ten records in topic t."""
    sim = SimWorld(1)

    async def node(world: ProcessWorld) -> None:
        lines = {
            "listeners": "PLAINTEXT://broker:9092",
            "scriba.allow.insecure.bind": "true",
            "log.dirs": "/data",
            "group.initial.rebalance.delay.ms": "0",
        }
        served = Node(NodeSettings.parse(lines), world)
        await served.start()
        await served.wait_stopped()

    async def client(world: ProcessWorld) -> None:
        async with Admin(AT, _ports=world) as admin:
            await admin.create_topics([NewTopic("t", partitions=1)])
        async with Producer(AT, _ports=world) as p:
            for n in range(10):
                await p.send("t", b"%d" % n)
        chosen = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
        c = Consumer(AT, _ports=world, **chosen)
        try:
            async with asyncio.timeout(120):
                await work(c, world)
        finally:
            await c.close()

    async def main() -> None:
        sim.host("broker").start(node)
        await sim.host("client").start(client).task

    sim.run(main())


async def committed(world: ProcessWorld) -> int | None:
    async with Consumer(AT, _ports=world, group_id="g") as other:
        place = (await other.committed([T0]))[T0]
        return None if place is None else place.offset
