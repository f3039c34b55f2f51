"""Our consumers in one group with other people's: whoever leads, all share, none reads twice."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.client.members import Member, create, fill, member, numbers
from tools.kafka.brokers import Broker

ROOT = Path(__file__).resolve().parents[3]

CONFLUENT = """
from confluent_kafka import Consumer
settings = {
    "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
    "partition.assignment.strategy": strategy, "heartbeat.interval.ms": 100,
    "session.timeout.ms": 45_000, "topic.metadata.refresh.interval.ms": 500,
}
if strategy == "consumer":
    for name in ("partition.assignment.strategy", "heartbeat.interval.ms", "session.timeout.ms"):
        del settings[name]
    settings["group.protocol"] = "consumer"
consumer = Consumer(settings)
consumer.subscribe([topic])
def poll():
    return [int(m.value()) for m in consumer.consume(100, 0.05) if not m.error()]
def held():
    return sorted(p.partition for p in consumer.assignment())
"""

KAFKA_PYTHON = """
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor,
         CooperativeStickyAssignor)
consumer = KafkaConsumer(
    bootstrap_servers=address, group_id=group, auto_offset_reset="earliest",
    partition_assignment_strategy=[a for a in known if a.name == strategy],
    heartbeat_interval_ms=100, session_timeout_ms=45_000, metadata_max_age_ms=500,
)
consumer.subscribe([topic])
def poll():  # long: an assignment that comes between two polls is dropped, and asked for again
    return [int(r.value) for rs in consumer.poll(500).values() for r in rs]
def held():
    return sorted(p.partition for p in consumer.assignment())
"""

JAVA = """
import json, subprocess, tempfile
from queue import Empty, SimpleQueue
from threading import Thread
from tools.kafka import kafka_jars
config = tempfile.NamedTemporaryFile("w", suffix=".properties")
config.write("heartbeat.interval.ms=100\\nmetadata.max.age.ms=500\\n")
config.flush()
names = {"range": "RangeAssignor", "sticky": "StickyAssignor",
         "cooperative-sticky": "CooperativeStickyAssignor"}
line = kafka_jars.command("topics")
java = [*line[:-1], "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", address,
        "--topic", topic, "--group-id", group, "--reset-policy", "earliest", "--verbose",
        "--command-config", config.name, "--session-timeout", "45000", "--assignment-strategy",
        "org.apache.kafka.clients.consumer." + names[strategy]]
process = subprocess.Popen(java, stdout=subprocess.PIPE, text=True)
said = SimpleQueue()
Thread(target=lambda: [said.put(json.loads(line)) for line in process.stdout], daemon=True).start()
mine = set()
def poll():
    found = []
    try:
        while True:
            event = said.get(timeout=0 if found else 0.05)
            places = {p["partition"] for p in event.get("partitions", [])}
            if event["name"] == "partitions_assigned":
                mine.update(places)
            elif event["name"] == "partitions_revoked":
                mine.difference_update(places)
            elif event["name"] == "record_data":
                found.append(int(event["value"]))
    except Empty:
        return found
def held():
    return sorted(mine)
class consumer:
    def close():
        process.terminate()
        process.wait()
"""

FRAME = """
import os, sys
address, group, topic, strategy = sys.argv[1:5]
{client}
os.set_blocking(0, False)
told = None
while True:
    for number in poll():
        print("read", number, flush=True)
    if held() != told:
        told = held()
        print("held", *told, flush=True)
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        pass
consumer.close()
"""


class Stranger:
    """Another client in a process of its own; it leaves the group when its input ends."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.read: list[int] = []
        self.moved = asyncio.Event()

    async def listen(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            word, *numbers = line.split()
            if word == b"read":
                self.read += map(int, numbers)
            else:
                self.held = [int(number) for number in numbers]
            self.moved.set()

    async def has_some(self, count: int) -> None:
        async with asyncio.timeout(300):
            while len(self.held) != count:
                self.moved.clear()
                await self.moved.wait()

    async def has_read(self, count: int) -> None:
        async with asyncio.timeout(300):
            while len(self.read) < count:
                self.moved.clear()
                await self.moved.wait()


@asynccontextmanager
async def stranger(
    broker: Broker, group: str, topic: str, client: str, strategy: str
) -> AsyncIterator[Stranger]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", FRAME.replace("{client}", client), broker.bootstrap, group, topic, strategy),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    made = Stranger()
    listening = asyncio.create_task(made.listen(process.stdout))
    try:
        yield made
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await listening


CASES = [
    (CONFLUENT, "range"),
    (CONFLUENT, "roundrobin"),
    (CONFLUENT, "cooperative-sticky"),
    (CONFLUENT, "consumer"),
    (KAFKA_PYTHON, "range"),
    (KAFKA_PYTHON, "sticky"),
    (KAFKA_PYTHON, "cooperative-sticky"),
    (JAVA, "range"),
    (JAVA, "sticky"),
    (JAVA, "cooperative-sticky"),
]
NAMES = {CONFLUENT: "confluent", KAFKA_PYTHON: "kafka-python", JAVA: "java"}


def settings(strategy: str) -> dict[str, str]:
    if strategy == "consumer":
        return {"group_protocol": "consumer"}
    return {"partition_assignment_strategy": strategy}


@pytest.mark.parametrize(
    ("client", "strategy"), CASES, ids=[f"{NAMES[client]}-{strategy}" for client, strategy in CASES]
)
async def test_we_lead_and_a_stranger_joins_and_leaves(
    quick_broker: Broker, topic: str, client: str, strategy: str
) -> None:
    await create(quick_broker, topic, 4)
    await fill(quick_broker, topic, 4, 40)
    async with member(quick_broker, topic, topic, **settings(strategy)) as ours:
        await ours.until(lambda: len(ours.seen) == 40)
        async with stranger(quick_broker, topic, topic, client, strategy) as theirs:
            await theirs.has_some(2)
            await ours.has_some(2)
            await _all_is_read(quick_broker, topic, ours, theirs)
        await ours.has(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("client", "strategy"), CASES, ids=[f"{NAMES[client]}-{strategy}" for client, strategy in CASES]
)
async def test_a_stranger_leads_and_we_join_and_leave(
    quick_broker: Broker, topic: str, client: str, strategy: str
) -> None:
    await create(quick_broker, topic, 4)
    await fill(quick_broker, topic, 4, 40)
    async with stranger(quick_broker, topic, topic, client, strategy) as theirs:
        await theirs.has_some(4)
        await theirs.has_read(40)
        async with member(quick_broker, topic, topic, **settings(strategy)) as ours:
            await ours.has_some(2)
            await theirs.has_some(2)
            await _all_is_read(quick_broker, topic, ours, theirs)
        await theirs.has_some(4)


async def _all_is_read(broker: Broker, topic: str, ours: Member, theirs: Stranger) -> None:
    """Everything was read by now; more comes, and each reads its half."""
    read, seen = len(theirs.read), len(ours.seen)
    await fill(broker, topic, 4, 40, first=40)
    await ours.until(lambda: len(ours.seen) >= seen + 20)
    await theirs.has_read(read + 20)
    assert sorted(set(numbers(ours) + theirs.read)) == list(range(80))
    assert sorted(numbers(ours)[-20:] + theirs.read[read:]) == list(range(40, 80))
