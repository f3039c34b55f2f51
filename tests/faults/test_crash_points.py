"""A broker's process that is killed at chosen system calls, under the whole cast.

The kernel kills it as it begins its n-th write to a chosen file, or its n-th rename: in a
rebalance, in an offset commit, in each phase of a transaction, in the swap of a compacted segment.
Then it starts again on what is there, and the cast goes on. In the end everything is caught up
with, and the histories are held against what is left.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scriba.client import Admin, NewTopic
from scriba.peers.ports import Ports, real_ports
from scriba.runtime.rng import SeededRng
from scriba.testing.history import History
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
from tools.kafka.brokers import ScribaBroker, TraceableBroker

WRITES = "pwritev,pwritev2,pwrite64"
RENAMES = "rename,renameat,renameat2"
PARTITIONS = 2
LONGEST_S = 300
TRACER_S = 10

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


class Point(NamedTuple):
    """The n-th of some system calls, of those that touch a partition's log if one is named."""

    partition: str
    calls: str
    when: int


POINTS = (
    *(Point("__consumer_offsets-0", WRITES, when) for when in (1, 2, 4)),
    *(Point("__transaction_state-0", WRITES, when) for when in (1, 2, 3)),
    *(Point(f"{SINK}-0", WRITES, when) for when in (1, 2)),
    *(Point("", RENAMES, when) for when in (1, 2, 3)),
)
MORE_RENAMES = (4, 6, 8, 10, 12, 14, 20, 30, 40)
"""Which renames come first, checkpoints or a swap, is up to the clock: deaths go on until one of a
swap is among them."""


@contextlib.asynccontextmanager
async def fatal(broker: ScribaBroker, point: Point, seen: Path) -> AsyncIterator[None]:
    """`seen` has the calls, the fatal one last."""
    command = ["strace", "-f", "-p", str(broker.pid), "-s", "300", "-o", str(seen)]
    if point.partition:
        command += ["-P", str(broker.log_dir / point.partition / f"{0:020}.log")]
    command += ["-e", f"trace={point.calls}"]
    command += ["-e", f"inject={point.calls}:signal=SIGKILL:when={point.when}"]
    tracer = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        told = b""
        while b"attached" not in told:
            told = await tracer.stderr.readline()
            assert told, "strace cannot attach"
        yield
    finally:
        # It ends with what it traces. Told to end at that very moment it may wait for ever: for a
        # process of which it would have to let go of the last thread first.
        try:
            async with asyncio.timeout(TRACER_S):
                await tracer.wait()
        except TimeoutError:
            tracer.kill()
            await tracer.wait()


class Play:
    def __init__(self, broker: ScribaBroker) -> None:
        self.broker = broker
        self.ports: Ports = real_ports()
        self.books = Books(History(synced_only=False))
        self.verdict = Verdict(self.books, broker.bootstrap, PARTITIONS)
        self.rng = SeededRng(7)
        self.actors = [
            kind(
                name=name,
                books=self.books,
                rng=self.rng.fork(name),
                partitions=PARTITIONS,
                bootstrap=broker.bootstrap,
                protocol=PROTOCOLS.get(group, {}),
                transactional_id=name,
            )
            for kind, name, group in (
                (Feeder, "feeder", ""),
                (Copier, "copier0", COPIERS),
                (Copier, "copier1", COPIERS),
                (Auditor, "auditor0", AUDITORS),
                (Auditor, "auditor1", AUDITORS),
                (Keeper, "keeper", ""),
                (SlowKeeper, "slow", ""),
                (Reader, "reader", ""),
            )
        ]
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.seen = ""

    async def set_up(self) -> None:
        small = {"internal.segment.bytes": "1000", "cleanup.policy": "compact"}
        async with Admin({"bootstrap.servers": self.broker.bootstrap}) as admin:
            await admin.create_topics(
                [
                    NewTopic(SOURCE, PARTITIONS, 1),
                    NewTopic(SINK, PARTITIONS, 1),
                    NewTopic(TABLE, 1, 1, small),
                ]
            )
        for actor in self.actors:
            self.enter(actor)
        await self.until(lambda: bool(self.books.transactions.seen))

    def enter(self, actor: Actor) -> None:
        actor.stopping = False
        self.tasks[actor.name] = asyncio.ensure_future(actor.main(self.ports))

    async def until(self, told: Callable[[], bool]) -> None:
        """Of things that happen elsewhere, and tell nobody."""
        async with asyncio.timeout(LONGEST_S):
            while not told():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def die_at(self, point: Point) -> None:
        """One member leaves and comes back meanwhile, so that there is always a rebalance."""
        members = [actor for actor in self.actors if isinstance(actor, Member)]
        member = members[self.rng.below(len(members))]
        seen = self.broker.data / "calls"
        async with fatal(self.broker, point, seen):
            member.stopping = True
            await self.until(self.broker.ended)
        self.seen += seen.read_text()
        self.broker.kill()
        await asyncio.to_thread(self.broker.start)
        await self.leave(member)
        self.enter(member)

    def swaps(self) -> list[str]:
        """Renames of a swap among the calls before a death."""
        return [line for line in self.seen.splitlines() if ".swap" in line and "rename" in line]

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


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_whatever_call_the_broker_dies_in_every_promise_holds_after_it(
    tmp_path: Path,
) -> None:
    broker = TraceableBroker(tmp_path, SETTINGS)
    await asyncio.to_thread(broker.start)
    play = Play(broker)
    try:
        await play.set_up()
        for point in POINTS:
            await play.die_at(point)
        for when in MORE_RENAMES:
            if not play.swaps():
                await play.die_at(Point("", RENAMES, when))
        await play.come_to_rest()
    finally:
        for task in play.tasks.values():
            task.cancel()
        await asyncio.gather(*play.tasks.values(), return_exceptions=True)
        broker.kill()
    assert not play.books.violations, play.books.violations
    assert play.books.groups.accepted > len(POINTS)
    assert play.swaps(), "no death came near the swap of a segment"
