"""Replicas are moved in waves, by the requests that Kafka's own tools send (KIP-455).

The state of a move is the cluster's: its partitions and the reassignments under way. So whoever
runs the same command again, after a crash of anything, goes on where it stands.

A few partitions move at a time, or many while they are small together. What is no longer under way
is compared with the plan: it may have been cancelled, or its topic deleted. Without a throttle
brokers give way to clients by themselves; one that is asked for is in `throttles`.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import islice
from typing import Final

from scriba.cli.cluster.arguments import AT_ONCE
from scriba.cli.output import counted, note, size
from scriba.cli.problems import CommandError
from scriba.cli.topics.gone import described, is_gone, still_there
from scriba.cli.topics.observers import placements
from scriba.client import (
    Admin,
    BrokerError,
    ErrorCode,
    LogDir,
    NetworkError,
    PartlyFailed,
    Reassignment,
    TimedOut,
    TopicPartition,
)
from scriba.placement.planning import Facts, Placement, copied, waves
from scriba.placement.spreading import BrokerLocation

FIRST_PAUSE_S: Final = 0.05
PAUSE_S: Final = 0.5
SETTLE_S: Final = 5.0
"""How long a broker may lag behind what the controller says."""
TELL_S: Final = 5.0
LOGS_PATIENCE_MS: Final = 3_000
BYTES_AT_ONCE: Final = 256_000_000
"""More than `AT_ONCE` partitions move while all together copy no more than this."""
MOST: Final = 1_000

Moves = dict[TopicPartition, Reassignment]
Seen = Facts[TopicPartition]
Plan = Placement[TopicPartition]


async def look(admin: Admin) -> tuple[Seen, Moves]:
    """What brokers hold, what is under way counted as done; and that."""
    cluster = await admin.describe_cluster(include_fenced=True)
    under_way = await admin.list_partition_reassignments()
    partitions = {
        TopicPartition(topic.name, each.partition): each
        for _, topic in sorted((await described(admin)).items())
        for each in topic.partitions
    }
    placed = {where: each.replicas for where, each in partitions.items()}
    placed.update({where: move.target for where, move in under_way.items() if where in placed})
    places = {
        node.id: BrokerLocation(node.id, node.host, node.rack)
        for node in cluster.nodes
        if node.id not in cluster.fenced
    }
    leaderless = {
        where: away
        for where, each in partitions.items()
        if each.leader is None and (away := [b for b in each.replicas if b not in places])
    }
    logs = await logs_on(admin, places)
    sizes: dict[TopicPartition, int] = {}
    for held in sizes_in(logs).values():
        for where, bytes_ in held.items():
            sizes[where] = max(sizes.get(where, 0), bytes_)
    closed = {at for at, dirs in logs.items() if dirs and all(each.cordoned for each in dirs)}
    racks = {node.id: node.rack for node in cluster.nodes}
    asked = await placements(admin, sorted({where.topic for where in placed}))
    facts = Facts(placed, sizes, places, racks, asked, frozenset(closed), leaderless=leaderless)
    return facts, under_way


async def logs_on(admin: Admin, brokers: Iterable[int]) -> dict[int, list[LogDir]]:
    """The log directories of brokers; without one that does not answer, or has lost one."""

    async def ask(broker: int) -> list[LogDir] | None:
        try:
            return (await admin.describe_log_dirs([broker], timeout_ms=LOGS_PATIENCE_MS))[broker]
        except (TimedOut, NetworkError):
            return None
        except BrokerError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            return None

    wanted = list(brokers)
    answers = await asyncio.gather(*map(ask, wanted))
    return {b: dirs for b, dirs in zip(wanted, answers, strict=True) if dirs is not None}


def sizes_in(logs: dict[int, list[LogDir]]) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of each replica by broker."""
    return {
        broker: {
            where: replica.size
            for each in dirs
            for where, replica in each.replicas.items()
            if not replica.future
        }
        for broker, dirs in logs.items()
    }


# ---- carrying it out ----


class Pace:
    """How fast something is copied since it was first looked at, and how long the rest takes at
    that rate."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def told(self, copied_: int, total: int, now: float) -> list[str]:
        if self._first is None:
            self._first = copied_, now
        parts = [f"{size(copied_)} of {size(total)}"]
        since, took = copied_ - self._first[0], now - self._first[1]
        if took > 0 and since > 0:
            rate = since / took
            parts.append(f"{size(rate)}/s")
            parts.append(f"{_duration((total - copied_) / rate)} left")
        return parts


class Progress:
    """How far a plan is, in bytes and time."""

    def __init__(self, facts: Seen, plan: Plan) -> None:
        self._facts = facts
        self._plan = plan
        self.total = copied(facts.placed, plan, facts)
        self._pace = Pace()

    def copied(
        self, done: Iterable[TopicPartition], held: dict[int, dict[TopicPartition, int]]
    ) -> int:
        finished = set(done)
        sum_ = 0
        for where, replicas in self._plan.items():
            whole = self._facts.size(where)
            for broker in {*replicas} - {*self._facts.placed[where]}:
                there = whole if where in finished else held.get(broker, {}).get(where, 0)
                sum_ += min(there, whole)
        return sum_

    def line(self, copied_: int, done: int, now: float) -> str:
        done_of = f"{done} of {counted(len(self._plan), 'partition')}"
        return ", ".join([done_of, *self._pace.told(copied_, self.total, now)])


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Window:
    """How many partitions move at a time: as many as was asked for; else a few, and more of them
    while they are small together."""

    def __init__(self, facts: Seen, plan: Plan, at_once: int | None) -> None:
        self._facts = facts
        self._plan = plan
        self._at_once = at_once

    def _bytes(self, where: TopicPartition) -> int:
        """What a move copies; as much as there may be at a time where nobody told the size."""
        new = len({*self._plan[where]} - {*self._facts.placed[where]})
        return new * self._facts.sizes.get(where, BYTES_AT_ONCE)

    def batch(
        self, waiting: Iterable[TopicPartition], under_way: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Those of the waiting that begin now, the first ones."""
        count = len(under_way)
        if self._at_once is not None:
            return list(islice(waiting, max(self._at_once - count, 0)))
        if count > MOST // 2:
            return []  # rather a few large requests than one for each that is done
        bytes_ = sum(map(self._bytes, under_way))
        taken: list[TopicPartition] = []
        for where in waiting:
            bytes_ += self._bytes(where)
            if count >= MOST or (count >= AT_ONCE and bytes_ > BYTES_AT_ONCE):
                break
            taken.append(where)
            count += 1
        return taken


class Course:
    """Where the partitions of a plan are."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.begun = False
        """Whether anything was asked of the cluster."""
        self.under_way: set[TopicPartition] = set()
        self.ended: set[TopicPartition] = set()
        """No longer under way; what came of it is not known yet."""
        self.moved: set[TopicPartition] = set()
        self.gone: set[TopicPartition] = set()
        """Of topics that were deleted meanwhile."""

    def listed(self, left: Moves) -> bool:
        """Takes in what is still under way; whether something ended."""
        ended = self.under_way - left.keys()
        self.under_way -= ended
        self.ended |= ended
        return bool(ended)

    def changed(self, left: Moves) -> set[TopicPartition]:
        """Partitions to which somebody has given another target."""
        return {w for w in self.under_way if {*left[w].target} != {*self.plan[w]}}

    def refuse(self, changed: Collection[TopicPartition]) -> None:
        """CommandError where somebody has cancelled or changed moves of the plan."""
        if not changed:
            return
        first, more = min(changed), len(changed) - 1
        others = f", as were {more} more" if more else ""
        raise CommandError(
            f"{first} was cancelled or changed{others}; {len(self.moved)} of "
            f"{counted(len(self.plan), 'partition')} moved",
            "the same command moves the rest",
        )


class Carrier:
    """Carries a plan out: begins what there is room for, and looks what came of the rest."""

    def __init__(
        self,
        admin: Admin,
        facts: Seen,
        course: Course,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._admin = admin
        self._facts = facts
        self._course = course
        self._clock = clock
        self._sleep = sleep
        self._tell = tell
        self._told = clock()
        self._progress = Progress(facts, course.plan)

    async def begin(self, batch: list[TopicPartition]) -> None:
        course = self._course
        course.begun = True
        gone: set[TopicPartition] = set()
        try:
            await self._admin.alter_partition_reassignments({w: course.plan[w] for w in batch})
        except (BrokerError, PartlyFailed) as failed:
            done = failed.results if isinstance(failed, PartlyFailed) else {}
            course.under_way.update(w for w in batch if w in done)
            if not is_gone(failed):
                raise
            gone = {w for w in batch if w not in done}
        course.under_way.update(w for w in batch if w not in gone)
        self._leave_out(gone)

    def _leave_out(self, gone: set[TopicPartition]) -> None:
        self._course.gone |= gone
        for topic, count in sorted(Counter(where.topic for where in gone).items()):
            self._tell(f"{topic} is deleted: its {counted(count, 'partition')} left out")

    async def settle(self, changed: Collection[TopicPartition] = ()) -> None:
        """Compares what ended with the plan. A broker may not have heard of the end yet that the
        controller has told, so that another state has to last. CommandError for a partition that
        has another state, and for those that somebody has changed: after the others, which are
        counted in it."""
        course, until = self._course, self._clock() + SETTLE_S
        while course.ended:
            topics = await still_there(
                self._admin.describe_topics(sorted({where.topic for where in course.ended}))
            )
            now = {
                TopicPartition(topic.name, each.partition): each.replicas
                for topic in topics.values()
                for each in topic.partitions
            }
            gone = {where for where in course.ended if where not in now}
            moved = {w for w in course.ended - gone if {*now[w]} == {*course.plan[w]}}
            course.ended -= gone | moved
            course.moved |= moved
            self._leave_out(gone)
            if course.ended and self._clock() >= until:
                course.refuse({*course.ended, *changed})
            elif course.ended:
                await self._sleep(FIRST_PAUSE_S)
        course.refuse(changed)

    async def report(self) -> None:
        """How far it is, every few seconds; and whom it waits for."""
        if self._clock() - self._told < TELL_S:
            return
        self._told = self._clock()
        course, placed = self._course, self._facts.placed
        new = {b for w, replicas in course.plan.items() for b in {*replicas} - {*placed[w]}}
        held = sizes_in(await logs_on(self._admin, sorted(new)))
        arrived = course.moved | course.ended
        line = self._progress.line(self._progress.copied(arrived, held), len(arrived), self._told)
        away = await self._awaited()
        self._tell(f"{line}, waits for {fenced_brokers(away)}" if away else line)

    async def _awaited(self) -> set[int]:
        """Fenced brokers without which what is under way does not end: those that replicas go to,
        and where nobody leads any more, those that have what is to be copied."""
        course, placed = self._course, self._facts.placed
        fenced = {*(await self._admin.describe_cluster(include_fenced=True)).fenced}
        away = fenced & {b for w in course.under_way for b in course.plan[w]}
        left = {w for w in course.under_way if not fenced.isdisjoint(placed[w])}
        if left:
            topics = await still_there(
                self._admin.describe_topics(sorted({where.topic for where in left}))
            )
            for topic in topics.values():
                for each in topic.partitions:
                    where = TopicPartition(topic.name, each.partition)
                    if each.leader is None and where in left:
                        away |= fenced & {*each.replicas}
        return away


async def carry_out(
    admin: Admin,
    facts: Seen,
    course: Course,
    at_once: int | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    tell: Callable[[str], None] = note,
) -> None:
    """Moves partitions, some at a time, until all are where the plan has them. CommandError as soon
    as somebody has cancelled or changed one of them: no more begin then."""
    carrier = Carrier(admin, facts, course, clock, sleep, tell)
    window = Window(facts, course.plan, at_once)
    waiting = deque(waves(course.plan, facts.placed))
    pause = FIRST_PAUSE_S
    while waiting or course.under_way:
        batch = window.batch(waiting, course.under_way)
        if batch:
            await carrier.settle()
            for _ in batch:
                waiting.popleft()
            await carrier.begin(batch)
        left = {}
        if course.under_way:
            left = await admin.list_partition_reassignments(course.under_way)
        ended = course.listed(left)
        if changed := course.changed(left):
            await carrier.settle(changed)
        await carrier.report()
        pause = FIRST_PAUSE_S if ended else min(pause * 1.5, PAUSE_S)
        if course.under_way and not ended:
            await sleep(pause)
    await carrier.settle()


async def follow(
    admin: Admin,
    facts: Seen,
    moves: Moves,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[TopicPartition, list[int]]:
    """Returns when none of these is under way any more, but for those that wait for a broker which
    is away: they are returned, with whom they wait for."""
    waits = {w: away for w, move in moves.items() if (away := facts.holding_up(w, move.target))}
    rest = {where for where in moves if where not in waits}
    pause = FIRST_PAUSE_S
    while rest and (rest := {*await admin.list_partition_reassignments(rest)}):
        await sleep(pause)
        pause = min(pause * 1.5, PAUSE_S)
    return waits


def fenced_brokers(brokers: Iterable[int]) -> str:
    named = sorted(set(brokers))
    if len(named) == 1:
        return f"broker {named[0]}, which is fenced"
    return f"brokers {', '.join(map(str, named))}, which are fenced"
