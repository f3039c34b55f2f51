"""The whole cast of clients against brokers that are processes: how it enters, goes on and ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from scriba.client import Admin, NewTopic
from scriba.peers.ports import Ports, real_ports
from scriba.runtime.rng import SeededRng
from scriba.testing.history import History, Outcome, Table
from scriba.testing.sim.actors.cast import (
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
from scriba.testing.sim.checks.verdict import Verdict

PARTITIONS = 2
LONGEST_S = 300

Part = TypeVar("Part", bound=Actor)

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "50",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    COPIERS: {"group_protocol": "consumer"},
    AUDITORS: {
        "session_timeout_ms": 3_000,
        "heartbeat_interval_ms": 200,
        "partition_assignment_strategy": "cooperative-sticky",
    },
}


class TimedFeeder(Feeder):
    """One that knows how long the slowest of its acknowledged records was on its way."""

    longest_s = 0.0

    async def _acked(self, delivery: Any, partition: int, value: bytes) -> None:
        began = time.monotonic()
        await super()._acked(delivery, partition, value)
        if self.books.records.sent[value].outcome is Outcome.ACKED:
            self.longest_s = max(self.longest_s, time.monotonic() - began)


class Play:
    def __init__(self, bootstrap: str, factor: int = 1, seed: int = 7) -> None:
        self.bootstrap = bootstrap
        self.factor = factor
        self.ports: Ports = real_ports()
        self.books = Books(History(synced_only=False), table=Table(replicas=factor))
        self.verdict = Verdict(self.books, bootstrap, PARTITIONS)
        self.rng = SeededRng(seed)
        self.feeder = self._actor(TimedFeeder, "feeder", "")
        self.actors: list[Actor] = [
            self.feeder,
            self._actor(Copier, "copier0", COPIERS),
            self._actor(Copier, "copier1", COPIERS),
            self._actor(Auditor, "auditor0", AUDITORS),
            self._actor(Auditor, "auditor1", AUDITORS),
            self._actor(Keeper, "keeper", ""),
            self._actor(SlowKeeper, "slow", ""),
            self._actor(Reader, "reader", ""),
        ]
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def _actor(self, kind: type[Part], name: str, group: str) -> Part:
        return kind(
            name=name,
            books=self.books,
            rng=self.rng.fork(name),
            partitions=PARTITIONS,
            bootstrap=self.bootstrap,
            protocol=PROTOCOLS.get(group, {}),
            transactional_id=name,
        )

    async def set_up(self) -> None:
        small = {"internal.segment.bytes": "1000", "cleanup.policy": "compact"}
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            await admin.create_topics(
                [
                    NewTopic(SOURCE, PARTITIONS, self.factor),
                    NewTopic(SINK, PARTITIONS, self.factor),
                    NewTopic(TABLE, 1, self.factor, small),
                ]
            )
        for actor in self.actors:
            self.enter(actor)
        await self.until(lambda: bool(self.books.transactions.seen))

    @asynccontextmanager
    async def on_stage(self) -> AsyncIterator[None]:
        """Nobody is left when it ends."""
        try:
            yield
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def enter(self, actor: Actor) -> None:
        actor.stopping = False
        self.tasks[actor.name] = asyncio.ensure_future(actor.main(self.ports))

    def any_member(self) -> Member:
        members = [actor for actor in self.actors if isinstance(actor, Member)]
        return members[self.rng.below(len(members))]

    async def until(self, told: Callable[[], bool]) -> None:
        """Of things that happen elsewhere, and tell nobody."""
        async with asyncio.timeout(LONGEST_S):
            while not told():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def go_on(self) -> None:
        """Until records are acknowledged, copied and audited again."""
        books = self.books
        acked, ended = books.records.acked, sum(books.transactions.ends.values())
        seen, commits = len(books.transactions.seen), books.groups.accepted
        await self.until(
            lambda: (
                books.records.acked > acked
                and sum(books.transactions.ends.values()) > ended
                and len(books.transactions.seen) > seen
                and books.groups.accepted > commits
            )
        )

    async def leave(self, *actors: Actor) -> None:
        for actor in actors:
            actor.stopping = True
        async with asyncio.timeout(LONGEST_S):
            for actor in actors:
                await self.tasks[actor.name]

    async def come_to_rest(self) -> None:
        writers = [each for each in self.actors if not isinstance(each, Member)]
        await self.leave(*writers)
        for group, kind in ((COPIERS, Copier), (AUDITORS, Auditor)):
            async with asyncio.timeout(LONGEST_S):
                await self.verdict.catch_up(group, self.ports)
            await self.leave(*(each for each in self.actors if isinstance(each, kind)))
        await self.verdict.check(self.ports)
