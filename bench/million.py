"""The rows about one controller with a million partitions.

A controller alone, of either kind, starts from the same snapshot: a thousand topics of a thousand
partitions with three replicas each, on thirty-four brokers. Until it answers as the active one is
the load; what its process holds then is its memory. Kafka gets a heap that the metadata fit into,
for those it ships with (1 GB) do not hold them.

What a change costs is asked of Scriba's controller in a process of its own (`steps`), which
measures the CPU time of each step of its loop: a wall clock would count the machine's other work.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import socket
import subprocess
import sys
import time
from asyncio import events
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka.protocol.admin import ListPartitionReassignmentsRequest

from bench.rows import Bench, Figures, Metric, Row
from scriba.broker.metadata.controller import QuorumController
from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.broker.observe.events import Events
from scriba.controller.features import AT_FIRST
from scriba.controller.image import ClusterImage
from scriba.raft.messages import Position
from scriba.runtime.loop.collector import freeze, hold_collector
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.brokers import BrokerHeartbeatRequest
from scriba.wire.messages.stored import (
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from scriba.wire.schema import Message
from tools.kafka.brokers import (
    HOST,
    KAFKA_JVM,
    PATIENCE,
    POLL_SECONDS,
    Broker,
    KafkaBroker,
    accepts,
    free_port,
)
from tools.kafka.clusters import KafkaNode, ScribaNode, Seat
from tools.kafka.rawkafka import Closed, Connection

TOPICS, PARTITIONS, REPLICAS = 1_000, 1_000, 3
BROKERS, SMALL = 30, 4
"""Most replicas are on the first thirty; of the last four, each has ten thousand."""

REPLICAS_OF_SMALL = 10_000
POSITION = Position(1, 2_000_000)
TIMESTAMP = 1_700_000_000_000
SESSION_MS = 3_600_000
"""Nobody sends heartbeats for these brokers, and none of them is to be fenced for it."""

CLUSTER_ID = "million-partitions-000"
HEAP = ("-Xmx6G", "-Xms256M")
SETTINGS: Mapping[str, str] = {"broker.session.timeout.ms": str(SESSION_MS)}


# ---- the snapshot ----


def records(topics: int, port: int) -> Iterator[Message]:
    """The metadata of a cluster with `topics` thousand partitions, the same at each call.

    All brokers are to be found at `port`: where nobody listens, they would be taken for dead.
    """
    rng = random.Random(1)
    everybody = range(1, BROKERS + SMALL + 1)
    directories = {broker: rng.randbytes(16) for broker in everybody}
    for name, level in AT_FIRST.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in everybody:
        yield _registration(broker, port, directories[broker], rng)
    every = max(topics * PARTITIONS // (SMALL * min(REPLICAS_OF_SMALL, topics * 10)), 1)
    for topic in range(topics):
        topic_id = rng.randbytes(16)
        yield TopicRecord(name=f"topic-{topic}", topic_id=topic_id)
        for index in range(PARTITIONS):
            chosen = rng.sample(range(1, BROKERS + 1), REPLICAS)
            number = topic * PARTITIONS + index
            if number % every == 0:
                chosen[0] = BROKERS + 1 + number // every % SMALL
            yield PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=chosen,
                isr=chosen,
                leader=chosen[0],
                leader_epoch=rng.randrange(20),
                partition_epoch=rng.randrange(50),
                directories=[directories[broker] for broker in chosen],
            )


def _registration(broker: int, port: int, directory: bytes, rng: random.Random) -> Message:
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=rng.randbytes(16),
        broker_epoch=broker,
        end_points=[BrokerEndpoint(name="PLAINTEXT", host=HOST, port=port, security_protocol=0)],
        features=[
            BrokerFeature(name=name, min_supported_version=level, max_supported_version=level)
            for name, level in AT_FIRST.items()
        ],
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=[directory],
        cordoned_log_dirs=[],
    )


class Planned(ClusterImage):
    """An image that is only written: it need not be built for that."""

    def __init__(self, topics: int, port: int) -> None:
        super().__init__()
        self.features.update(AT_FIRST)
        self._topics, self._port = topics, port

    def records(self) -> Iterator[Message]:
        return records(self._topics, self._port)


def write_snapshot(log_dir: Path, topics: int, port: int = 9092) -> None:
    folder = log_dir / "__cluster_metadata-0"
    folder.mkdir(parents=True, exist_ok=True)
    made = snapshots.encoded(POSITION, QuorumFacts(0, None), Planned(topics, port), TIMESTAMP)
    with (folder / snapshots.file_name(POSITION)).open("wb") as out:
        for batch in made:
            out.write(batch)


# ---- a controller of either kind, from its start until it answers ----


class LoneKafka(KafkaNode):
    def command(self) -> list[str]:
        return [
            each
            for part in super().command()
            for each in (HEAP if part == KAFKA_JVM[0] else () if part == KAFKA_JVM[1] else (part,))
        ]


def lone_controller(kind: type[Broker], folder: Path) -> Broker:
    port = free_port()
    seat = Seat(1, port, f"1@{HOST}:{port}", CLUSTER_ID)
    roles = {"process.roles": "controller", "listeners": f"CONTROLLER://{HOST}:{port}", **SETTINGS}
    node: Broker
    if issubclass(kind, KafkaBroker):
        node = LoneKafka(folder, seat, {**roles, "advertised.listeners": roles["listeners"]})
    else:
        node = ScribaNode(folder, seat, roles)
    node.port = port
    return node


def loaded(node: Broker) -> float:
    """Starts it; seconds until it answers as the active controller, of all it has read."""
    began = time.monotonic()
    node.launch()
    while time.monotonic() - began < PATIENCE:
        if node.ended():
            raise RuntimeError(f"{node.name} ended:\n{node.tail()}")
        with contextlib.suppress(OSError, Closed):
            if accepts(node.port):
                with Connection(node.port, timeout=PATIENCE) as connection:
                    asked = ListPartitionReassignmentsRequest(timeout_ms=60_000, topics=None)
                    if connection.call(asked, 0).error_code == 0:
                        return time.monotonic() - began
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"{node.name} did not load the snapshot:\n{node.tail()}")


def million(bench: Bench) -> Figures:
    topics = bench.amount(TOPICS)
    figures: dict[str, float] = {}
    with bench.scratch() as folder, socket.create_server((HOST, 0)) as brokers:
        node = lone_controller(type(bench.broker), folder / "node")
        node.prepare()
        log_dir = node.log_dir if isinstance(node, KafkaBroker) else folder / "node" / "data"
        write_snapshot(log_dir, topics, brokers.getsockname()[1])
        try:
            figures["load"] = loaded(node)
            figures["cpu"] = node.cpu_seconds()
            time.sleep(3)
            figures["memory"] = node.resident_bytes() / 1e6
        finally:
            node.kill()
        if not isinstance(node, KafkaBroker):
            figures |= measured_steps(folder / "steps", topics)
    return figures


def measured_steps(folder: Path, topics: int) -> Figures:
    command = [sys.executable, "-m", "bench.million", str(folder), str(topics)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return {name: found[name] for name in ("create", "failure", "shutdown", "slice")}


# ---- the steps of Scriba's controller ----


class Steps:
    """The CPU time of each callback of an asyncio loop in this process."""

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = []
        self.total = 0.0
        run, clock = events.Handle._run, time.thread_time

        def measured(handle: Any) -> None:
            who, began = _name_of(handle), clock()
            run(handle)
            took = clock() - began
            self.total += took
            if took > 0.002:
                self.longest.append((took, who))

        events.Handle._run = measured  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        self.longest.clear()
        self.total = 0.0

    def tell(self, what: str, **more: float) -> float:
        """Prints what was measured since `begin`; the longest step in ms."""
        slowest = sorted(self.longest, reverse=True)[:4]
        told = ", ".join(f"{took * 1000:.1f} {who}" for took, who in slowest) or "below 2"
        extra = "".join(f", {name} {figure:,.0f}" for name, figure in more.items())
        print(f"{what}: {self.total:.3f} s of CPU{extra}; longest steps in ms: {told}", flush=True)
        return max((took for took, _ in self.longest), default=0.002) * 1000


def _name_of(handle: Any) -> str:
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", "")
    return getattr(handle._callback, "__qualname__", repr(handle._callback))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Story:
    """One controller, what is asked of it, and what each answer cost."""

    def __init__(self, folder: Path, topics: int) -> None:
        self.steps = Steps()
        self.figures: dict[str, float] = {}
        self.slices: dict[str, float] = {}
        """The longest step of each, in ms."""
        self._folder = folder
        self._topics = topics

    async def play(self) -> Figures:
        write_snapshot(self._folder, self._topics)
        await asyncio.sleep(0)
        hold_collector()
        before, cpu = resident_mb(), time.process_time()
        self.steps.begin()
        await self._start()
        await asyncio.sleep(0)
        grown = resident_mb() - before
        self.figures["load"] = time.process_time() - cpu
        self.slices["load"] = self.steps.tell(
            "load", partitions=self._topics * PARTITIONS, MB=grown
        )
        freeze()
        active = self.node.active
        assert active is not None
        for broker in range(1, BROKERS + SMALL + 1):
            await self._beat(broker)
        await self._measure("create", self._create())
        await self._measure("failure", self._lose(BROKERS + 1))
        await self._measure("shutdown", self._shut_down(BROKERS + 2))
        await self._measure("large failure", self._lose(1))
        await self._measure("snapshot", self._snapshot())
        self.figures["slice"] = max(self.slices.values())
        await self._measure("collection", self._collect())  # which no controller does by itself
        await self.node.stop()
        await self._tasks.stop()
        return self.figures

    async def _start(self) -> None:
        world = RealWorld()
        self._tasks = Tasks()
        settings = NodeSettings.parse({"node.id": "99", **SETTINGS})
        self.node = QuorumController(
            world,
            str(self._folder),
            node_id=99,
            cluster_id=CLUSTER_ID,
            directory_id=bytes(16),
            settings=settings,
            tasks=self._tasks,
            note=Events(world.clock).note,
        )
        await self.node.start()

    async def _measure(self, what: str, work: Awaitable[object]) -> None:
        await asyncio.sleep(0)
        self.steps.begin()
        end = self.node.image.end_offset
        began = time.monotonic()
        await work
        self.figures[what] = (time.monotonic() - began) * 1000
        self.slices[what] = self.steps.tell(what, records=self.node.image.end_offset - end)

    async def _beat(self, broker: int, leaves: bool = False) -> None:
        await self.node.call(
            BrokerHeartbeatRequest(
                broker_id=broker,
                broker_epoch=broker,
                current_metadata_offset=self.node.image.last_offset,
                want_shut_down=leaves,
            )
        )

    async def _create(self) -> None:
        topic = CreatableTopic(name="new", num_partitions=PARTITIONS, replication_factor=REPLICAS)
        answer = await self.node.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert answer.topics[0].error_code == 0, answer

    async def _lose(self, broker: int) -> None:
        active = self.node.active
        assert active is not None
        await active.step(lambda machine, now: machine.broker_lost(broker, broker, now, now))
        assert self.node.image.brokers[broker].fenced

    async def _shut_down(self, broker: int) -> None:
        await self._beat(broker, leaves=True)
        assert self.node.image.brokers[broker].in_controlled_shutdown

    async def _snapshot(self) -> None:
        await self.node.quorum.write_snapshot(self.node.image.copy(), TIMESTAMP)

    async def _collect(self) -> None:
        await asyncio.sleep(0)
        gc.collect()


def main() -> None:
    folder, topics = Path(sys.argv[1]), int(sys.argv[2])
    print(json.dumps(asyncio.run(Story(folder, topics).play())))


MILLION = (
    Row(
        "million",
        "one controller with a million partitions",
        (
            Metric("load", "s from its start to its first answer", 1),
            Metric("cpu", "CPU s"),
            Metric("memory", "MB", 0.6),
            Metric("create", "ms for a topic of 1,000"),
            Metric("failure", "ms for a broker that leads 10,000"),
            Metric("shutdown", "ms for one that leaves"),
            Metric("slice", "CPU ms of the longest step", limit=10),
        ),
        million,
        warms=False,
        once=True,
    ),
)

if __name__ == "__main__":
    main()
