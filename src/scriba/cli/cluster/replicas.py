"""`scriba cluster replicas`: every topic gets so many replicas, and none more.

The moves are Kafka's own reassignments (KIP-455): a replica is added and has caught up before
another one goes, and the controller carries them out, whether this command lives on or not. They
are begun in waves, so that a node does not copy everything at once. To run it again goes on where
it was left.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from scriba.cli.output import counted, note, print_json
from scriba.cli.problems import CommandError
from scriba.cli.session import with_admin
from scriba.cli.topics.observers import placements
from scriba.client import Admin, PartlyFailed, TopicPartition
from scriba.settings.placement import PLACEMENT

WAVE: Final = 50
PAUSE_S: Final = 0.2


class Held(NamedTuple):
    """Who has a partition now."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Growth(NamedTuple):
    moved: int
    partitions: int


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    done = await spread(admin, options.number, frozenset(options.off))
    if options.json:
        print_json(done._asdict())
    elif done.moved:
        print(f"{counted(done.moved, 'partition')} moved, all {done.partitions} are as asked")
    else:
        print(f"all {counted(done.partitions, 'partition')} were as asked")
    return 0


async def _check_off(
    admin: Admin, off: Collection[int], held: Mapping[TopicPartition, Held]
) -> None:
    """One that was unregistered may have left replicas behind, and is known by them."""
    cluster = await admin.describe_cluster(include_fenced=True)
    known = {*(node.id for node in cluster.nodes), *(b for h in held.values() for b in h.replicas)}
    wrong = next((broker for broker in off if broker not in known), None)
    if wrong is not None:
        there = ", ".join(map(str, sorted(known)))
        raise CommandError(f"there is no broker {wrong}", f"there are {there}")


async def spread(admin: Admin, factor: int, off: frozenset[int] = frozenset()) -> Growth:
    """Gives every partition so many replicas; returns when the last one has caught up."""
    held = await _held(admin)
    await _check_off(admin, off, held)
    own = await placements(admin, sorted({where.topic for where in held}))
    if own:
        note(f"left alone, for their {PLACEMENT} says how many: {', '.join(own)}")
    held = {where: each for where, each in held.items() if where.topic not in own}
    brokers = await _live(admin)
    moves = plan(held, brokers, factor, off)
    waiting = list(moves)
    for at in range(0, len(waiting), WAVE):
        wave = waiting[at : at + WAVE]
        try:
            await admin.alter_partition_reassignments({where: moves[where] for where in wave})
        except PartlyFailed as failed:
            where, error = next(iter(failed.errors.items()))
            raise CommandError(f"{where}: {error}", "run the command again") from failed
        await _finished(admin, wave)
        note(f"{at + len(wave)} of {counted(len(waiting), 'partition')} moved")
    return Growth(len(moves), len(held))


def plan(
    held: Mapping[TopicPartition, Held], brokers: Collection[int], factor: int, off: Collection[int]
) -> dict[TopicPartition, list[int]]:
    """The replicas of those partitions that must have others. Fewest moves: who has a replica
    keeps it if it may, the preferred leader first; those in sync before those that are not."""
    possible = sorted(set(brokers) - set(off))
    if len(possible) < factor:
        raise CommandError(
            f"{counted(factor, 'replica')} need as many brokers, and there are {len(possible)} "
            f"that are up{' and not --off' if off else ''}",
            "start more, or ask for fewer",
        )
    load = Counter(broker for each in held.values() for broker in each.replicas)
    moves: dict[TopicPartition, list[int]] = {}
    for where, (replicas, isr) in sorted(held.items()):
        may = [broker for broker in replicas if broker not in off]
        best = sorted(may, key=lambda broker: broker not in isr)[:factor]
        kept = [broker for broker in may if broker in best]
        while len(kept) < factor:
            kept.append(_least_loaded((b for b in possible if b not in kept), load))
            load[kept[-1]] += 1
        if kept != list(replicas):
            load.subtract(broker for broker in replicas if broker not in kept)
            moves[where] = kept
    return moves


def _least_loaded(brokers: Iterable[int], load: Mapping[int, int]) -> int:
    return min(brokers, key=lambda broker: (load.get(broker, 0), broker))


async def _held(admin: Admin) -> dict[TopicPartition, Held]:
    names = [listing.name for listing in await admin.list_topics(include_internal=True)]
    under_way = await admin.list_partition_reassignments()
    held: dict[TopicPartition, Held] = {}
    for topic in (await admin.describe_topics(names)).values() if names else ():
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition)
            replicas = partition.replicas
            if where in under_way:
                replicas = under_way[where].target
            held[where] = Held(replicas, partition.isr)
    return held


async def _live(admin: Admin) -> list[int]:
    cluster = await admin.describe_cluster()
    return [node.id for node in cluster.nodes if node.id not in cluster.fenced]


async def _finished(admin: Admin, wave: list[TopicPartition]) -> None:
    while True:
        if not await admin.list_partition_reassignments(wave):
            return
        await asyncio.sleep(PAUSE_S)
