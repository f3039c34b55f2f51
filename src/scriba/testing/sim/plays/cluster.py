"""A whole cluster under a seed's mix of faults.

The cast of groups, transactions and a compacted table plays on it, and an administrator whose
topics come and go.

The seed decides how many nodes there are and who of them votes, whether records are synced before
they count, how disks, clocks and network are, and what goes wrong. Misfortunes overlap: while one
node stands still, another may lose its power, and a third be heard but not hear; each ends by
itself. A witness looks into all nodes meanwhile (`witness`).

What is not synced is protected by the other replicas, as long as fewer than `min.insync.replicas`
of a partition lose it between two moments at which all of them are in sync. Within that budget
nothing is ever lost. Some seeds go beyond it (`beyond`): then what is lost must have been told.
Where records are synced all nodes may lose their power at once, and nothing is lost.

Then all heals. Within a bound the cluster is whole again, every group has caught up, and the
histories are held against what is left.
"""

import asyncio
from typing import Final

from scriba.client import Admin, ConfigOp, NewTopic, TopicPartition
from scriba.client.admin.model import ConfigResource, ResourceType
from scriba.testing.history import History, Table
from scriba.testing.sim.actors.administrator import Administrator
from scriba.testing.sim.actors.cast import COPIERS, SINK, SOURCE, TABLE, Actor, Books, Feeder
from scriba.testing.sim.checks.losses import Losses
from scriba.testing.sim.checks.witness import Witness, image_of
from scriba.testing.sim.cluster import DATA, MORE, SimCluster
from scriba.testing.sim.plays.cluster_stage import PACE, ClusterStage, Report
from scriba.testing.sim.plays.mishaps import CLOCKS, NETWORK, NODES, Mishaps
from scriba.testing.sim.plays.stage import COORDINATION, Stage
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

PARTITIONS: Final = 2
CALM_S: Final = 3
"""Without a misfortune for so long, every broker knows of a topic when its maker does."""

SHAPES: Final = ((3, 0), (3, 0), (3, 1), (3, 2), (5, 0))
"""Nodes that vote and serve, and nodes that only serve."""

CLIENTS: Final = ("die", "leave", "isolate", "twin")
MISFORTUNES: Final = (*NODES, *NETWORK, *CLOCKS, *CLIENTS)
SIMPLE: Final = (Feeder, Administrator)
"""Who plays where records may be lost."""


def run(seed: int, shape: tuple[int, int] | None = None, plain: bool = False) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed, shape, plain)
    books = scene.books
    return scene.report(
        scene.play,
        {
            "acknowledged": lambda: books.records.acked,
            "transactions": lambda: len(books.transactions.told),
            "audited": lambda: len(books.transactions.seen),
            "commits": lambda: books.groups.accepted,
            "rows": lambda: len(books.table.writes),
        },
    )


class Scene(ClusterStage):
    writers = (*Stage.writers, Administrator)

    def __init__(self, seed: int, shape: tuple[int, int] | None, plain: bool = False) -> None:
        """A plain one has no groups, transactions or tables: more can go wrong in less time."""
        draw = SimWorld(seed).rng.fork("scene")
        drawn = SHAPES[draw.below(len(SHAPES))]
        voters, others = shape or drawn
        sim = SimWorld(
            seed,
            disk_faults=DiskFaults(
                sync_ms=((0.05, 1.0), (0.5, 8.0))[draw.below(2)],
                stall=(0.0, 0.01)[draw.below(2)],
                cold=(0.0, 0.05)[draw.below(2)],
            ),
            net_faults=NetFaults(
                spike=(0.0, 0.005)[draw.below(2)],
                short=(0.0, 0.1)[draw.below(2)],
            ),
        )
        self.synced = draw.chance(0.3)
        self.beyond = not self.synced and draw.chance(0.15)
        self.two_disks = draw.chance(0.3)
        self.factor = min(3, voters + others)
        books = Books(History(synced_only=True), table=Table(replicas=self.factor))
        cluster = SimCluster(sim, voters, others, self.settings(), books.records.violation)
        super().__init__(cluster, books, PARTITIONS, draw, Witness(cluster, excused=self.beyond))
        self.administrator = Administrator(
            name="administrator",
            books=books,
            rng=sim.rng.fork("actor/administrator"),
            partitions=self.factor,
            bootstrap=self.bootstrap,
        )
        self.administrator.strangers = self.strangers
        self.plain = plain or self.beyond
        cast = [*self.cast(), self.administrator]
        self.actors = [each for each in cast if not self.plain or isinstance(each, SIMPLE)]
        losses = Losses(self.witness, min(2, self.factor), self.synced)
        self.mishaps = Mishaps(cluster, draw, losses, self.tell, reckless=self.beyond)
        self.struck: set[str] = set()
        """Clients to which something is being done."""

    def settings(self) -> dict[str, str]:
        factor = str(self.factor)
        return {
            "log.dirs": f"{DATA},{MORE}" if self.two_disks else DATA,
            **COORDINATION,
            **(PACE if self.factor > 1 else {}),
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": str(min(2, self.factor)),
            "default.replication.factor": factor,
            "min.insync.replicas": str(min(2, self.factor)),
            **({"log.flush.interval.messages": "1"} if self.synced else {}),
        }

    def strangers(self, topic: str) -> list[int]:
        """Nodes that do not know a topic, if nothing has been wrong for so long that they must."""
        if self.mishaps.calm_for < CALM_S:
            return []
        return [
            at
            for at, node in self.cluster.running()
            if self.witness.heard_for(at) > CALM_S
            and ((image := image_of(node)) is None or topic not in image.topics_by_name)
        ]

    # ---- the play ----

    async def play(self) -> None:
        async with self.watched():
            await self.cluster.start()
            await self.as_client(self.set_up)
            for actor in self.actors:
                self.enter(actor)
            if self.plain:
                await self.overlap([self.misfortune] * (8 + self.draw.below(12)), 0.8)
            else:
                await self.overlap([self.misfortune] * (4 + self.draw.below(6)))
            self.heal()
            await self.become_whole()
            await asyncio.sleep(1)
            await (self.stop(*SIMPLE) if self.plain else self.come_to_rest())
            await self.become_whole()
        self.witness.compare_replicas()
        await self.as_client(self.check_records if self.plain else self.verdict.check)
        for node in self.cluster.nodes.values():
            node.note_failure()

    async def misfortune(self) -> None:
        kind = MISFORTUNES[self.draw.below(len(MISFORTUNES))]
        if kind not in CLIENTS:
            dark = (self.beyond or self.synced) and self.draw.chance(0.2)
            await self.mishaps.happen("blackout" if dark else kind)
            return
        if self.plain:
            return
        actor: Actor = self.any_member()
        if kind in ("die", "leave") and self.draw.chance(0.3):
            actor = self.actors[self.draw.below(len(self.actors))]
        if actor.name in self.struck:
            return
        self.struck.add(actor.name)
        self.tell(kind, actor.name)
        if kind == "isolate":
            await self.isolate(actor)
        elif kind == "twin":
            await self.replace_prematurely()
        else:
            await self.part(actor, kind)
        self.struck.discard(actor.name)

    # ---- clients of the scene itself ----

    async def set_up(self, world: ProcessWorld) -> None:
        draw = self.draw
        small = {"internal.segment.bytes": str((2_000, 8_000)[draw.below(2)])}
        plain = {"message.timestamp.after.max.ms": str(1 << 40), "retention.ms": "-1"}
        compacted = {**plain, **small, "cleanup.policy": "compact"}
        compacted["delete.retention.ms"] = str((0, 500, 86_400_000)[draw.below(3)])
        config = {"bootstrap.servers": self.bootstrap}
        async with Admin(config, _ports=world) as admin:
            await admin.create_topics(
                [
                    NewTopic(SOURCE, PARTITIONS, self.factor, plain),
                    NewTopic(SINK, PARTITIONS, self.factor, plain),
                    NewTopic(TABLE, 1, self.factor, compacted),
                ]
            )
        async with self.verdict.reading(world, group_id=COPIERS) as consumer:
            await consumer.committed([TopicPartition(SOURCE, 0)])  # the topic of groups is there
        async with Admin(config, _ports=world) as admin:
            resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
            changes = [(name, ConfigOp.SET, value) for name, value in small.items()]
            await admin.incremental_alter_configs({resource: changes})

    async def check_records(self, world: ProcessWorld) -> None:
        """Beyond the budget records may be gone, but only where somebody was told."""
        records, flags = self.books.records, self.witness.replication.flags
        logs = await self.verdict.logs(SOURCE, world)
        records.check({where[1]: log for where, log in logs.items()})
        if self.beyond:
            told = tuple(f"partition {at} offset" for topic, at in flags if topic == SOURCE)
            records.violations = [
                f"{text}; nobody was told of a loss"
                for text in records.violations
                if not text.startswith(told)
            ]
