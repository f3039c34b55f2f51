"""What all plays of whole clusters share: the witness, the story, misfortunes that overlap, and how
everything heals within a bound.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from scriba.client import ClientError
from scriba.errors import KafkaError
from scriba.runtime.rng import SeededRng
from scriba.testing.sim.actors.cast import Books
from scriba.testing.sim.checks.witness import Witness
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.node import storage_lost
from scriba.testing.sim.plays.stage import Stage

WHOLE_S: Final = 60
"""Virtual time in which all replicas have to be in sync after all has healed."""
AT_ONCE: Final = 3
"""Misfortunes that overlap."""
STEP_S: Final = 0.001
"""How closely a play watches for a moment."""

PACE: Final = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "500",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "200",
}
"""Seconds of production, in parts of one."""


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    violations: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    counts: dict[str, int]
    story: tuple[str, ...]
    """What went wrong and when: the trace for a reader."""


class ClusterStage(Stage):
    def __init__(
        self,
        cluster: SimCluster,
        books: Books,
        partitions: int,
        draw: SeededRng,
        witness: Witness,
    ) -> None:
        super().__init__(cluster.sim, cluster.brokers, books, partitions)
        self.draw = draw
        self.cluster = cluster
        self.witness = witness
        self.story: list[str] = []
        witness.tell = self.tell

    def tell(self, *event: object) -> None:
        """What a reader of the run wants to know, beside every byte that was written or sent."""
        self.sim.trace.add("story:", *event)
        self.story.append(f"{self.sim.loop.true_time():9.3f} {' '.join(map(str, event))}")

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Meanwhile the witness looks, and an error of its own ends the run."""
        watching = asyncio.ensure_future(self.witness.watch())
        try:
            yield
        finally:
            if watching.done():
                watching.result()
            watching.cancel()

    async def until(
        self, come: Callable[[], bool], longest_s: float, step_s: float = STEP_S
    ) -> bool:
        """Waits for a moment; whether it has come."""
        deadline = self.sim.loop.true_time() + longest_s
        while not come():
            if self.sim.loop.true_time() >= deadline:
                return False
            await asyncio.sleep(step_s)
        return True

    async def overlap(
        self,
        misfortunes: list[Callable[[], Coroutine[Any, Any, None]]],
        longest_pause: float = 2.0,
    ) -> None:
        """One after the other, each while some of the earlier ones go on."""
        under_way: set[asyncio.Task[None]] = set()
        for misfortune in misfortunes:
            await asyncio.sleep(self.draw.between(0.1, longest_pause))
            under_way.add(asyncio.ensure_future(misfortune()))
            await asyncio.sleep(0)
            under_way = await self._ended(under_way, wait=len(under_way) >= AT_ONCE)
        while under_way:
            under_way = await self._ended(under_way, wait=True)

    async def _ended(self, tasks: set[asyncio.Task[None]], wait: bool) -> set[asyncio.Task[None]]:
        done, rest = await asyncio.wait(
            tasks, return_when=asyncio.FIRST_COMPLETED, timeout=None if wait else 0
        )
        for task in done:
            task.result()
        return rest

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Meanwhile disks and network are as they should be."""
        network = self.sim.network.faults
        faults = [host.disk_faults for host in self.cluster.hosts.values()]
        before = network.spike, [(each.stall, each.sync_ms) for each in faults]
        network.spike = 0.0
        for each in faults:
            each.stall, each.sync_ms = 0.0, (0.1, 1.0)
        yield
        network.spike = before[0]
        for each, (stall, sync_ms) in zip(faults, before[1], strict=True):
            each.stall, each.sync_ms = stall, sync_ms

    def heal(self) -> None:
        self.tell("all heals")
        self.sim.network.heal()
        self.sim.network.faults.spike = 0.0
        for at, host in self.cluster.hosts.items():
            host.disk_faults.stall = 0
            host.clock.run_at(1.0)
            node = self.cluster.nodes[at]
            node.process.resume()
            if not node.runs:
                node.note_failure(excused=storage_lost)
                node.boot()
        for actor in self.actors:
            self.enter(actor)

    async def become_whole(self) -> None:
        """Waits until all nodes agree and all replicas are in sync, which must not take long."""
        deadline = self.sim.loop.true_time() + WHOLE_S
        while why := self.witness.unsettled():
            for node in self.cluster.nodes.values():
                node.note_failure()
            if self.sim.loop.true_time() >= deadline:
                self.books.records.violation(f"all had healed, and the cluster is not whole: {why}")
                return
            await asyncio.sleep(0.05)

    def report(
        self, play: Callable[[], Coroutine[Any, Any, None]], counts: dict[str, Callable[[], int]]
    ) -> Report:
        """Plays, and tells how it was."""
        sim, witness = self.sim, self.witness
        found: list[str] = []
        try:
            sim.run(play())
        except Exception as failure:
            found.append(f"the run broke: {failure!r}")
        found += [
            f"nobody looked at {error!r}"
            for error in sim.loop.unseen
            if not isinstance(error, OSError | KafkaError | ClientError)
        ]
        return Report(
            sim.seed,
            (*self.books.violations, *witness.violations, *found),
            sim.trace.digest(),
            tuple(sim.trace.last),
            {
                **{what: count() for what, count in counts.items()},
                "leaderships": len(witness.replication.leaders),
                "quorum epochs": len(witness.quorum.leaders),
                "looks": witness.looks,
            },
            tuple(self.story),
        )
