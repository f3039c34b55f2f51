"""The same play twice, with fast paths and without: nobody may be able to tell which was which.

One node serves clients that repeat themselves (`sim.repeaters`) while an operator changes topics
and settings, groups and logs, and the node is stopped, killed, cut off and starved of disk space,
as the seed decides. All of it is played with `scriba.fast.paths=true` and again with `false`. Every
frame that any client got, when it got it, every connection that ended, and every file that is left
have to be the same.

That takes a world in which only what is said decides: a connection keeps its delay, so that an
answer in one piece travels as one in three, and no page leaves the cache by chance.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from scriba.broker.node import Node
from scriba.errors import KafkaError
from scriba.settings import NodeSettings
from scriba.testing.sim.actors.repeaters import CAST, Committer, Repeater, Said, Topics
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import SimWorld
from scriba.wire.messages import admin, configs, groups

ADDRESS: Final = ("broker", 9092)
DATA: Final = "/data"
METADATA: Final = 3
ONE, SEVERAL = "one", "several"
ROUNDS: Final = 10
STOP_S: Final = 30
TOPIC_RESOURCE, BROKER_RESOURCE, SET, DELETE = 2, 4, 0, 1

CHANGES: Final = (
    ("max.message.bytes", "500"),
    ("min.insync.replicas", "2"),
    ("flush.messages", "1"),
    ("flush.messages", "3"),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.after.max.ms", str(30 * 86_400_000)),
    ("compression.type", "gzip"),
    ("cleanup.policy", "compact,delete"),
    ("internal.segment.bytes", "3000"),
    ("retention.bytes", "1"),
)
"""Settings of a topic that change what becomes of a batch."""
WORK: Final = (
    "configure",
    "configure",
    "unconfigure",
    "remake",
    "remake",
    "remake",
    "extend",
    "delete records",
    "delete group",
    "limit fetches",
)
MISFORTUNES: Final = ("reset", "cut", "stop", "kill", "power", "full", "clock")


@dataclass(slots=True)
class Played:
    """One of the two plays."""

    said: dict[str, list[Said]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    """Requests that took a fast path, by kind."""
    digest: str = ""
    trace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    violations: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    counts: dict[str, int]


def run(seed: int) -> Report:
    """Plays one seed both ways and compares."""
    fast, general = play(seed, fast_paths=True), play(seed, fast_paths=False)
    found = [*fast.violations, *general.violations, *differences(fast, general)]
    found += [f"{kind}: {n} fast paths, though off" for kind, n in general.hits.items() if n]
    counts = {"frames": sum(map(len, fast.said.values())), **fast.hits}
    return Report(seed, tuple(found), fast.digest, fast.trace, counts)


def differences(fast: Played, general: Played) -> Iterator[str]:
    """The first thing that each client and each file tells of the difference, earliest first."""
    told: list[tuple[float, str]] = []
    for name, notes in fast.said.items():
        for one, other in zip_longest(notes, general.said[name]):
            if one != other:
                at_s = min(said.at_s for said in (one, other) if said is not None)
                told.append((at_s, f"{name}: {_tell(one)} by a fast path, else {_tell(other)}"))
                break
    yield from (text for _, text in sorted(told))
    for path in sorted(fast.files.keys() | general.files.keys()):
        if fast.files.get(path) != general.files.get(path):
            yield f"{path} differs"


def _tell(said: Said | None) -> str:
    if said is None:
        return "nothing more"
    data = said.data.hex() if len(said.data) < 400 else f"{len(said.data)} bytes"
    return f"{said.what} at {said.at_s:.6f} ({said.connection}) {data}"


def play(seed: int, fast_paths: bool) -> Played:
    scene = Scene(seed, fast_paths)
    played = scene.played
    try:
        scene.sim.run(scene.play())
    except Exception as failure:
        played.violations.append(f"the run broke: {failure!r}")
    for error in scene.sim.loop.unseen:
        if not isinstance(error, OSError | KafkaError):
            played.violations.append(f"nobody looked at {error!r}")
    played.digest = scene.sim.trace.digest()
    played.trace = tuple(scene.sim.trace.last)
    return played


class Scene:
    def __init__(self, seed: int, fast_paths: bool) -> None:
        self.draw = SimWorld(seed).rng.fork("scene")
        self.sim = SimWorld(
            seed,
            disk_faults=DiskFaults(sync_ms=((0.05, 1.0), (0.5, 8.0))[self.draw.below(2)]),
            net_faults=NetFaults(steady=True, window=1 << 20),
        )
        self.host = self.sim.host(ADDRESS[0])
        self.fast_paths = fast_paths
        self.synced = self.draw.chance(0.3)
        self.played = Played(hits=dict.fromkeys(("produce", "fetch", "commit", "metadata"), 0))
        self.node = SimNode(self.host, self.node_settings, self.played.violations.append)
        self.topics = Topics()
        self.cast = [self.repeater(name, kind) for name, kind in CAST.items()]
        self.operator = Operator(
            name="operator",
            rng=self.sim.rng.fork("operator"),
            topics=self.topics,
            address=ADDRESS,
        )
        self.played.said = {each.name: each.notes for each in (*self.cast, self.operator)}
        self.metadata_handled = 0

    def node_settings(self) -> NodeSettings:
        return NodeSettings.parse(
            {
                "listeners": f"PLAINTEXT://{ADDRESS[0]}:{ADDRESS[1]}",
                "scriba.allow.insecure.bind": "true",
                "scriba.fast.paths": str(self.fast_paths).lower(),
                "log.dirs": DATA,
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.num.partitions": "1",
                "group.initial.rebalance.delay.ms": "0",
                "group.min.session.timeout.ms": "500",
                "group.consumer.min.session.timeout.ms": "500",
                "group.consumer.session.timeout.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "100",
                "group.consumer.heartbeat.interval.ms": "300",
                "max.incremental.fetch.session.cache.slots": "3",
                **({"log.flush.interval.messages": "1"} if self.synced else {}),
            }
        )

    def repeater(self, name: str, kind: type[Repeater]) -> Repeater:
        rng = self.sim.rng.fork(f"repeater/{name}")
        return kind(name=name, rng=rng, topics=self.topics, address=ADDRESS)

    # ---- the play ----

    async def play(self) -> None:
        await self.start()
        operating = self.sim.host("operator").start(self.operator.main)
        await self.operator.ready.wait()
        running = [self.sim.host(each.name).start(each.main).task for each in self.cast]
        for _ in range(ROUNDS):
            await asyncio.sleep(self.draw.between(0.1, 0.8))
            if self.draw.chance(0.3):
                await self.misfortune(MISFORTUNES[self.draw.below(len(MISFORTUNES))])
        for each in (*self.cast, self.operator):
            each.stopping = True
        _, late = await asyncio.wait([*running, operating.task], timeout=STOP_S)
        if late:
            self.played.violations.append(f"{len(late)} clients got no answers")
        await self.stop()
        self.played.files = self.host.volume.files()

    async def misfortune(self, kind: str) -> None:
        draw, network = self.draw, self.sim.network
        self.sim.trace.add("misfortune", kind)
        if kind == "reset":
            network.reset_some(ADDRESS[0], 0.7)
        elif kind == "cut":
            cut_off = self.cast[draw.below(len(self.cast))].name
            network.cut(ADDRESS[0], cut_off)
            await asyncio.sleep(draw.between(0.1, 1))
            network.heal()
        elif kind == "full":
            faults = self.host.disk_faults
            before, faults.capacity = faults.capacity, self.host.volume.used + draw.below(5_000)
            await asyncio.sleep(draw.between(0.1, 1))
            faults.capacity = before
        elif kind == "clock":
            self.host.clock.jump(int(draw.between(-7_200_000, 7_200_000)))
        elif kind == "stop":
            await self.stop()
            await self.start()
        else:
            self.count_hits()
            self.node.note_failure()
            if kind == "kill":
                self.node.process.kill()
            else:
                self.host.power_cut()
            await asyncio.sleep(draw.between(0, 0.3))
            await self.start()

    async def start(self) -> None:
        await self.node.start()
        assert self.node.node is not None
        served = self.node.node.dispatch.table[METADATA]
        ask = served.handler
        self.metadata_handled = served.count  # a client may have been quicker than this task

        def counting(node: Node, ctx: Any, request: Any) -> Any:
            self.metadata_handled += 1
            return ask(node, ctx, request)

        served.handler = counting

    async def stop(self) -> None:
        self.count_hits()
        await self.node.stop()

    def count_hits(self) -> None:
        """Before the node ends, whose counters go with it."""
        node = self.node.node
        assert node is not None
        counters, hits = node.counters, self.played.hits
        hits["produce"] += counters.fastpath_produces
        hits["fetch"] += counters.fastpath_fetches
        hits["commit"] += counters.fastpath_commits
        hits["metadata"] += node.dispatch.table[METADATA].count - self.metadata_handled


@dataclass(slots=True)
class Operator(Repeater):
    """Creates the topics, and changes what a fast path must not take for granted."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        if not self.ready.is_set():
            for name, count in ((ONE, 1), (SEVERAL, 3)):
                await self.create(name, count)
            self.ready.set()
        while not self.stopping:
            await asyncio.sleep(self.rng.between(0.05, 0.8))
            await self.work(WORK[self.rng.below(len(WORK))])

    async def work(self, kind: str) -> None:
        topic = self.topic()
        if kind == "configure":
            name, value = self.pick(CHANGES)
            await self.configure(TOPIC_RESOURCE, topic, name, SET, value)
        elif kind == "unconfigure":
            for name in sorted({name for name, _ in CHANGES}):
                await self.configure(TOPIC_RESOURCE, topic, name, DELETE, None)
        elif kind == "limit fetches":
            value = self.pick(("2000", str(55 << 20)))
            await self.configure(BROKER_RESOURCE, "", "fetch.max.bytes", SET, value)
        elif kind == "remake" and topic == ONE:
            request = admin.DeleteTopicsRequest(topic_names=[ONE], timeout_ms=1_000)
            await self.call(request, 5, admin.DeleteTopicsResponse)
            await asyncio.sleep(self.rng.between(0, 0.1))
            await self.create(ONE, 1)
        elif kind == "extend" and self.topics.partitions[SEVERAL] < 5:
            await self.extend(self.topics.partitions[SEVERAL] + 1)
        elif kind == "delete records":
            part = admin.DeleteRecordsPartition(partition_index=0, offset=self.rng.below(50))
            named = admin.DeleteRecordsTopic(name=topic, partitions=[part])
            cut = admin.DeleteRecordsRequest(topics=[named], timeout_ms=1_000)
            await self.call(cut, 2, admin.DeleteRecordsResponse)
        elif kind == "delete group":
            gone = groups.DeleteGroupsRequest(groups_names=[Committer.group])
            await self.call(gone, 2, groups.DeleteGroupsResponse)

    async def create(self, name: str, count: int) -> None:
        # Whatever the node's settings say: batches that wait for the device take no fast path.
        often = admin.CreatableTopicConfig(name="flush.messages", value=str(1 << 40))
        new = admin.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, configs=[often]
        )
        request = admin.CreateTopicsRequest(topics=[new], timeout_ms=1_000)
        answer = await self.call(request, 7, admin.CreateTopicsResponse)
        (made,) = answer.topics
        if not made.error_code:
            self.topics.ids[name] = made.topic_id
            self.topics.partitions[name] = count

    async def extend(self, count: int) -> None:
        more = admin.CreatePartitionsTopic(name=SEVERAL, count=count, assignments=None)
        request = admin.CreatePartitionsRequest(topics=[more], timeout_ms=1_000)
        answer = await self.call(request, 3, admin.CreatePartitionsResponse)
        if not answer.results[0].error_code:
            self.topics.partitions[SEVERAL] = count

    async def configure(self, kind: int, who: str, name: str, how: int, value: str | None) -> None:
        change = configs.IncrementalAlterConfigsRequestAlterableConfig(
            name=name, config_operation=how, value=value
        )
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind, resource_name=who, configs=[change]
        )
        request = configs.IncrementalAlterConfigsRequest(resources=[resource])
        await self.call(request, 1, configs.IncrementalAlterConfigsResponse)
