"""A quorum whose voters come and go under a seed's faults.

All that happens to the controllers in the play of the quorum happens here, too, while two
recruiters take voters out and put them in again, each without knowing of the other. At no moment
may the voters that a leader counts by differ by more than one from those that are committed. When
all has healed, the recruiters put everybody back, within a bound.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from scriba.client import Admin, Endpoint, QuorumDescription
from scriba.peers.ports import Ports
from scriba.testing.sim.actors.cast import Actor
from scriba.testing.sim.cluster import CONTROLLER_PORT
from scriba.testing.sim.plays import quorum
from scriba.testing.sim.plays.cluster_stage import Report

RECRUITERS: Final = 2
RESTORED_S: Final = 60
"""Virtual time in which all controllers have to be voters again after all has healed."""


@dataclass(slots=True)
class Recruiter(Actor):
    pool: Collection[int] = ()
    """Who may be a voter; others are taken out."""
    calm: bool = False
    """Set from outside: nobody is taken out any more."""

    async def live(self, ports: Ports) -> None:
        async with self.admin(ports) as admin:
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.05, 0.8))
                await self._change(admin, await admin.describe_quorum())

    async def _change(self, admin: Admin, found: QuorumDescription) -> None:
        votes = {voter.id: voter.directory_id for voter in found.voters}
        waiting = {o.id: o.directory_id for o in found.observers if o.id in self.pool}
        missing = [at for at in sorted(waiting) if at not in votes]
        if missing and (self.calm or self.rng.chance(0.5)):
            at = missing[self.rng.below(len(missing))]
            address = Endpoint("CONTROLLER", f"n{at}", CONTROLLER_PORT)
            await admin.add_raft_voter(at, waiting[at], [address])
        elif len(votes) > 1 and (unwanted := [at for at in sorted(votes) if at not in self.pool]):
            await admin.remove_raft_voter(unwanted[0], votes[unwanted[0]])
        elif not self.calm and len(votes) > 1:
            at = sorted(votes)[self.rng.below(len(votes))]
            await admin.remove_raft_voter(at, votes[at])
        else:
            return
        self.steps += 1


class Scene(quorum.Scene):
    sizes = (3, 3, 5, 4)

    def __init__(self, seed: int, brokers: int = 1) -> None:
        super().__init__(seed, brokers)
        self.witness.follow_voters = True
        self.recruiters = [
            Recruiter(
                name=f"recruiter{number}",
                books=self.books,
                rng=self.sim.rng.fork(f"actor/recruiter{number}"),
                partitions=1,
                bootstrap=self.bootstrap,
                pool=self.cluster.voters,
            )
            for number in range(RECRUITERS)
        ]
        self.actors += self.recruiters

    @property
    def changes(self) -> int:
        return sum(each.steps for each in self.recruiters)

    async def overlap(
        self,
        misfortunes: list[Callable[[], Coroutine[Any, Any, None]]],
        longest_pause: float = 2.0,
    ) -> None:
        for each in self.recruiters:
            each.calm = False
        await super().overlap(misfortunes, longest_pause)

    async def become_whole(self) -> None:
        for each in self.recruiters:
            each.calm = True
        await super().become_whole()
        deadline = self.sim.loop.true_time() + RESTORED_S
        wanted = set(self.cluster.voters)
        while not all(set(voters) == wanted for voters in self.witness.voters().values()):
            if self.sim.loop.true_time() >= deadline:
                self.books.records.violation(
                    f"all had healed, and the voters are {self.witness.voters()} by node"
                )
                return
            await asyncio.sleep(0.05)
        await super().become_whole()

    async def stop(self, *kinds: type[Actor]) -> None:
        await super().stop(*kinds, Recruiter)


def run(seed: int) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed)
    return scene.report(
        scene.play,
        {"topics": lambda: scene.administrator.steps, "changes": lambda: scene.changes},
    )
