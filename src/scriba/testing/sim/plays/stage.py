"""The cast of groups and transactions on simulated hosts, and what happens to its members.

They die, leave, are cut off or replaced too early, and come back, whatever brokers they talk to.

In the end they come to rest: the writers stop, each group catches up within a bound.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from scriba.testing.sim.actors.cast import (
    AUDITORS,
    COPIERS,
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
from scriba.testing.sim.checks.verdict import Verdict
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld

HEALED_S: Final = 60
"""Virtual time in which everything has to be caught up with after all has healed."""

CLASSIC: Final = {"session_timeout_ms": 1_500, "heartbeat_interval_ms": 300}
PROTOCOLS: Final[tuple[dict[str, Any], ...]] = (
    {**CLASSIC, "partition_assignment_strategy": "range"},
    {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer"},
)
COORDINATION: Final = {
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
}
"""Settings of a broker under which all that takes seconds in production takes a part of one."""


class Stage:
    writers: tuple[type[Actor], ...] = (Feeder, Keeper, Reader)
    """Who stops before the groups catch up."""

    def __init__(
        self, sim: SimWorld, brokers: Sequence[str], books: Books, partitions: int
    ) -> None:
        self.sim = sim
        self.draw = sim.rng.fork("scene")
        self.brokers = brokers
        """Hosts that clients are cut off from when they are."""
        self.books = books
        self.partitions = partitions
        self.bootstrap = ",".join(f"{name}:9092" for name in brokers)
        self.verdict = Verdict(books, self.bootstrap, partitions)
        self.actors: list[Actor] = []
        self.processes: dict[str, SimProcess] = {}

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
                partitions=self.partitions,
                bootstrap=self.bootstrap,
                protocol=protocol,
                transactional_id=name,
            )
            for kind, name, protocol in parts
        ]

    def enter(self, actor: Actor) -> None:
        process = self.processes.get(actor.name)
        if process is None or not process.alive:
            actor.stopping = False
            self.processes[actor.name] = self.sim.host(actor.name).start(actor.main)

    # ---- what happens to its members ----

    def any_member(self) -> Member:
        members = [each for each in self.actors if isinstance(each, Member)]
        return members[self.draw.below(len(members))]

    def cut_off(self, name: str) -> None:
        for broker in self.brokers:
            self.sim.network.cut(broker, name)

    def reach_again(self, name: str) -> None:
        for broker in self.brokers:
            self.sim.network.heal(broker, name)

    async def isolate(self, member: Actor) -> None:
        self.cut_off(member.name)
        await asyncio.sleep(self.draw.between(0.5, 4))
        self.reach_again(member.name)

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

    async def replace_prematurely(self) -> None:
        """One that is not heard of gets a successor, and comes back while that is at work."""
        draw = self.draw
        writers = [each for each in self.actors if isinstance(each, Copier | SlowKeeper)]
        writer = writers[draw.below(len(writers))]
        twin = writer.twin(self.sim.rng.fork(f"twin/{draw.below(1 << 30)}"))
        self.cut_off(writer.name)
        process = self.sim.host(twin.name).start(twin.main)
        await asyncio.sleep(draw.between(0.5, 3))
        self.reach_again(writer.name)
        await asyncio.sleep(draw.between(0, 1))
        twin.stopping = True
        done, _ = await asyncio.wait([process.task], timeout=draw.between(0.1, 20))
        for task in done:
            task.result()
        if process.alive:
            process.kill()
            twin.died()

    # ---- the end ----

    async def come_to_rest(self) -> None:
        """The writers stop; the groups catch up, each within its time, and stop."""
        await self.stop(*self.writers)
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
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=HEALED_S)
        if late:
            self.books.records.violation(f"{len(late)} clients did not end after all had healed")
        for task in tasks:
            if task in done:
                task.result()

    async def as_client(self, work: Callable[[ProcessWorld], Coroutine[Any, Any, None]]) -> None:
        """Has something done by a client of the stage's own."""
        process = self.sim.host("scene").start(work)
        try:
            await asyncio.wait_for(asyncio.shield(process.task), HEALED_S)
        finally:
            process.kill()
