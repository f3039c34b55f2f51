"""A quorum whose voters lose their power between a vote and the next election.

Faults at any time bring this about too seldom (`quorum` plays those). Here the leader falls while
all ways between controllers are slow. Who is elected is cut off at once, before any record of its
epoch has reached another disk; then all who may have voted for it lose their power. They come back,
and the old leader with them. Of the epoch in which they voted they know by nothing but what was on
their disks before they answered, and the one they elected still leads it: who forgets its vote
helps to elect a second leader in that epoch. In half of the cases disks are slow as well, so that a
vote which is answered first and synced afterwards is lost.

Without the one that is cut off, the others have to elect a leader within a bound. It finds records
of earlier epochs on a majority, and their fetches take long enough for the witness to see what it
commits before a record of its own epoch. Then all heals, as in the play of the quorum.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scriba.raft.roles import Role
from scriba.testing.sim.checks.witness import METADATA, raft_of
from scriba.testing.sim.plays import quorum
from scriba.testing.sim.plays.cluster_stage import Report
from scriba.testing.sim.world.net import Path

WAYS: Final = Path(delay_ms=(10, 40))
"""Between controllers: who is elected is seen before another controller hears of it."""
SLOW_SYNC_MS: Final = (20, 60)
FALLS: Final = ("kill", "power", "isolate")
ELECTED_S: Final = 20
"""Virtual time in which a majority that is up and connected has to have a leader."""


def run(seed: int) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = Scene(seed)
    return scene.report(
        scene.play,
        {"topics": lambda: scene.administrator.steps, "moments": lambda: scene.moments},
    )


class Scene(quorum.Scene):
    sizes = (3, 3, 5, 3)
    times = 3

    def __init__(self, seed: int, brokers: int = 1) -> None:
        super().__init__(seed, brokers)
        self.moments = 0
        """How often voters lost their power while nothing but their votes told of an epoch."""

    async def strike(self) -> None:
        leading = self.witness.quorum_leader()
        assert leading is not None
        first, epoch = leading
        with self.slow():
            await asyncio.sleep(self.draw.between(0, 1))
            self.fell(first)
            second = await self.next_leader(epoch)
            if second is None:
                return
            self.tell(f"electing: {second} is elected after {first}, and cut off")
            self.cut_from_all(second)
            voters = [at for at in self.cluster.voters if at not in (first, second)]
            self.moments += all(self.last_epoch(at) <= epoch for at in voters)
            await asyncio.sleep(self.draw.between(0, 0.01))
            for at in voters:
                self.cut_power(at)
            await self.come_back(first, second, voters)
            await self.next_leader(epoch, besides=second)
            await asyncio.sleep(self.draw.between(0, 1))

    async def strike_when_whole(self) -> None:
        """Nothing: what a whole quorum must not notice is in the play of the quorum."""

    # ---- what it sees ----

    async def next_leader(self, epoch: int, besides: int = 0) -> int | None:
        """Who leads an epoch after that one, which must not take long; one node apart."""
        if not await self.until(lambda: self.leader_after(epoch, besides) is not None, ELECTED_S):
            self.books.records.violation(
                f"the quorum: a majority is up and connected, and elects nobody after epoch {epoch}"
            )
        return self.leader_after(epoch, besides)

    def leader_after(self, epoch: int, besides: int) -> int | None:
        for at, node in self.cluster.running():
            raft = raft_of(node)
            leads = raft is not None and raft.role is Role.LEADER and raft.epoch > epoch
            if leads and at != besides:
                return at
        return None

    def last_epoch(self, at: int) -> int:
        """That of the last record on a controller's disk or on its way there."""
        batches = self.witness.batches(at, METADATA)
        return batches[-1].epoch if batches else 0

    # ---- what it does ----

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Meanwhile all ways between controllers are, and some disks; `heal` ends the first."""
        self.slow_ways()
        faults = [host.disk_faults for host in self.cluster.hosts.values()]
        before = [each.sync_ms for each in faults]
        sync_ms = SLOW_SYNC_MS if self.draw.chance(0.5) else (0.1, 1.0)
        for each in faults:
            each.sync_ms = sync_ms
        yield
        for each, usual in zip(faults, before, strict=True):
            each.sync_ms = usual

    def slow_ways(self) -> None:
        names = [self.cluster.name(at) for at in self.cluster.voters]
        for one in names:
            for other in names:
                if one != other:
                    self.sim.network.worsen(one, other, WAYS)

    def fell(self, at: int) -> None:
        kind = FALLS[self.draw.below(len(FALLS))]
        if kind == "power":
            self.cut_power(at)
        elif kind == "isolate":
            self.cut_from_all(at)
        else:
            self.tell(kind, self.cluster.name(at))
            self.cluster.nodes[at].note_failure()
            self.cluster.nodes[at].process.kill()

    def cut_power(self, at: int) -> None:
        self.tell("power", self.cluster.name(at))
        self.cluster.nodes[at].note_failure()
        self.cluster.hosts[at].power_cut()

    def cut_from_all(self, at: int) -> None:
        self.tell("isolate", self.cluster.name(at))
        for other in self.cluster.names:
            if other != self.cluster.name(at):
                self.sim.network.cut(self.cluster.name(at), other)

    async def come_back(self, first: int, second: int, voters: list[int]) -> None:
        """All that were struck but the one that is cut off, in some order."""
        waiting = [first, *voters]
        while waiting:
            at = waiting.pop(self.draw.below(len(waiting)))
            await asyncio.sleep(self.draw.between(0, 0.2))
            if not self.cluster.nodes[at].runs:
                self.cluster.nodes[at].boot()
                continue
            for other in self.cluster.ids:
                if other not in (at, second):
                    self.sim.network.heal(self.cluster.name(at), self.cluster.name(other))
            self.slow_ways()
