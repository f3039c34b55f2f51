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
from dataclasses import dataclass
from typing import Final

from scriba.client import Admin, ConfigOp, NewTopic, TopicPartition, UpgradeType
from scriba.client.admin.model import ConfigResource, ResourceType
from scriba.errors import KafkaError
from scriba.settings import NodeSettings
from scriba.testing.history import History
from scriba.testing.sim.actors.cast import COPIERS, SINK, SOURCE, TABLE, Books
from scriba.testing.sim.node import SimNode, storage_lost
from scriba.testing.sim.plays.stage import COORDINATION, Stage
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

BROKER: Final = "broker"
PARTITIONS: Final = 2
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


class Scene(Stage):
    def __init__(self, seed: int) -> None:
        draw = SimWorld(seed).rng.fork("scene")
        sim = SimWorld(
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
        super().__init__(sim, (BROKER,), Books(History(synced_only=self.synced)), PARTITIONS)
        self.draw = draw
        self.transaction_version = (2, 2, 1, 0)[draw.below(4)]
        self.host = sim.host(BROKER)
        self.node = SimNode(self.host, self.node_settings, self.books.records.violation)
        self.actors = self.cast()
        self.compactions = 0

    def node_settings(self) -> NodeSettings:
        return NodeSettings.parse(
            {
                "listeners": f"PLAINTEXT://{BROKER}:9092",
                "scriba.allow.insecure.bind": "true",
                "log.dirs": "/data",
                **COORDINATION,
                **({"log.flush.interval.messages": "1"} if self.synced else {}),
            }
        )

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

    # ---- what goes wrong ----

    async def misfortune(self) -> None:
        draw, network = self.draw, self.sim.network
        kinds = WITH_POWER if self.synced else MISFORTUNES
        kind = kinds[draw.below(len(kinds))]
        self.sim.trace.add("misfortune", kind)
        actor = self.actors[draw.below(len(self.actors))]
        member = self.any_member()
        if kind == "reset":
            network.reset_some(BROKER, 0.7)
        elif kind == "cut":
            for each in self.actors:
                network.cut(BROKER, each.name)
            await asyncio.sleep(draw.between(0.1, 3))
            network.heal()
        elif kind == "isolate":
            await self.isolate(member)
        elif kind == "twin":
            await self.replace_prematurely()
        elif kind in ("die", "leave"):
            await self.part(member if draw.chance(0.7) else actor, kind)
        elif kind == "clock":
            self.host.clock.jump(int(draw.between(-7_200_000, 7_200_000)))
        elif kind == "full":
            await self.fill_the_disk()
        else:
            await self.fell(kind)

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
            self.node.note_failure(excused=storage_lost)
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
