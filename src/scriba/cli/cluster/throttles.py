"""The rate that a move is held to: set before it begins, taken back when none of it is under way.

It is two things (KIP-73): rates of brokers, and replicas that topics name. A topic may name some
for another reason, such as an observer that is always held to a rate: a move adds its own entries
and removes those alone. A rate that somebody else has set stays as it is, and nothing begins beside
it.
"""

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from scriba.cli.cluster.moving import Moves, Plan
from scriba.cli.output import counted, warn
from scriba.cli.problems import CommandError
from scriba.cli.topics.gone import is_gone, still_there
from scriba.client import (
    Admin,
    BrokerError,
    ClientError,
    ConfigEntry,
    ConfigOp,
    ConfigResource,
    PartlyFailed,
    TopicPartition,
)
from scriba.config import Source

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
EVERY: Final = "*"
"""All replicas of a topic, instead of a list."""
PATIENCE_MS: Final = 3_000

Named = dict[str, tuple[list[str], list[str]]]
"""By topic, what it names as leaders and as followers: `partition:broker`."""
Change = tuple[str, ConfigOp, str | None]


class Limit(Protocol):
    """A rate for moves of one kind."""

    async def check(self) -> None:
        """CommandError where somebody has set another one; nothing is changed."""

    async def set(self) -> None: ...

    async def take_back(self) -> None: ...

    async def left(self) -> int:
        """How many moves of this kind are still under way."""
        ...


@asynccontextmanager
async def limited(limits: Collection[Limit]) -> AsyncIterator[None]:
    """Sets all of them or none, and takes them back whichever way it ends, unless something is
    still under way then: that goes on at the rate that it was given."""
    for each in limits:
        await each.check()
    try:
        for each in limits:
            await each.set()
        yield
    except BaseException:  # a signal as well
        for each in limits:
            await _given_up(each)
        raise
    for each in limits:
        await each.take_back()


async def _given_up(limit: Limit) -> None:
    try:
        left = await limit.left()
        if not left:
            await limit.take_back()
            return
        why = f"{counted(left, 'move')} under way"
    except ClientError as error:
        why = str(error)
    warn(
        f"the throttle stays ({why}): the same command takes it back at its end, "
        "scriba cluster reassign --cancel at once"
    )


# ---- rates ----


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


async def delete_rates(admin: Admin, brokers: Iterable[int], names: Iterable[str]) -> None:
    """Of those that live; of one that is gone it is told, for only it can be asked."""
    wanted, keys = sorted(set(brokers)), list(names)
    cluster = await admin.describe_cluster(include_fenced=True)
    live = {node.id for node in cluster.nodes} - {*cluster.fenced}
    gone: list[Change] = [(name, ConfigOp.DELETE, None) for name in keys]
    changes = {ConfigResource.broker(broker): gone for broker in wanted if broker in live}
    if changes:
        await admin.incremental_alter_configs(changes)
    for broker in wanted:
        if broker not in live:
            words = " ".join(f"--delete {name}" for name in keys)
            warn(
                f"broker {broker} is gone and keeps its throttle: when it is back, "
                f"scriba config set --broker {broker} {words}"
            )


class Throttling:
    """What a move between brokers is held to."""

    def __init__(
        self,
        admin: Admin,
        rate: int,
        brokers: Iterable[int],
        plan: Plan,
        before: Plan,
        moves: Moves,
    ) -> None:
        self._admin = admin
        self._rate = str(rate)
        self._brokers = sorted(brokers)
        self._moves = {*plan, *moves}
        self._named = names_of(plan, before, moves)
        self._is_again = False
        """Whether the rate was set before: an earlier run of the same command may have left
        entries of moves that are done since."""
        self._others: Named = {}
        """What the topics named before, for another reason."""

    async def check(self) -> None:
        resources = [ConfigResource.broker(broker) for broker in self._brokers]
        for resource, entry in await rates_set(self._admin, resources):
            self._is_again = True
            if entry.value != self._rate:
                raise CommandError(
                    f"{resource} has {entry.name}={entry.value}, set by somebody else",
                    f"give --throttle {entry.value}, or delete it first",
                )

    async def set(self) -> None:
        """What is under way is slowed as well: it may be what an earlier run has begun."""
        there = await named_in(self._admin, self._named)
        self._others = {} if self._is_again else there
        changes: dict[ConfigResource, list[Change]] = {}
        for topic, lists in self._named.items():
            before = there.get(topic, ([], []))
            changes[ConfigResource.topic(topic)] = [
                (name, ConfigOp.APPEND, ",".join(own))
                for name, own, old in zip(REPLICAS, lists, before, strict=True)
                if own and EVERY not in old
            ]
        changes.update(
            {
                ConfigResource.broker(broker): [(n, ConfigOp.SET, self._rate) for n in RATES]
                for broker in self._brokers
            }
        )
        await self._admin.incremental_alter_configs({at: ops for at, ops in changes.items() if ops})

    async def left(self) -> int:
        moves = self._moves
        if not moves:
            return 0
        return len(await self._admin.list_partition_reassignments(moves, timeout_ms=PATIENCE_MS))

    async def take_back(self) -> None:
        await delete_rates(self._admin, self._brokers, RATES)
        await forget(self._admin, _without(self._named, self._others), self._is_again)


# ---- the replicas that topics name ----


def names_of(plan: Plan, before: Plan, moves: Moves) -> Named:
    """The entries of these partitions: who has them gives, who is to have them takes."""
    named: dict[str, tuple[dict[str, None], dict[str, None]]] = {}

    def add(where: TopicPartition, old: Iterable[int], new: Iterable[int]) -> None:
        leaders, followers = named.setdefault(where.topic, ({}, {}))
        leaders.update((f"{where.partition}:{broker}", None) for broker in old)
        followers.update((f"{where.partition}:{broker}", None) for broker in new)

    for where, replicas in plan.items():
        add(where, before[where], [b for b in replicas if b not in before[where]])
    for where, move in moves.items():
        add(where, [b for b in move.replicas if b not in move.adding], move.adding)
    return {topic: (list(old), list(new)) for topic, (old, new) in named.items()}


def _without(named: Named, others: Named) -> Named:
    return {
        topic: (
            [each for each in lists[0] if each not in others.get(topic, ([], []))[0]],
            [each for each in lists[1] if each not in others.get(topic, ([], []))[1]],
        )
        for topic, lists in named.items()
    }


async def named_in(admin: Admin, topics: Iterable[str]) -> Named:
    """What topics name, of those that there still are."""
    resources = [ConfigResource.topic(name) for name in topics]
    if not resources:
        return {}
    found: Named = {}
    described = await still_there(admin.describe_configs(resources, names=REPLICAS))
    for resource, entries in described.items():
        lists = [
            [each.strip() for each in (entries[name].value or "").split(",") if each.strip()]
            if name in entries and entries[name].source != Source.DEFAULT_CONFIG
            else []
            for name in REPLICAS
        ]
        if any(lists):
            found[resource.name] = (lists[0], lists[1])
    return found


async def forget(admin: Admin, own: Named, left_behind: bool) -> None:
    """Takes these entries out of the topics' settings; and those that moves have left behind."""
    names: Iterable[str] = own
    if left_behind:
        names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    there = await named_in(admin, names)
    stale = await _left_behind(admin, there) if left_behind else {}
    changes: dict[ConfigResource, list[Change]] = {}
    for topic, lists in there.items():
        ops: list[Change] = []
        for at, (name, entries) in enumerate(zip(REPLICAS, lists, strict=True)):
            drop = {*own.get(topic, ([], []))[at], *stale.get(topic, ([], []))[at]}
            gone = [each for each in entries if each in drop]
            if gone and len(gone) == len(entries):
                ops.append((name, ConfigOp.DELETE, None))
            elif gone:
                ops.append((name, ConfigOp.SUBTRACT, ",".join(gone)))
        if ops:
            changes[ConfigResource.topic(topic)] = ops
    if not changes:
        return
    try:
        await admin.incremental_alter_configs(changes)
    except (BrokerError, PartlyFailed) as failed:
        if not is_gone(failed):
            raise


async def _left_behind(admin: Admin, there: Named) -> Named:
    """Entries without a use: followers that are in sync, which no throttle slows, or not there any
    more; and leaders of partitions that have no other follower in the list."""
    if not there:
        return {}
    described = await still_there(admin.describe_topics(list(there)))
    found: Named = {}
    for topic, (leaders, followers) in there.items():
        slow = {
            f"{each.partition}:{broker}"
            for each in (described[topic].partitions if topic in described else ())
            for broker in each.replicas
            if broker not in each.isr
        }
        used = {each.partition(":")[0] for each in followers if each in slow}
        old = [each for each in leaders if each != EVERY and each.partition(":")[0] not in used]
        new = [each for each in followers if each != EVERY and each not in slow]
        found[topic] = ([] if EVERY in followers else old, new)
    return found


async def take_back_all(admin: Admin, brokers: Iterable[int], ended: Moves) -> None:
    """Takes back the rates of these brokers, and what moves that ended or are done have named."""
    await delete_rates(admin, brokers, RATES)
    await forget(admin, names_of({}, {}, ended), left_behind=True)
