"""Replicas are moved in small waves, by the requests that Kafka's own tools send (KIP-455).

The state of a move is the cluster's: its partitions and the reassignments under way. So whoever
runs the same command again, after a crash of anything, goes on where it stands.

Without a throttle brokers give way to clients by themselves. One that is asked for is set before
the first move and taken back after the last one. One that somebody else has set stays as it is, and
nothing begins beside it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from scriba.cli.output import counted, note, size, warn
from scriba.cli.problems import CommandError
from scriba.cli.topics.observers import placements
from scriba.client import (
    Admin,
    ConfigEntry,
    ConfigOp,
    ConfigResource,
    NetworkError,
    Reassignment,
    TimedOut,
    TopicPartition,
)
from scriba.config import Source
from scriba.placement.planning import Facts, Placement, copied, waves
from scriba.placement.spreading import Place

PAUSE_S: Final = 0.5
TELL_S: Final = 5.0
LOGS_PATIENCE_MS: Final = 3_000
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)

Moves = dict[TopicPartition, Reassignment]
Seen = Facts[TopicPartition]
Plan = Placement[TopicPartition]


async def look(admin: Admin) -> tuple[Seen, Moves]:
    """What brokers hold, what is under way counted as done; and that."""
    cluster = await admin.describe_cluster(include_fenced=True)
    under_way = await admin.list_partition_reassignments()
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    placed = {
        TopicPartition(topic.name, each.partition): each.replicas
        for _, topic in sorted((await admin.describe_topics(names)).items())
        for each in topic.partitions
    }
    placed.update({where: move.target for where, move in under_way.items() if where in placed})
    places = {
        node.id: Place(node.id, node.host, node.rack)
        for node in cluster.nodes
        if node.id not in cluster.fenced
    }
    sizes: dict[TopicPartition, int] = {}
    for held in (await sizes_on(admin, places)).values():
        for where, bytes_ in held.items():
            sizes[where] = max(sizes.get(where, 0), bytes_)
    racks = {node.id: node.rack for node in cluster.nodes}
    asked = await placements(admin, names)
    return Facts(placed, sizes, places, racks, asked), under_way


async def completed(admin: Admin, moves: Iterable[TopicPartition]) -> None:
    """Returns when none of these is under way any more."""
    while await admin.list_partition_reassignments(moves):  # noqa: ASYNC110 (of the cluster)
        await asyncio.sleep(PAUSE_S)


async def sizes_on(admin: Admin, brokers: Iterable[int]) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of each replica by broker; one that does not answer is left out."""

    async def ask(broker: int) -> dict[TopicPartition, int] | None:
        try:
            found = await admin.describe_log_dirs([broker], timeout_ms=LOGS_PATIENCE_MS)
        except (TimedOut, NetworkError):
            return None
        return {
            where: replica.size
            for each in found[broker]
            for where, replica in each.replicas.items()
            if not replica.future
        }

    wanted = list(brokers)
    answers = await asyncio.gather(*map(ask, wanted))
    return {b: held for b, held in zip(wanted, answers, strict=True) if held is not None}


# ---- throttles ----


async def rates_set(
    admin: Admin, brokers: Iterable[ConfigResource]
) -> list[tuple[ConfigResource, ConfigEntry]]:
    """Rates that somebody has set, be it an earlier run of a command."""
    found = await admin.describe_configs(brokers, names=RATES)
    return [
        (resource, entry)
        for resource, entries in found.items()
        for entry in entries.values()
        if entry.source != Source.DEFAULT_CONFIG
    ]


async def tell_rates(admin: Admin, brokers: Iterable[int]) -> None:
    """A rate that was left behind slows what is moved without one, and stays."""
    named = [ConfigResource.broker(broker) for broker in sorted(brokers)]
    for resource, entry in (await rates_set(admin, named))[:1]:
        warn(
            f"{resource} has {entry.name}={entry.value}: --throttle {entry.value} takes it back at "
            "the end, reassign --cancel at once"
        )


class Throttling:
    """What a move sets, and takes back when it is done."""

    def __init__(self, admin: Admin, rate: int, brokers: Iterable[int]) -> None:
        self._admin = admin
        self._rate = str(rate)
        self._brokers = [ConfigResource.broker(broker) for broker in sorted(brokers)]

    async def set(self, plan: Plan, before: Plan, under_way: Moves) -> None:
        """Raises where somebody has set another rate. What is under way is slowed as well: it may
        be what an earlier run of the same command has begun."""
        for resource, entry in await rates_set(self._admin, self._brokers):
            if entry.value != self._rate:
                raise CommandError(
                    f"{resource} has {entry.name}={entry.value}, set by somebody else",
                    f"give --throttle {entry.value}, or delete it first",
                )
        named: dict[str, tuple[list[str], list[str]]] = {}
        for where, replicas in plan.items():
            leaders, followers = named.setdefault(where.topic, ([], []))
            leaders += (f"{where.partition}:{broker}" for broker in before[where])
            new = [broker for broker in replicas if broker not in before[where]]
            followers += (f"{where.partition}:{broker}" for broker in new)
        for where, move in under_way.items():
            leaders, followers = named.setdefault(where.topic, ([], []))
            old = [broker for broker in move.replicas if broker not in move.adding]
            leaders += (f"{where.partition}:{broker}" for broker in old)
            followers += (f"{where.partition}:{broker}" for broker in move.adding)
        await self._admin.incremental_alter_configs(
            {
                **{
                    ConfigResource.topic(topic): [
                        (name, ConfigOp.SET, ",".join(dict.fromkeys(those)))
                        for name, those in zip(REPLICAS, lists, strict=True)
                    ]
                    for topic, lists in named.items()
                },
                **{
                    broker: [(name, ConfigOp.SET, self._rate) for name in RATES]
                    for broker in self._brokers
                },
            }
        )


async def take_back_throttles(admin: Admin, brokers: Iterable[int]) -> None:
    """Takes back the rates of these brokers, and all names of throttled replicas."""
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    resources = [ConfigResource.topic(name) for name in names]
    found = await admin.describe_configs(resources, names=REPLICAS) if resources else {}
    gone = {
        resource: [
            (entry.name, ConfigOp.DELETE, None)
            for entry in entries.values()
            if entry.source != Source.DEFAULT_CONFIG
        ]
        for resource, entries in found.items()
    }
    changes = {resource: ops for resource, ops in gone.items() if ops}
    changes.update(
        {
            ConfigResource.broker(broker): [(name, ConfigOp.DELETE, None) for name in RATES]
            for broker in brokers
        }
    )
    await admin.incremental_alter_configs(changes)


# ---- carrying it out ----


class Progress:
    """How far a plan is, in bytes, and how long the rest takes at the rate so far."""

    def __init__(self, facts: Seen, plan: Plan, now: float) -> None:
        self._facts = facts
        self._plan = plan
        self.total = copied(facts.placed, plan, facts)
        self._begun = now
        self._first: int | None = None

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
        if self._first is None:
            self._first = copied_
        parts = [f"{done} of {counted(len(self._plan), 'partition')}"]
        parts.append(f"{size(copied_)} of {size(self.total)}")
        took, since = now - self._begun, copied_ - self._first
        if took > 0 and since > 0:
            rate = since / took
            parts.append(f"{size(rate)}/s")
            parts.append(f"{_duration((self.total - copied_) / rate)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


async def carry_out(
    admin: Admin,
    facts: Seen,
    plan: Plan,
    at_once: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    tell: Callable[[str], None] = note,
) -> None:
    """Moves a few partitions at a time until all are where the plan has them."""
    waiting = deque(waves(plan, facts.placed))
    under_way: set[TopicPartition] = set()
    done: set[TopicPartition] = set()
    progress = Progress(facts, plan, clock())
    told = clock()
    brokers = sorted({b for w, replicas in plan.items() for b in {*replicas} - {*facts.placed[w]}})
    while waiting or under_way:
        room = at_once - len(under_way)
        batch = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if batch:
            await admin.alter_partition_reassignments({where: plan[where] for where in batch})
            under_way.update(batch)
        left = await admin.list_partition_reassignments(under_way)
        finished = under_way - left.keys()
        done |= finished
        under_way -= finished
        if clock() - told >= TELL_S:
            told = clock()
            held = await sizes_on(admin, brokers)
            tell(progress.line(progress.copied(done, held), len(done), told))
        if under_way and not finished:
            await sleep(PAUSE_S)
