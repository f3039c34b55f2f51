"""One whole node with groups, transactions and compaction under a seed's mix of faults.

The cast (`sim.cast`) feeds a topic, copies it exactly once in a group, audits the copies
in another group, and keeps a compacted table. The seed decides the protocol of each group, the
generation of transactions, whether everything is synced before it counts, how disk and network
behave, and what goes wrong: connections, hosts, the node, the disk, the clock, and the members
themselves, who die, leave and come back. Power cuts come only where everything is synced.

Then all heals. Within a bound every record is copied, audited and committed, and the histories are
held against what is left.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from scriba.client import Admin, ConfigOp, NewTopic, TopicPartition, UpgradeType
from scriba.client.admin.model import ConfigResource, ResourceType
from scriba.errors import ErrorCode, KafkaError
from scriba.settings import NodeSettings
from scriba.testing.history import History
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.plays.cast import (
    AUDITORS,
    COPIERS,
    SINK,
    SOURCE,
    TABLE,
    Actor,
    Auditor,
    Books,
    Copier,
    Feeder,
    Keeper,
    Member,
    Reader,
    SlowKeeper,
)
from scriba.testing.sim.plays.verdict import Verdict
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld

BROKER: Final = "broker"
PARTITIONS: Final = 2
HEALED_S: Final = 60
"""Virtual time in which everything has to be caught up with after all has healed."""

CLASSIC: Final = {"session_timeout_ms": 1_500, "heartbeat_interval_ms": 300}
PROTOCOLS: Final[tuple[dict[str, Any], ...]] = (
    {**CLASSIC, "partition_assignment_strategy": "range"},
    {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer"},
)
MEMBERS: Final = ("die", "leave", "isolate")
MISFORTUNES: Final = (
    *MEMBERS,
    *MEMBERS,
    "twin",
    "twin",
    "reset",
    "cut",
    "kill",
    "kill",
    "full",
    "clock",
    "stop",
)
HANGING: Final = ("__consumer_offsets", "__transaction_state")
"""What a disk hangs at."""
WITH_POWER: Final = (*MISFORTUNES, "power", "power", "power", "power", "sick")


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    violations: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    counts: dict[str, int]


def run(seed: int) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed)
    found: list[str] = []
    try:
        scene.sim.run(scene.play())
    except Exception as failure:
        found.append(f"the run broke: {failure!r}")
    found += [
        f"nobody looked at {error!r}"
        for error in scene.sim.loop.unseen
        if not isinstance(error, OSError | KafkaError)
    ]
    books, trace = scene.books, scene.sim.trace
    counts = {
        "acknowledged": books.records.acked,
        "transactions": len(books.transactions.told),
        "audited": len(books.transactions.seen),
        "commits": books.groups.accepted,
        "fetched offsets": books.groups.fetched_offsets,
        "rows": len(books.table.writes),
        "compactions": scene.compactions,
    }
    return Report(seed, (*books.violations, *found), trace.digest(), tuple(trace.last), counts)


class Scene:
    def __init__(self, seed: int) -> None:
        draw = self.draw = SimWorld(seed).rng.fork("scene")
        self.sim = SimWorld(
            seed,
            disk_faults=DiskFaults(
                sync_ms=((0.05, 1.0), (0.5, 8.0))[draw.below(2)],
                stall=(0.0, 0.01)[draw.below(2)],
                cold=(0.0, 0.05)[draw.below(2)],
            ),
            net_faults=NetFaults(
                spike=(0.0, 0.01)[draw.below(2)],
                short=(0.0, 0.1)[draw.below(2)],
            ),
        )
        self.synced = draw.chance(0.6)
        self.transaction_version = (2, 2, 1, 0)[draw.below(4)]
        self.host = self.sim.host(BROKER)
        self.books = Books(History(synced_only=self.synced))
        self.verdict = Verdict(self.books, f"{BROKER}:9092", PARTITIONS)
        complain = self.books.records.violation
        self.node = SimNode(self.host, self.node_settings, complain)
        self.actors = self.cast()
        self.processes: dict[str, SimProcess] = {}
        self.compactions = 0

    def node_settings(self) -> NodeSettings:
        return NodeSettings.parse(
            {
                "listeners": f"PLAINTEXT://{BROKER}:9092",
                "scriba.allow.insecure.bind": "true",
                "log.dirs": "/data",
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.num.partitions": "2",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
                "group.initial.rebalance.delay.ms": "100",
                "group.min.session.timeout.ms": "500",
                "group.consumer.min.session.timeout.ms": "500",
                "group.consumer.session.timeout.ms": "1500",
                "group.consumer.min.heartbeat.interval.ms": "100",
                "group.consumer.heartbeat.interval.ms": "300",
                "group.consumer.assignment.interval.ms": "100",
                "log.cleaner.backoff.ms": "250",
                "log.cleaner.dedupe.buffer.size": "2097152",
                "log.cleaner.min.cleanable.ratio": "0.01",
                **({"log.flush.interval.messages": "1"} if self.synced else {}),
            }
        )

    def cast(self) -> list[Actor]:
        draw = self.draw
        copiers, auditors = (PROTOCOLS[draw.below(len(PROTOCOLS))] for _ in range(2))
        parts: list[tuple[type[Actor], str, dict[str, Any]]] = [
            (Feeder, "feeder", {}),
            *((Copier, f"copier{at}", copiers) for at in range(2)),
            *((Auditor, f"auditor{at}", auditors) for at in range(2)),
            (Keeper, "keeper", {}),
            (SlowKeeper, "slow", {}),
            (Reader, "reader", {}),
        ]
        return [
            kind(
                name=name,
                books=self.books,
                rng=self.sim.rng.fork(f"actor/{name}"),
                partitions=PARTITIONS,
                bootstrap=f"{BROKER}:9092",
                protocol=protocol,
                transactional_id=name,
            )
            for kind, name, protocol in parts
        ]

    # ---- the play ----

    async def play(self) -> None:
        await self.node.start()
        await self.as_client(self.set_up)
        for actor in self.actors:
            self.enter(actor)
        for _ in range(3 + self.draw.below(4)):
            await asyncio.sleep(self.draw.between(0.1, 2.0))
            await self.misfortune()
        self.sim.network.heal()
        self.host.disk_faults.stall = 0
        for actor in self.actors:
            self.enter(actor)
        await asyncio.sleep(1)
        await self.come_to_rest()
        self.count_compactions()
        await self.as_client(self.verdict.check)
        self.node.note_failure()

    def enter(self, actor: Actor) -> None:
        process = self.processes.get(actor.name)
        if process is None or not process.alive:
            actor.stopping = False
            self.processes[actor.name] = self.sim.host(actor.name).start(actor.main)

    async def come_to_rest(self) -> None:
        """The writers stop; the groups catch up, each within its time, and stop."""
        await self.stop(Feeder, Keeper, Reader)
        for group in (COPIERS, AUDITORS):
            try:
                await self.as_client(partial(self.verdict.catch_up, group))
            except TimeoutError:
                self.books.records.violation(f"{group} did not catch up after all had healed")
            await self.stop(Copier if group == COPIERS else Auditor)

    async def stop(self, *kinds: type[Actor]) -> None:
        leaving = [actor for actor in self.actors if isinstance(actor, kinds)]
        for actor in leaving:
            actor.stopping = True
        tasks = [self.processes[actor.name].task for actor in leaving]
        done, late = await asyncio.wait(tasks, timeout=HEALED_S)
        if late:
            self.books.records.violation(f"{len(late)} clients did not end after all had healed")
        for task in tasks:
            if task in done:
                task.result()

    # ---- what goes wrong ----

    async def misfortune(self) -> None:
        draw, network = self.draw, self.sim.network
        kinds = WITH_POWER if self.synced else MISFORTUNES
        kind = kinds[draw.below(len(kinds))]
        self.sim.trace.add("misfortune", kind)
        actor = self.actors[draw.below(len(self.actors))]
        members = [each for each in self.actors if isinstance(each, Member)]
        member = members[draw.below(len(members))]
        if kind == "reset":
            network.reset_some(BROKER, 0.7)
        elif kind == "cut":
            for each in self.actors:
                network.cut(BROKER, each.name)
            await asyncio.sleep(draw.between(0.1, 3))
            network.heal()
        elif kind == "isolate":
            network.cut(BROKER, member.name)
            await asyncio.sleep(draw.between(0.5, 4))
            network.heal()
        elif kind == "twin":
            await self.replace_prematurely(
                [each for each in self.actors if isinstance(each, Copier | SlowKeeper)]
            )
        elif kind in ("die", "leave"):
            await self.part(member if draw.chance(0.7) else actor, kind)
        elif kind == "clock":
            self.host.clock.jump(int(draw.between(-7_200_000, 7_200_000)))
        elif kind == "full":
            await self.fill_the_disk()
        else:
            await self.fell(kind)

    async def part(self, actor: Actor, kind: str) -> None:
        process = self.processes[actor.name]
        if kind == "die":
            process.kill()
            actor.died()
        else:
            actor.stopping = True
            await asyncio.wait([process.task], timeout=self.draw.between(0.5, 20))
        await asyncio.sleep(self.draw.between(0, 2.5))
        if process.alive:
            process.kill()
            actor.died()
        elif kind == "leave":
            process.task.result()
        self.enter(actor)

    async def replace_prematurely(self, writers: Sequence[Actor]) -> None:
        """One that is not heard of gets a successor, and comes back while that is at work."""
        draw, network = self.draw, self.sim.network
        writer = writers[draw.below(len(writers))]
        twin = writer.twin(self.sim.rng.fork(f"twin/{draw.below(1 << 30)}"))
        network.cut(BROKER, writer.name)
        process = self.sim.host(twin.name).start(twin.main)
        await asyncio.sleep(draw.between(0.5, 3))
        network.heal()
        await asyncio.sleep(draw.between(0, 1))
        twin.stopping = True
        done, _ = await asyncio.wait([process.task], timeout=draw.between(0.1, 20))
        for task in done:
            task.result()
        if process.alive:
            process.kill()
            twin.died()

    async def fill_the_disk(self) -> None:
        faults, process = self.host.disk_faults, self.node.process
        before, faults.capacity = faults.capacity, self.host.volume.used + self.draw.below(5_000)
        await asyncio.wait([process.task], timeout=self.draw.between(0.1, 2))
        faults.capacity = before
        self.node.note_failure()

    async def fell(self, kind: str) -> None:
        draw = self.draw
        self.count_compactions()
        if kind == "stop":
            await self.node.stop()
        elif kind == "sick":
            faults = self.host.disk_faults
            faults.fail_sync = draw.between(0.1, 1)
            await asyncio.wait([self.node.process.task], timeout=draw.between(0.1, 2))
            faults.fail_sync = 0.0
            self.node.note_failure(excused=ErrorCode.KAFKA_STORAGE_ERROR)
            self.host.power_cut()
        else:
            if kind == "power":
                await self.hang_the_disk()
            self.node.note_failure()
            self.end_node(kind)
            while draw.chance(0.25):  # again, somewhere on the way up
                self.node.boot()
                await asyncio.sleep(draw.between(0, 0.3))
                self.node.note_failure()
                self.end_node(kind)
            await asyncio.sleep(draw.between(0, 1))
        await self.node.start()

    async def hang_the_disk(self) -> None:
        """For some files, before the power goes: what is written there is not safe for long."""
        draw, faults = self.draw, self.host.disk_faults
        before = faults.stall, faults.stall_times
        faults.stall, faults.stall_times = 1.0, 10_000
        faults.stall_in = HANGING[draw.below(len(HANGING))]
        await asyncio.wait([self.node.process.task], timeout=draw.between(0.1, 1))
        (faults.stall, faults.stall_times), faults.stall_in = before, ""

    def end_node(self, kind: str) -> None:
        if kind == "kill":
            self.node.process.kill()
        else:
            self.host.power_cut()

    def count_compactions(self) -> None:
        if self.node.node is not None:
            self.compactions += self.node.node.counters.compactions

    # ---- clients of the scene itself ----

    async def as_client(self, work: Callable[[ProcessWorld], Coroutine[Any, Any, None]]) -> None:
        process = self.sim.host("scene").start(work)
        try:
            await asyncio.wait_for(asyncio.shield(process.task), HEALED_S)
        finally:
            process.kill()

    async def set_up(self, world: ProcessWorld) -> None:
        draw = self.draw
        small = {"internal.segment.bytes": str((2_000, 8_000)[draw.below(2)])}
        plain = {"message.timestamp.after.max.ms": str(1 << 40), "retention.ms": "-1"}
        compacted = {**plain, **small, "cleanup.policy": "compact"}
        compacted["delete.retention.ms"] = str((0, 500, 86_400_000)[draw.below(3)])
        async with Admin({"bootstrap.servers": f"{BROKER}:9092"}, _ports=world) as admin:
            if self.transaction_version < 2:
                await admin.update_features(
                    {"transaction.version": self.transaction_version},
                    upgrade_type=UpgradeType.SAFE_DOWNGRADE,
                )
            await admin.create_topics(
                [
                    NewTopic(SOURCE, PARTITIONS, 1, plain),
                    NewTopic(SINK, PARTITIONS, 1, plain),
                    NewTopic(TABLE, 1, 1, compacted),
                ]
            )
        async with self.verdict.reading(world, group_id=COPIERS) as consumer:
            await consumer.committed([TopicPartition(SOURCE, 0)])  # the topic of groups is there
        async with Admin({"bootstrap.servers": f"{BROKER}:9092"}, _ports=world) as admin:
            resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
            changes = [(name, ConfigOp.SET, value) for name, value in small.items()]
            await admin.incremental_alter_configs({resource: changes})
