"""A quorum of controllers under a seed's faults, and one broker whose administrator makes topics.

Everything happens to the controllers: they are killed, paused, cut off and out of power, together
and one after the other, while topics come and go. Metadata is synced before it counts, so power may
go anywhere and at any time. One that was cut off alone and comes back must not cost its majority
an election. Where there is only one controller, it is held up for longer than brokers may be
silent, and must not take its own deafness for their silence.

Then all heals. Within a bound there is a leader, all agree, and every topic is known that was made
and not removed.
"""

import asyncio
from functools import partial
from typing import Final

from scriba.testing.history import History
from scriba.testing.sim.actors.administrator import Administrator
from scriba.testing.sim.actors.cast import Books
from scriba.testing.sim.checks.losses import Losses
from scriba.testing.sim.checks.witness import Witness, image_of
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.plays.cluster_stage import PACE, ClusterStage, Report
from scriba.testing.sim.plays.mishaps import NETWORK, Mishaps
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import SimWorld

NODES: Final = ("kill", "power", "power", "hold", "stop", "blackout", "blackout")
MISFORTUNES: Final = (*NODES, *NODES, *NETWORK)

PATIENT: Final = {
    "broker.session.timeout.ms": "4000",
    "socket.connection.setup.timeout.ms": "500",
    "socket.connection.setup.timeout.max.ms": "500",
}
"""Where one controller is deaf: a second of that is held against its brokers, which have to find
the way to it again in the rest of their session, as they have in production."""


def run(seed: int, brokers: int = 1) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed, brokers)
    return scene.report(scene.play, {"topics": lambda: scene.administrator.steps})


class Scene(ClusterStage):
    sizes: tuple[int, ...] = (3, 3, 5, 1)
    """How many voters there may be; the last only where there are brokers."""
    times = 2

    def __init__(self, seed: int, brokers: int) -> None:
        draw = SimWorld(seed).rng.fork("scene")
        sim = SimWorld(
            seed,
            disk_faults=DiskFaults(
                sync_ms=((0.05, 1.0), (0.5, 8.0), (5.0, 60.0))[draw.below(3)],
                stall=(0.0, 0.02)[draw.below(2)],
            ),
            net_faults=NetFaults(spike=(0.0, 0.01)[draw.below(2)], short=(0.0, 0.1)[draw.below(2)]),
        )
        books = Books(History(synced_only=True))
        more = {
            **PACE,
            "log.flush.interval.messages": "1",
            "metadata.log.max.record.bytes.between.snapshots": str((500, 1 << 20)[draw.below(2)]),
        }
        voters = self.sizes[draw.below(4 if brokers else 3)]
        more |= PATIENT if voters == 1 else {}
        cluster = SimCluster(sim, voters, brokers, more, books.records.violation, dedicated=True)
        super().__init__(cluster, books, 1, draw, Witness(cluster))
        self.administrator = Administrator(
            name="administrator",
            books=books,
            rng=sim.rng.fork("actor/administrator"),
            partitions=1,
            bootstrap=self.bootstrap,
        )
        self.actors = [self.administrator] if brokers else []
        losses = Losses(self.witness, 1, synced=True)
        self.mishaps = Mishaps(cluster, draw, losses, self.tell, reckless=True, only=cluster.voters)

    async def play(self) -> None:
        async with self.watched():
            await self.cluster.start()
            for actor in self.actors:
                self.enter(actor)
            for _ in range(self.times):
                await self.strike()
                self.heal()
                await self.become_whole()
                if self.witness.violations:
                    break
                await self.strike_when_whole()
            await self.stop(Administrator)
            await self.become_whole()
        self.witness.finish()
        self.check_topics()
        for node in self.cluster.nodes.values():
            node.note_failure()

    async def become_whole(self) -> None:
        """A quorum that has broken a promise may never do so, and nobody has to wait for it."""
        if not self.witness.violations:
            await super().become_whole()

    async def strike(self) -> None:
        """What happens to controllers, and heals."""
        kinds = [self.any_kind() for _ in range(2 + self.draw.below(6))]
        await self.overlap([partial(self.mishaps.happen, kind) for kind in kinds])

    async def strike_when_whole(self) -> None:
        """What a quorum without any other fault must not even notice."""
        if self.draw.chance(0.5):
            await (self.deafen() if len(self.cluster.voters) == 1 else self.cast_out())

    def any_kind(self) -> str:
        return MISFORTUNES[self.draw.below(len(MISFORTUNES))]

    async def cast_out(self) -> None:
        """A follower that was cut off comes back, and the others keep their leader."""
        leading = self.witness.quorum_leader()
        followers = [at for at in self.cluster.voters if leading is None or at != leading[0]]
        name = self.cluster.name(followers[self.draw.below(len(followers))])
        others = [each for each in self.cluster.names if each != name]
        self.tell("outcast", name)
        with self.quiet():
            for other in others:
                self.sim.network.cut(name, other)
            await asyncio.sleep(self.draw.between(1, 5))
            for other in others:
                self.sim.network.heal(name, other)
            await asyncio.sleep(3)
        now = self.witness.quorum_leader()
        self.tell("end of outcast", name)
        if now != leading:
            self.books.records.violation(
                f"the quorum: {name} was cut off and came back, and its leader {leading} is now "
                f"{now} (node, epoch)"
            )

    async def deafen(self) -> None:
        """The only controller stands still, and all brokers are there when it goes on.

        A process that is stopped finds what its brokers said meanwhile. A machine that was
        suspended has heard nothing, and its clock comes before its network.
        """
        controller = self.cluster.voters[0]
        node, name = self.cluster.nodes[controller], self.cluster.name(controller)
        others = [each for each in self.cluster.names if each != name]
        image, suspended = self.witness.newest_image(), self.draw.chance(0.7)
        assert image is not None
        end_offset = image.end_offset
        self.tell("deaf controller", *(["suspended"] if suspended else []))
        with self.quiet():
            node.process.pause()
            for other in others if suspended else ():
                self.sim.network.cut(name, other)
            await asyncio.sleep(self.draw.between(4.5, 8))
            node.process.resume()
            for other in others if suspended else ():
                self.sim.network.heal(name, other)
            await asyncio.sleep(3)
        self.tell("end of deaf controller")
        if fenced := self.witness.fenced_since(end_offset):
            self.books.records.violation(f"the controller was deaf, and fenced brokers {fenced}")

    def check_topics(self) -> None:
        """What was made and not removed is known to all; what was removed is not."""
        made = self.administrator.topics
        for at, node in self.cluster.running():
            image = image_of(node)
            for name, there in made.items():
                if image is not None and there is not (name in image.topics_by_name):
                    self.books.records.violation(
                        f"topic {name} was {'made' if there else 'removed'}; {at} "
                        f"{'does not know it' if there else 'still knows it'}"
                    )
