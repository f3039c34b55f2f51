"""A group in the simulator whose broker and members are killed again and again.

Every member works on a record and then commits it. Whatever is killed when, all records are worked
on, what the group has committed never goes back, and no one works on a partition that it was told
to have lost.
"""

import asyncio
import os
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.client.admin.admin import Admin
from scriba.client.admin.model import NewTopic
from scriba.client.consuming.consumer import Consumer
from scriba.client.model import TopicPartition
from scriba.client.producing.producer import Producer
from scriba.peers.errors import ClientError
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld

AT = {"bootstrap.servers": "broker:9092"}
RECORDS = 200
PARTITIONS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "range": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


class Scene:
    def __init__(self, seed: int, kind: str) -> None:
        self.sim = SimWorld(seed)
        self.draw = self.sim.rng.fork("kills")
        self.kind = kind
        self.worked: set[int] = set()
        self.committed: dict[TopicPartition, int] = {}
        self.ready = asyncio.Event()

    async def node(self, world: ProcessWorld) -> None:
        settings = NodeSettings.parse(
            {
                "listeners": "PLAINTEXT://broker:9092",
                "scriba.allow.insecure.bind": "true",
                "log.dirs": "/data",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "2",
            }
        )
        node = Node(settings, world)
        await node.start()
        await node.wait_stopped()

    async def produce(self, world: ProcessWorld) -> None:
        async with Admin(AT, _ports=world) as admin:
            await admin.create_topics([NewTopic("t", partitions=PARTITIONS)])
        self.ready.set()
        async with Producer(AT, _ports=world, linger_ms=1) as producer:
            for n in range(RECORDS):
                await producer.enqueue("t", b"%d" % n, partition=n % PARTITIONS)
                await asyncio.sleep(0.2)

    async def work(self, world: ProcessWorld) -> None:
        mine: set[TopicPartition] = set()
        consumer = Consumer(
            AT,
            _ports=world,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_interval_ms=20_000,
            **SETTINGS[self.kind],
        )
        consumer.subscribe(
            "t",
            on_assigned=mine.update,
            on_revoked=mine.difference_update,
            on_lost=mine.difference_update,
        )
        async for record in consumer:
            where = TopicPartition(record.topic, record.partition)
            assert where in mine, "a record of a partition that nobody gave us"
            await asyncio.sleep(0.05)
            self.worked.add(int(record.value))
            try:
                await consumer.commit({where: record.offset + 1}, timeout_ms=10_000)
            except ClientError:
                # The next owner works on it again, and that may be this member: a cooperative
                # rebalance leaves it the partition and its position.
                if where in mine:
                    consumer.seek(where, record.offset)
                continue
            assert self.committed.get(where, 0) <= record.offset + 1
            self.committed[where] = record.offset + 1

    async def run(self) -> None:
        broker = self.sim.host("broker").start(self.node)
        producing = self.sim.host("producer").start(self.produce)
        await self.ready.wait()
        hosts = [self.sim.host(f"member{n}") for n in range(3)]
        members = [host.start(self.work) for host in hosts]
        for _ in range(6):
            await asyncio.sleep(self.draw.between(1, 8))
            victim = self.draw.below(4)
            if victim == 3:
                broker.kill()
                await asyncio.sleep(self.draw.between(0, 3))
                broker = self.sim.host("broker").start(self.node)
            else:
                members[victim].kill()
                await asyncio.sleep(self.draw.between(0, 3))
                members[victim] = hosts[victim].start(self.work)
        await producing.task
        await self._all_is_committed(members)

    async def _all_is_committed(self, members: list[SimProcess]) -> None:
        async with asyncio.timeout(300):
            while sum(self.committed.values()) < RECORDS:
                for member in members:
                    if member.task.done():
                        await member.task
                await asyncio.sleep(0.1)
        assert self.worked == set(range(RECORDS))


@pytest.mark.parametrize("kind", list(SETTINGS))
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "4"))))
def test_all_is_worked_on_and_commits_never_go_back(seed: int, kind: str) -> None:
    scene = Scene(seed, kind)
    scene.sim.run(scene.run())
