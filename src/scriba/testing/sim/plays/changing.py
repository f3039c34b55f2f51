"""A cluster that changes its shape under a seed's faults.

All that happens in the play of clusters happens here, too, while a mover has replicas moved between
brokers; in most seeds new brokers join and leave again, emptied and unregistered, and in half of
them recruiters take voters out and put others in. The metadata log is read as it is committed:
replicas are as asked or as before, and never fewer of them in sync than without a move.

When all has healed, every move ends, whoever was leaving has left, and all controllers that are
there vote, within a bound.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from scriba.testing.sim.actors.cast import Actor
from scriba.testing.sim.actors.mover import Mover, Staff
from scriba.testing.sim.checks.placements import Placements
from scriba.testing.sim.checks.witness import raft_of
from scriba.testing.sim.plays import cluster
from scriba.testing.sim.plays.cluster_stage import Report
from scriba.testing.sim.plays.voters import RECRUITERS, Recruiter

MOST_JOINED: Final = 2
SETTLED_S: Final = 120
"""Virtual time in which moves end and brokers are gone after all has healed."""


class Scene(cluster.Scene):
    def __init__(self, seed: int, plain: bool) -> None:
        super().__init__(seed, None, plain)
        self.choose = self.sim.rng.fork("changes")
        placements = self.witness.placements = Placements()
        self.moves = placements.moves
        self.staff = Staff({*self.cluster.ids})
        self.mover = Mover(
            name="mover",
            books=self.books,
            rng=self.sim.rng.fork("actor/mover"),
            partitions=cluster.PARTITIONS,
            bootstrap=self.bootstrap,
            moves=self.moves,
            staff=self.staff,
        )
        self.grows = self.choose.chance(0.7)
        recruiters = RECRUITERS if self.choose.chance(0.5) else 1 if self.grows else 0
        self.witness.follow_voters = recruiters > 0
        self.pool = {*self.cluster.voters}
        """Controllers that may vote."""
        self.recruiters = [
            Recruiter(
                name=f"recruiter{number}",
                books=self.books,
                rng=self.sim.rng.fork(f"actor/recruiter{number}"),
                partitions=1,
                bootstrap=self.bootstrap,
                pool=self.pool,
            )
            for number in range(recruiters)
        ]
        self.actors += [self.mover, *self.recruiters]
        self.calm = False
        self.joins = self.departures = 0

    # ---- who comes and goes ----

    async def come_and_go(self) -> None:
        while not self.calm:
            await asyncio.sleep(self.choose.between(0.3, 2))
            joined = [at for at in self.cluster.joined if at not in self.staff.leaving]
            if joined and (len(joined) == MOST_JOINED or self.choose.chance(0.5)):
                await self.depart(joined[self.choose.below(len(joined))])
            elif not self.calm:
                self.join()

    def join(self) -> None:
        controller = bool(self.recruiters) and self.choose.chance(0.4)
        at = self.cluster.join(controller)
        self.tell("join", self.cluster.name(at), *(["controller"] if controller else []))
        self.cluster.nodes[at].boot()
        self.staff.here.add(at)
        if controller:
            self.pool.add(at)
        self.joins += 1

    async def depart(self, at: int) -> None:
        """One is emptied, votes no more, stops in good order, and is unregistered."""
        name = self.cluster.name(at)
        self.tell("leave", name)
        self.pool.discard(at)
        self.staff.leaving.add(at)
        await self.empty(at)
        self.tell("gone", name)
        self.cluster.leave(at)
        del self.mishaps.busy[at]
        self.staff.here.discard(at)
        self.staff.stopped.add(at)
        self.staff.leaving.discard(at)
        self.departures += 1

    async def empty(self, at: int) -> None:
        """Until it has stopped with nothing on it.

        Before it is fenced, a topic that is made may still be placed on it: then it is needed once
        more. One that does not serve yet may begin to by a heartbeat that outlives it.
        """
        node = self.cluster.nodes[at]
        while True:
            while not self.may_go(at):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            self.mishaps.busy[at] = "leave"
            if node.is_up and self.choose.chance(0.7):
                await node.stop()
            node.process.kill()
            while self.serves(at):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if not self.holds(at):
                return
            node.boot()
            del self.mishaps.busy[at]

    def may_go(self, at: int) -> bool:
        free = at not in self.mishaps.busy
        return free and self.serves(at) and not self.holds(at) and not self.votes(at)

    def serves(self, at: int) -> bool:
        """Whether new replicas may be placed on it, or nobody knows."""
        image = self.witness.committed_image()
        return image is None or (at in image.brokers and not image.brokers[at].fenced)

    def holds(self, at: int) -> bool:
        """Whether it has replicas, or nobody knows."""
        image = self.witness.committed_image()
        return image is None or any(
            at in partition.replicas
            for topic in image.topics_by_id.values()
            for partition in topic.partitions.values()
        )

    def votes(self, at: int) -> bool:
        """Whether the leader of the quorum counts it, or nobody knows."""
        leading = self.witness.quorum_leader()
        node = None if leading is None else self.cluster.nodes[leading[0]].node
        raft = None if node is None else raft_of(node)
        return raft is None or at in raft.voters

    # ---- the play ----

    async def overlap(
        self,
        misfortunes: list[Callable[[], Coroutine[Any, Any, None]]],
        longest_pause: float = 2.0,
    ) -> None:
        self.changing = asyncio.ensure_future(
            self.come_and_go() if self.grows else asyncio.sleep(0)
        )
        await super().overlap(misfortunes, longest_pause)

    async def become_whole(self) -> None:
        self.calm = self.mover.calm = True
        for each in self.recruiters:
            each.calm = True
        deadline = self.sim.loop.true_time() + SETTLED_S
        while why := self.unsettled():
            for at, node in self.cluster.nodes.items():
                if at not in self.mishaps.busy:
                    node.note_failure()
            if self.sim.loop.true_time() >= deadline:
                self.books.records.violation(f"all had healed, and {why}")
                break
            await asyncio.sleep(0.05)
        await super().become_whole()

    def unsettled(self) -> str:
        """What is still to come to its end."""
        if self.changing.done():
            self.changing.result()
        else:
            return f"brokers {sorted(self.staff.leaving)} have not left"
        if self.mover.throttled:
            return "throttles have not been taken back"
        if self.staff.stopped:
            return f"brokers {sorted(self.staff.stopped)} are not unregistered"
        image = self.witness.newest_image()
        if image is None or {*image.brokers} != self.staff.here:
            return f"brokers {sorted(self.staff.here)} are there, and not all or others registered"
        if self.recruiters and not all(
            {*voters} == self.pool for voters in self.witness.voters().values()
        ):
            return f"the voters are {self.witness.voters()} by node"
        return self.witness.unsettled()

    async def stop(self, *kinds: type[Actor]) -> None:
        await super().stop(*kinds, Mover, Recruiter)


def run(seed: int, plain: bool = False) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed, plain)
    return scene.report(
        scene.play,
        {
            "acknowledged": lambda: scene.books.records.acked,
            "moves begun": lambda: scene.moves.begun,
            "finished": lambda: scene.moves.finished,
            "cancelled": lambda: scene.moves.cancelled,
            "joined": lambda: scene.joins,
            "left": lambda: scene.departures,
            "voters changed": lambda: sum(each.steps for each in scene.recruiters),
        },
    )
