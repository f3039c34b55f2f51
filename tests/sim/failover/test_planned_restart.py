"""A node is stopped in good order and started again: what its producers notice of that.

The ways between nodes are long and those to their client short, so that a client is told of a new
leader before that one has heard of it. Time is simulated: a pause is made of ways and of timers.
"""

import asyncio
from itertools import permutations
from typing import Final

import pytest

from scriba.broker.node import Node
from scriba.client import Admin, NewTopic, Producer
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.world.net import Path
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

PARTITIONS: Final = 6
LONGEST_S: Final = 0.2
"""What a record may wait at a planned restart."""


class Pauses:
    """Sends a record to each partition again and again, and keeps the longest wait."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._over = False
        self.longest = 0.0

    async def send(self, partition: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._over:
            began = loop.time()
            await self._producer.send("t", b"x", partition=partition)
            self.longest = max(self.longest, loop.time() - began)
            await asyncio.sleep(0.005)

    def end(self) -> None:
        self._over = True


async def controller_when_moved(node: Node, left: int) -> int | None:
    """Who was the active controller when the partitions of a node that leaves had got others."""

    def led() -> bool:
        partitions = node.image.topics_by_name["t"].partitions.values()
        return any(partition.leader == left for partition in partitions)

    assert led()
    while led():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return node.metadata.leader_id


async def restart_the_active_controller(cluster: SimCluster, world: ProcessWorld) -> float:
    nodes = [node for _, node in cluster.running()]
    while not all(sum(not b.fenced for b in n.image.brokers.values()) == 3 for n in nodes):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    servers = ",".join(f"{name}:{CLIENT_PORT}" for name in cluster.names)
    async with Admin(bootstrap_servers=servers, _ports=world) as admin:
        await admin.create_topics([NewTopic("t", PARTITIONS)])
    async with Producer(bootstrap_servers=servers, acks="all", _ports=world) as producer:
        pauses = Pauses(producer)
        tasks = [asyncio.ensure_future(pauses.send(n)) for n in range(PARTITIONS)]
        await asyncio.sleep(1)
        pauses.longest = 0.0
        (active,) = (node.id for node in nodes if node.metadata.active is not None)
        other = next(node for node in nodes if node.id != active)
        moved = asyncio.ensure_future(controller_when_moved(other, active))
        await cluster.nodes[active].stop()
        # It had handed the lead of the controllers over before: it would hear first of its
        # partitions' new leaders, and send clients to them before they know.
        assert await moved != active
        await asyncio.sleep(0.5)
        await cluster.nodes[active].start()
        await asyncio.sleep(0.5)
        pauses.end()
        await asyncio.gather(*tasks)
        return pauses.longest


@pytest.mark.parametrize("seed", [1, 3])
def test_a_planned_restart_of_the_active_controller_holds_no_record_up(seed: int) -> None:
    sim = SimWorld(seed)
    complaints: list[str] = []
    cluster = SimCluster(sim, 3, 0, {}, complaints.append)
    for way in permutations(cluster.names, 2):
        sim.network.worsen(*way, Path(delay_ms=(8, 12)))
    longest: list[float] = []

    async def main() -> None:
        await cluster.start()

        async def client(world: ProcessWorld) -> None:
            longest.append(await restart_the_active_controller(cluster, world))

        await sim.host("client").start(client).task

    sim.run(main())
    assert not complaints
    assert longest[0] < LONGEST_S
