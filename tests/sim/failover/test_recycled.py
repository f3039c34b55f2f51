"""A topic is deleted and made anew under its name: what was acknowledged is in the new one's log.

It is held against the topic's id: a record counts for the topic that there was both when it was
sent and when it was acknowledged, for a deletion that is answered with an error may be done.

A broker hears of both from the metadata at once, and carries them out one after the other: files
are made and renamed, checkpoints are written, and a busy device takes its time for each. What it
does meanwhile with records for the new topic is told here.
"""

import asyncio
import os
from collections.abc import Collection
from contextlib import suppress

import pytest

from scriba.broker.node import Node
from scriba.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from scriba.peers.errors import ClientError
from scriba.storage.directory.names import PartitionName
from scriba.testing.sim.actors.cast import PATIENCE, everything
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.coordinators import OFFSETS_TOPIC
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


def test_an_offset_is_not_accepted_by_the_coordinator_of_a_deleted_topic() -> None:
    """The partition of the offsets is deleted and made anew, and its leader is late with both."""

    async def script(stage: Stage) -> None:
        offsets = NewTopic(OFFSETS_TOPIC, assignments=PLACED, configs={"cleanup.policy": "compact"})
        await stage.admin(lambda admin: admin.create_topics([offsets]))
        await stage.admin(lambda admin: admin.alter_group_offsets("g", {("t", 0): 7}))
        released = asyncio.Event()
        for at in REPLICAS:
            hold_checkpoints(stage.node(at), released)

        async def client(world: ProcessWorld) -> None:
            servers = {"bootstrap.servers": f"{stage.cluster.name(6)}:{CLIENT_PORT}"}
            async with Admin(servers, _ports=world) as admin:
                await admin.create_topics([NewTopic("other", assignments=PLACED)])
                await admin.delete_topics([OFFSETS_TOPIC])
                await admin.create_topics([offsets])
                asyncio.get_running_loop().call_later(3, released.set)
                await admin.alter_group_offsets("g", {TopicPartition("t", 0): 9})
                assert released.is_set(), "it was accepted before there was a log for it"

        await stage.sim.host("admin").start(client).task
        found = await stage.admin(lambda admin: admin.list_group_offsets("g"))
        assert found[TopicPartition("t", 0)].offset == 9

    play(script, seed=72)


SEEDS = int(os.environ.get("SEEDS", "1"))
ROUNDS = 3
PARTITIONS = (TopicPartition("r", 0), TopicPartition("r", 1))
TURN_S = 3.0


class Recycling:
    """Nodes are killed, all of them at times, while one topic comes and goes."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.complaints: list[str] = []
        settings = {
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "auto.create.topics.enable": "false",
        }
        self.cluster = SimCluster(sim, 3, 0, settings, self.complaints.append)
        self.rng = sim.rng.fork("recycling")
        self.servers = ",".join(f"{name}:{CLIENT_PORT}" for name in self.cluster.names)
        self.current: str | None = None
        """The topic that there is, by its id; None while it may be going or coming."""
        self.acknowledged: dict[str, set[bytes]] = {}
        self.over = False

    async def write(self, world: ProcessWorld, name: str) -> None:
        async with Producer(
            {"bootstrap.servers": self.servers, "delivery.timeout.ms": 4_000, **PATIENCE},
            _ports=world,
        ) as producer:
            number = 0
            while not self.over:
                number += 1
                value, before = b"%s-%d" % (name.encode(), number), self.current
                with suppress(ClientError):
                    await producer.send("r", value)
                    if before is not None and before == self.current:
                        self.acknowledged.setdefault(before, set()).add(value)
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """Kills some nodes, and has them start again one by one."""
        while not self.over:
            await asyncio.sleep(self.rng.between(0.3, 1.5))
            first, count = self.rng.below(3), 1 + self.rng.below(3)
            ids = [1 + (first + step) % 3 for step in range(count)]
            for at in ids:
                if self.cluster.nodes[at].runs:
                    self.cluster.nodes[at].process.kill()
            for at in ids:
                await asyncio.sleep(self.rng.between(0, 0.6))
                if not self.cluster.nodes[at].runs:
                    self.cluster.nodes[at].boot()

    async def recycle(self, world: ProcessWorld) -> None:
        config = {"bootstrap.servers": self.servers, "default.api.timeout.ms": 5_000, **PATIENCE}
        async with Admin(config, _ports=world) as admin:
            for _ in range(ROUNDS):
                while self.current is None:
                    with suppress(ClientError):
                        await admin.create_topics([NewTopic("r", len(PARTITIONS))])
                    with suppress(ClientError):
                        self.current = (await admin.describe_topics(["r"]))["r"].id
                await asyncio.sleep(self.rng.between(0.5, TURN_S))
                await self.check(world)
                self.current = None
                with suppress(ClientError):
                    await admin.delete_topics(["r"])

    async def check(self, world: ProcessWorld) -> None:
        """All that was acknowledged for the topic that there is can be read from it."""
        assert self.current is not None
        due = set(self.acknowledged.get(self.current, ()))
        config = {"bootstrap.servers": self.servers, **PATIENCE}
        found: set[bytes] = set()
        async with asyncio.timeout(120), Consumer(config, _ports=world) as consumer:
            consumer.assign(PARTITIONS)
            while not due <= found:
                for partition in PARTITIONS:
                    with suppress(ClientError):
                        records, _ = await everything(consumer, partition)
                        found.update(record.value for record in records)
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_that_was_acknowledged_for_the_topic_that_lives_is_there(seed: int) -> None:
    sim = SimWorld(seed)
    play_of = Recycling(sim)

    async def main() -> None:
        await play_of.cluster.start()

        async def client(world: ProcessWorld) -> None:
            writing = [asyncio.ensure_future(play_of.write(world, name)) for name in ("a", "b")]
            killing = asyncio.ensure_future(play_of.kill())
            await play_of.recycle(world)
            play_of.over = True
            await asyncio.gather(*writing, killing)

        await sim.host("client").start(client).task

    sim.run(main())
    assert not play_of.complaints
    assert sum(map(len, play_of.acknowledged.values())) > 100
    assert len(play_of.acknowledged) > 1
