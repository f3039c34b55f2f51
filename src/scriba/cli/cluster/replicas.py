"""`scriba cluster replicas`: every topic gets so many replicas, and none more.

The moves are Kafka's own reassignments (KIP-455): a replica is added and has caught up before
another one goes, and the controller carries them out, whether this command lives on or not. They
are begun in waves (`moving`), so that a node does not copy everything at once. To run it again goes
on where it was left.
"""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from scriba.cli.cluster.moving import Course, Plan, Seen, carry_out, follow, look
from scriba.cli.cluster.reassign import check_brokers, told_waits
from scriba.cli.output import counted, note, print_json
from scriba.cli.problems import CommandError
from scriba.cli.session import with_admin
from scriba.cli.topics.gone import still_there
from scriba.client import Admin, TopicPartition
from scriba.placement.planning import CannotPlan, resize
from scriba.settings.placement import PLACEMENT

InSync = Mapping[TopicPartition, Collection[int]]


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


async def spread(admin: Admin, factor: int, off: frozenset[int] = frozenset()) -> Growth:
    """Gives every partition so many replicas; returns when the last one has caught up. CommandError
    where some would wait for a broker that is fenced: they are left as they are."""
    facts, under_way = await look(admin)
    await check_brokers(admin, sorted(off), facts)
    if facts.asked:
        note(f"left alone, for their {PLACEMENT} says how many: {', '.join(facts.asked)}")
    own = {where for where in facts.placed if where.topic in facts.asked}
    in_sync = await _in_sync(admin, {where.topic for where in facts.placed})
    moves = plan(replace(facts, fixed=own), factor, off, in_sync)
    waits = {w: away for w, to in moves.items() if (away := facts.awaited(w, to))}
    if waits:
        moves = plan(replace(facts, fixed={*own, *waits}), factor, off, in_sync)
    course = Course(moves)
    await carry_out(admin, facts, course, None)
    waits.update(await follow(admin, facts, under_way))
    if waits:
        cause, fix = told_waits(waits, facts)
        raise CommandError(f"{counted(len(course.moved), 'partition')} moved, {cause}", fix)
    return Growth(len(course.moved), len(facts.placed) - len(own))


def plan(facts: Seen, factor: int, off: Collection[int], in_sync: InSync) -> Plan:
    """The replicas of those partitions that must have others; CommandError for too few brokers."""
    possible = [broker for broker in facts.places if broker not in off]
    if len(possible) < factor:
        raise CommandError(
            f"{counted(factor, 'replica')} need as many brokers, and there are {len(possible)} "
            f"that are up{' and not --off' if off else ''}",
            "start more, or ask for fewer",
        )
    try:
        return resize(facts, factor, off, in_sync)
    except CannotPlan as why:
        cordoned = ", ".join(map(str, sorted(facts.closed)))
        raise CommandError(
            f"{why}: all log directories of {cordoned} are cordoned or nearly full",
            "start more, or ask for fewer",
        ) from None


async def _in_sync(admin: Admin, names: Collection[str]) -> InSync:
    topics = await still_there(admin.describe_topics(sorted(names)))
    return {
        TopicPartition(topic.name, each.partition): each.isr
        for topic in topics.values()
        for each in topic.partitions
    }
