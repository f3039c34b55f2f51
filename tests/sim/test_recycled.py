"""A topic is deleted and made anew under its name: what was acknowledged is in the new one's log.

A broker hears of both from the metadata at once, and carries them out one after the other: files
are made and renamed, checkpoints are written, and a busy device takes its time for each. What it
does meanwhile with records for the new topic is told here.
"""

import asyncio
from collections.abc import Collection

import pytest

from scriba.broker.node import Node
from scriba.client import Admin, NewTopic, Producer
from scriba.storage.directory.names import PartitionName
from scriba.testing.sim.cluster import CLIENT_PORT
from scriba.testing.sim.world.world import ProcessWorld
from tests.sim.broker_stage import Stage, play

REPLICAS = (4, 5)
"""The leader, and who follows it; broker 6 answers the administrator."""
PLACED = {0: REPLICAS}


def hold_checkpoints(node: Node, released: asyncio.Event) -> None:
    """Has a broker wait for its device when it is to place new replicas."""
    (directory,) = node.replicas.dirs
    forget = directory.forget

    async def held(names: Collection[PartitionName]) -> None:
        await released.wait()
        await forget(names)

    directory.forget = held  # type: ignore[method-assign]


async def recycle(stage: Stage) -> bytes:
    """Deletes the topic and makes another of its name, by a broker that has no part in it."""

    async def client(world: ProcessWorld) -> None:
        servers = {"bootstrap.servers": f"{stage.cluster.name(6)}:{CLIENT_PORT}"}
        async with Admin(servers, _ports=world) as admin:
            await admin.create_topics([NewTopic("other", assignments=PLACED)])
            await admin.delete_topics(["r"])
            await admin.create_topics([NewTopic("r", assignments=PLACED)])

    await stage.sim.host("admin").start(client).task
    return stage.image.topics_by_name["r"].id


@pytest.mark.parametrize("fast_paths", ["true", "false"])
def test_a_record_for_a_recycled_topic_is_not_acknowledged_by_the_log_of_the_one_before(
    fast_paths: str,
) -> None:
    async def script(stage: Stage) -> None:
        await stage.admin(lambda admin: admin.create_topics([NewTopic("r", assignments=PLACED)]))
        before = stage.image.topics_by_name["r"].id
        acknowledged: list[int] = []

        async def client(world: ProcessWorld) -> None:
            async with Producer(bootstrap_servers=stage.servers, _ports=world) as producer:
                for value in (b"1", b"2", b"3"):
                    await producer.send("r", value)
                released = asyncio.Event()
                for at in REPLICAS:
                    hold_checkpoints(stage.node(at), released)
                after = await recycle(stage)
                assert after != before
                for at in REPLICAS:
                    assert stage.node(at).image.topics_by_name["r"].id == after
                    assert stage.node(at).replicas.get("r", 0) is None
                asyncio.get_running_loop().call_later(3, released.set)
                sent = await producer.send("r", b"4")
                assert released.is_set(), "it was acknowledged before there was a log for it"
                acknowledged.append(sent.offset)

        await stage.sim.host("client").start(client).task
        assert acknowledged == [0]
        for at in REPLICAS:
            partition = stage.node(at).replicas.find("r", 0)
            assert partition.topic_id == stage.image.topics_by_name["r"].id
            assert partition.log.end_offset == 1

    play(script, seed=71, settings={"scriba.fast.paths": fast_paths})
