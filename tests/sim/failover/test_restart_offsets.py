"""A node that comes back does not send its clients back behind what they have seen."""

import asyncio

from scriba.client import Producer
from scriba.errors import ErrorCode
from scriba.settings import NodeSettings
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

TOPIC = "t"
LATEST = -1


async def asked(peer: Peer, version: int, timestamp: int = LATEST) -> tuple[int, int]:
    place = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[place])]
    )
    (topic,) = (await peer.call(request, version, ListOffsetsResponse)).topics
    return topic.partitions[0].error_code, topic.partitions[0].offset


def test_the_end_is_not_told_before_it_is_known_again() -> None:
    sim = SimWorld(3)
    host, clients = sim.host("broker"), sim.host("clients")
    settings = NodeSettings.parse(
        {
            "listeners": "PLAINTEXT://broker:9092",
            "scriba.allow.insecure.bind": "true",
            "log.dirs": "/data",
            "log.flush.interval.messages": "1",
        }
    )
    complaints: list[str] = []
    node = SimNode(host, lambda: settings, complaints.append)

    async def write(world: ProcessWorld) -> None:
        async with Producer(bootstrap_servers="broker:9092", _ports=world) as producer:
            for number in range(5):
                await producer.send(TOPIC, b"%d" % number)

    async def look(world: ProcessWorld) -> None:
        peer = await Peer.connect(world.net, "broker", 9092)
        not_yet = ErrorCode.OFFSET_NOT_AVAILABLE
        assert await asked(peer, 5) == (not_yet, -1)
        assert await asked(peer, 5, timestamp=1) == (not_yet, -1)
        assert (await asked(peer, 4))[0] == ErrorCode.LEADER_NOT_AVAILABLE
        host.disk_faults.stall = 0.0
        await asyncio.sleep(60)  # of simulated time
        assert await asked(peer, 5) == (0, 5)
        peer.close()

    async def play() -> None:
        await node.start()
        await clients.start(write).task
        host.power_cut()
        host.disk_faults.stall, host.disk_faults.stall_times = 1.0, 3_000
        host.disk_faults.stall_in = f"/{TOPIC}-0/"
        await node.start()
        await clients.start(look).task

    sim.run(play())
    assert not complaints
