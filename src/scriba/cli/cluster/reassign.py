"""`scriba cluster reassign`, `drain`, `add` and `balance`: replicas move to other brokers."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from scriba.cli.cluster import directories
from scriba.cli.cluster.cordons import Cordons, cordon, lift, lifting
from scriba.cli.cluster.directories import DirThrottling, Replica
from scriba.cli.cluster.moving import (
    Course,
    Moves,
    Plan,
    Seen,
    carry_out,
    fenced_brokers,
    follow,
    look,
)
from scriba.cli.cluster.plan_file import no_plan, of_kind, part
from scriba.cli.cluster.throttles import (
    Limit,
    Throttling,
    delete_rates,
    limited,
    rates_set,
    take_back_all,
    tell_rates,
)
from scriba.cli.output import (
    counted,
    note,
    print_json,
    print_lines,
    print_names,
    size,
    table,
    warn,
)
from scriba.cli.parsing.partitions import partitions_named
from scriba.cli.problems import FAILED, CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, ConfigResource, TopicPartition
from scriba.placement.planning import CannotPlan, Shortage, copied, loads, shortages
from scriba.placement.planning import balance as plan_balance
from scriba.placement.planning import drain as plan_drain
from scriba.placement.planning import fill as plan_fill
from scriba.settings.placement import PLACEMENT

SHOWN: Final = 20
"""Partitions that a plan names for people; a program gets all of them."""
PLAN_VERSION: Final = 1

IDLE: Final = {
    "list": ("to", "throttle", "at_once"),
    "cancel": ("to", "throttle", "at_once"),
    "file": ("to",),
    "dir": ("at_once",),
}
"""Options of `reassign`, and others that say nothing beside them."""

Waits = Mapping[TopicPartition, Sequence[int]]
"""Partitions that are left as they are, with the brokers that their moves would wait for."""
NONE: Final[Waits] = {}


@with_admin
async def reassign(admin: Admin, options: argparse.Namespace) -> int:
    given = [bool(options.partitions), options.file is not None, options.list, options.cancel]
    if sum(given[1:]) > 1 or not any(given) or (options.partitions and (given[1] or given[2])):
        raise Misuse(
            "what is to move is not said",
            "name partitions and --to or --dir, or give one of --file, --list, --cancel",
        )
    if options.dir is not None and (options.to is not None or any(given[1:])):
        raise Misuse("--dir goes with partitions alone", "move to other brokers first, by --to")
    _refuse_idle(options)
    if options.list:
        facts, under_way = await look(admin)
        between = await directories.look(admin, facts.places)
        _tell_moves(under_way, list(between.moving.values()), options)
        return 0
    if options.cancel:
        return await _cancel(admin, options)
    if options.dir is not None:
        return await _between_dirs(admin, options)
    facts, under_way = await look(admin)
    if options.file is not None:
        wanted, dirs = read_plan(options.file), directories.read_dirs(options.file)
        check(wanted, facts)
        return await _do_file(admin, options, facts, under_way, wanted, dirs)
    elif options.to is None:
        raise Misuse("where to is not said", "give the brokers with --to 1,2,3")
    else:
        named = await partitions_named(admin, options.partitions)
        wanted = dict.fromkeys(named, tuple(options.to))
    check(wanted, facts)
    plan = {where: to for where, to in wanted.items() if facts.placed[where] != to}
    return await _do(admin, options, facts, under_way, Course(plan))


def _refuse_idle(options: argparse.Namespace) -> None:
    """Misuse for an option that says nothing beside another one: whoever gave it expects more."""
    for name, idle in IDLE.items():
        if getattr(options, name) in (None, False):
            continue
        for other in idle:
            if getattr(options, other) is not None:
                beside = other.replace("_", "-")
                raise Misuse(f"--{beside} says nothing beside --{name}", "drop one")


@with_admin
async def drain(admin: Admin, options: argparse.Namespace) -> int:
    facts, under_way = await look(admin)
    leaving = frozenset(options.brokers)
    await check_brokers(admin, options.brokers, facts)
    plan, waits = plan_of(_emptying(leaving), facts, leaving)
    if options.dry_run:
        return await _do(admin, options, facts, under_way, Course(plan), waits)
    cordons: Cordons = {}
    course = Course(plan)
    try:
        cordons = await cordon(admin, [b for b in options.brokers if b in facts.takers()])
        if cordons:
            facts, under_way = await look(admin)
            plan, waits = plan_of(_emptying(leaving), facts, leaving)
            course = Course(plan)
        code = await _do(admin, options, facts, under_way, course, waits)
    except BaseException:  # a signal as well
        if not course.begun:
            await lift(admin, cordons)
        raise
    await _check_empty(admin, leaving, waits)
    return code


def _emptying(leaving: Collection[int]) -> Callable[[Seen], Plan]:
    def plan(facts: Seen) -> Plan:
        try:
            return plan_drain(facts, leaving)
        except CannotPlan as why:
            raise CommandError(str(why), "start another broker, or drain fewer") from None

    return plan


async def _check_empty(admin: Admin, leaving: Collection[int], waits: Waits) -> None:
    """CommandError where a topic was made just before the controller knew of the cordon."""
    facts, _ = await look(admin)
    held = [w for w, to in facts.placed.items() if w not in waits and not {*leaving}.isdisjoint(to)]
    if held:
        raise CommandError(
            f"{held[0]} was placed there meanwhile, the first of {counted(len(held), 'partition')}",
            "the same command moves the rest",
        )


@with_admin
async def add(admin: Admin, options: argparse.Namespace) -> int:
    facts, under_way = await look(admin)
    await check_brokers(admin, options.brokers, facts, live=True)
    plan, waits = plan_of(lambda known: plan_fill(known, set(options.brokers)), facts)
    return await _do(admin, options, facts, under_way, Course(plan), waits)


@with_admin
async def balance(admin: Admin, options: argparse.Namespace) -> int:
    facts, under_way = await look(admin)
    plan, waits = plan_of(plan_balance, facts)
    short = shortages(facts, plan)
    return await _do(admin, options, facts, under_way, Course(plan), waits, short)


def plan_of(
    make: Callable[[Seen], Plan], facts: Seen, leaving: Collection[int] = ()
) -> tuple[Plan, Waits]:
    """A plan of what can come to its end; and what it leaves as it is, since a replica that stays
    is on a broker that is fenced. CommandError where that is all that there is to do."""
    whole = make(facts)
    waits = {w: away for w, to in whole.items() if (away := facts.awaited(w, to))}
    if not waits:
        return whole, {}
    fixed = {
        where
        for where, replicas in facts.placed.items()
        if facts.holding_up(where, (broker for broker in replicas if broker not in leaving))
    }
    plan = make(replace(facts, fixed=fixed))
    if not plan:
        raise CommandError(*told_waits(waits, facts))
    return plan, waits


def told_waits(waits: Waits, facts: Seen) -> tuple[str, str]:
    """The line for what is left as it is, and what to do about it."""
    away = sorted({broker for brokers in waits.values() for broker in brokers})
    those = f"{counted(len(waits), 'partition')} wait{'s' if len(waits) == 1 else ''}"
    left = "it is" if len(waits) == 1 else "they are"
    drained = " ".join(map(str, away))
    offline = next((where for where in waits if where in facts.leaderless), None)
    return (
        f"{those} for {fenced_brokers(away)}: left as {left}",
        f"start it, or scriba cluster drain {drained}, and run the command again"
        if offline is None
        else f"start it, and run the command again; scriba topic why {offline} says more",
    )


def told_shortage(short: Shortage) -> str:
    return (
        f"{short.topic} asks for {counted(short.asked, 'replica')} in rack {short.rack} "
        f"({PLACEMENT}), where {counted(short.brokers, 'broker')} can take them: "
        f"{counted(short.partitions, 'partition')} with fewer; start more brokers there, or ask "
        "for fewer"
    )


# ---- what was asked for ----


def read_plan(name: str) -> Plan:
    """The partitions of a file in the form of Kafka's tools."""
    plan: Plan = {}
    try:
        document = of_kind(dict, json.loads(Path(name).read_text("utf-8")), "the whole of it")
        if document.get("version", PLAN_VERSION) != PLAN_VERSION:
            raise ValueError(f"version {document['version']!r} is not known, {PLAN_VERSION} is")
        for each in part(list, document, "partitions"):
            of_kind(dict, each, 'one of "partitions"')
            where = TopicPartition(part(str, each, "topic"), part(int, each, "partition"))
            if where in plan:
                raise CommandError(f"{name} names {where} twice", "name each partition once")
            replicas = part(list, each, "replicas")
            plan[where] = tuple(of_kind(int, one, f"a replica of {where}") for one in replicas)
            for path in of_kind(list, each.get("log_dirs", []), '"log_dirs"'):
                of_kind(str, path, f"a directory of {where}")
    except (ValueError, RecursionError) as error:
        raise no_plan(name, error) from None
    return plan


async def check_brokers(
    admin: Admin, named: Sequence[int], facts: Seen, live: bool = False
) -> None:
    """CommandError for the first broker that is not there, doubled, or fenced where only a live
    one will do: nothing begins then."""
    cluster = await admin.describe_cluster(include_fenced=True)
    # One that was unregistered may have left replicas behind.
    known = {*(n.id for n in cluster.nodes), *(b for r in facts.placed.values() for b in r)}
    for n, broker in enumerate(named):
        if broker not in known:
            there = ", ".join(map(str, sorted(known)))
            raise CommandError(f"there is no broker {broker}", f"there are {there}")
        if broker in named[:n]:
            raise CommandError(f"broker {broker} is named twice", "name each once")
        if live and broker not in facts.places:
            raise CommandError(f"broker {broker} is fenced", "start it, and wait until it is back")
        if live and broker in facts.closed:
            raise CommandError(
                f"all log directories of broker {broker} are cordoned or nearly full: it gets "
                "no replicas",
                f"make room, or lift the cordon: {lifting(broker)}",
            )


def check(wanted: Plan, facts: Seen) -> None:
    """CommandError for the first partition that cannot be moved so: nothing begins then."""
    for where, replicas in wanted.items():
        doubled = next((b for n, b in enumerate(replicas) if b in replicas[:n]), None)
        away = next((b for b in replicas if b not in facts.places), None)
        if where not in facts.placed:
            raise CommandError(f"there is no partition {where}", "see scriba topic list")
        if not replicas:
            raise CommandError(f"{where} is to have no replicas", "name a broker at least")
        if doubled is not None:
            raise CommandError(f"{where} names broker {doubled} twice", "name each once")
        if away is not None:
            there = ", ".join(map(str, sorted(facts.places)))
            raise CommandError(
                f"{where} names broker {away}, which is not there or fenced",
                f"choose from {there}",
            )
        closed = next(
            (b for b in replicas if b in facts.closed and b not in facts.placed[where]), None
        )
        if closed is not None:
            raise CommandError(
                f"{where} names broker {closed}, whose log directories are all cordoned or nearly "
                "full: it gets no new replica",
                f"choose from {', '.join(map(str, facts.takers()))}",
            )
        if waits := facts.awaited(where, replicas):
            raise CommandError(
                f"nobody leads {where}: a move of it would wait for {fenced_brokers(waits)}",
                f"start it first; scriba topic why {where} says more",
            )
        _check_placement(where, replicas, facts)


def _check_placement(where: TopicPartition, replicas: Sequence[int], facts: Seen) -> None:
    asked = facts.asked.get(where.topic)
    if asked is None:
        return
    complaint = asked.complaint(map(facts.rack, replicas), map(facts.rack, facts.placed[where]))
    if complaint is not None:
        raise CommandError(f"{where} {complaint}", "leave it so, or change the setting first")
    if not facts.may_lead(where, replicas[0]):
        raise CommandError(f"{where} names observer {replicas[0]} first", "name a voter first")


async def _cancel(admin: Admin, options: argparse.Namespace) -> int:
    named = await partitions_named(admin, options.partitions) if options.partitions else None
    under_way = await admin.list_partition_reassignments(named)
    brokers = [node.id for node in (await admin.describe_cluster()).nodes]
    between = await directories.moving(admin, brokers, named)
    names = [*map(str, under_way), *map(str, between)]
    if options.dry_run:
        lines = [f"{name}: would be cancelled" for name in names] or ["nothing is under way"]
        print_names(names if options.json else lines, options.json)
        return 0
    if under_way:
        await admin.alter_partition_reassignments(dict.fromkeys(under_way))
    await directories.begin(admin, between, absent_ok=True)
    if not await admin.list_partition_reassignments():
        named_too = await _gone_with_a_rate(admin, brokers, under_way)
        await take_back_all(admin, [*brokers, *named_too], under_way)
        await delete_rates(admin, brokers, [directories.RATE])
    lines = [f"{name}: cancelled" for name in names] or ["nothing was under way"]
    print_names(names if options.json else lines, options.json)
    return 0


async def _gone_with_a_rate(admin: Admin, live: list[int], ended: Moves) -> set[int]:
    """Brokers of these moves that are gone, if others have a rate: then they have one as well."""
    gone = {broker for move in ended.values() for broker in move.replicas} - {*live}
    if not gone or not await rates_set(admin, map(ConfigResource.broker, live)):
        return set()
    return gone


async def _between_dirs(admin: Admin, options: argparse.Namespace) -> int:
    """Replicas of one broker go to another of its log directories."""
    broker, path = options.dir
    named = await partitions_named(admin, options.partitions)
    cluster = await admin.describe_cluster()
    if broker not in {node.id for node in cluster.nodes}:
        there = ", ".join(str(node.id) for node in cluster.nodes)
        raise CommandError(f"there is no broker {broker}", f"choose from {there}")
    wanted = {Replica(broker, where): path for where in named}
    found = await directories.look(admin, [broker])
    directories.check(wanted, found)
    away = found.away(wanted)
    if options.json:
        keys = ("partition", "from", "to", "bytes")
        rows = [dict(zip(keys, row, strict=True)) for row in _dir_rows(away, found)]
        print_json({"broker": broker, "partitions": rows})
    else:
        _show_dirs(away, found)
    if not options.dry_run:
        await _carry_out_dirs(admin, options, away, found.leaving(wanted))
    return 0


def _dir_rows(
    away: dict[Replica, str], found: directories.Found
) -> list[tuple[str, str, str, int]]:
    return [
        (str(each.where), found.current[each], path, found.sizes[each])
        for each, path in away.items()
    ]


def _show_dirs(away: dict[Replica, str], found: directories.Found) -> None:
    if not away:
        print_lines("every replica is where it should be")
        return
    shown = [(*row[:3], size(row[3])) for row in _dir_rows(away, found)[:SHOWN]]
    print_lines("\n".join(table(["PARTITION", "FROM", "TO", "SIZE"], shown)))


async def _carry_out_dirs(
    admin: Admin,
    options: argparse.Namespace,
    away: dict[Replica, str],
    leaving: dict[Replica, str],
) -> None:
    """Replicas go where they are wanted; those that are there and were about to leave, stay."""
    if leaving:
        await directories.begin(admin, leaving)
        note(f"{counted(len(leaving), 'move')} to another directory cancelled")
    if not away:
        return
    limits = [] if options.throttle is None else [DirThrottling(admin, options.throttle, away)]
    async with limited(limits):
        await directories.begin(admin, away)
        await directories.follow(admin, away)


async def _do_file(
    admin: Admin,
    options: argparse.Namespace,
    facts: Seen,
    under_way: Moves,
    wanted: Plan,
    dirs: dict[Replica, str],
) -> int:
    """A plan of Kafka's tools: first the brokers, then the directories of those."""
    plan = {where: to for where, to in wanted.items() if facts.placed[where] != to}
    course = Course(plan)
    if not dirs:
        return await _do(admin, options, facts, under_way, course)
    found = await directories.look(admin, {replica.broker for replica in dirs})
    # Replicas that are yet to come are no fault of the plan.
    known = {replica: path for replica, path in dirs.items() if replica in found.current}
    directories.check(known, found)
    directories.check_paths(dirs, found)
    away = found.away(known)
    if options.json or plan or not away:
        _show(options, facts, under_way, plan)
    else:
        _show_dirs(away, found)
    if options.dry_run:
        return 0
    limits: list[Limit] = []
    if options.throttle is not None:
        limits.append(
            Throttling(admin, options.throttle, facts.places, plan, facts.placed, under_way)
        )
        limits.append(DirThrottling(admin, options.throttle, dirs))
    async with limited(limits):
        await directories.begin(admin, dirs, absent_ok=True)
        code = await _carried_out(admin, options, facts, under_way, course)
        # Of those that have come meanwhile, most came to where they are wanted.
        now = await directories.look(admin, {replica.broker for replica in dirs})
        await directories.begin(admin, dirs)
        if left := {**away, **now.away(dirs)}:
            await directories.follow(admin, left)
    return code


def _tell_moves(
    moves: Moves, between: list[directories.DirMove], options: argparse.Namespace
) -> None:
    if options.json:
        print_json(
            [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "replicas": list(move.replicas),
                    "adding": list(move.adding),
                    "removing": list(move.removing),
                }
                for where, move in moves.items()
            ]
            + [
                {
                    "topic": move.replica.where.topic,
                    "partition": move.replica.where.partition,
                    "broker": move.replica.broker,
                    "dir": move.path,
                    "bytes": move.copied,
                    "offset_lag": move.lag,
                }
                for move in between
            ]
        )
        return
    if not moves and not between:
        note("nothing is under way")
    if moves:
        rows = [
            (str(where), _listed(m.target), _listed(m.adding), _listed(m.removing))
            for where, m in moves.items()
        ]
        print_lines("\n".join(table(["PARTITION", "TO", "ADDING", "REMOVING"], rows)))
    if between:
        dirs = [
            (str(m.replica.where), m.replica.broker, m.path, f"{size(m.copied)} of {size(m.total)}")
            for m in between
        ]
        print_lines("\n".join(table(["PARTITION", "BROKER", "TO", "COPIED"], dirs)))


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


# ---- carried out ----


def _show(
    options: argparse.Namespace,
    facts: Seen,
    under_way: Moves,
    plan: Plan,
    waits: Waits = NONE,
    short: Sequence[Shortage] = (),
) -> None:
    found = document(facts, plan, waits, short)
    if options.json:
        print_json(found)
    else:
        print_lines("\n".join(page(found, len(under_way))))
    if waits:
        warn("; ".join(told_waits(waits, facts)))
    for each in short:
        warn(told_shortage(each))


async def _do(
    admin: Admin,
    options: argparse.Namespace,
    facts: Seen,
    under_way: Moves,
    course: Course,
    waits: Waits = NONE,
    short: Sequence[Shortage] = (),
) -> int:
    """Shows the plan and carries it out; FAILED where something was left as it is."""
    plan = course.plan
    _show(options, facts, under_way, plan, waits, short)
    if options.dry_run:
        return 0
    limits: list[Limit] = []
    if options.throttle is not None:
        limits.append(
            Throttling(admin, options.throttle, facts.places, plan, facts.placed, under_way)
        )
    elif plan:
        await tell_rates(admin, facts.places)
    async with limited(limits):
        code = await _carried_out(admin, options, facts, under_way, course)
    return FAILED if waits else code


async def _carried_out(
    admin: Admin, options: argparse.Namespace, facts: Seen, under_way: Moves, course: Course
) -> int:
    begun = time.monotonic()
    try:
        await carry_out(admin, facts, course, options.at_once)
        stuck = await follow(admin, facts, under_way)
    except asyncio.CancelledError:
        note(
            "what is under way goes on; the same command goes on with the rest, "
            "scriba cluster reassign --cancel takes back what is under way"
        )
        raise
    if course.plan or under_way:
        took = time.monotonic() - begun
        note(f"{counted(len(course.moved), 'partition')} moved in {took:.0f} s")
    if stuck:
        away = (broker for brokers in stuck.values() for broker in brokers)
        warn(f"{counted(len(stuck), 'move')} under way already: waits for {fenced_brokers(away)}")
    return FAILED if stuck else 0


def document(
    facts: Seen, plan: Plan, waits: Waits = NONE, short: Sequence[Shortage] = ()
) -> dict[str, Any]:
    """A plan as a difference: of each partition, and of each broker."""
    after = {**facts.placed, **plan}
    brokers = {b for replicas in (*facts.placed.values(), *plan.values()) for b in replicas}
    old, new = loads(facts.placed, facts, brokers), loads(after, facts, brokers)
    return {
        "bytes": copied(facts.placed, plan, facts),
        "partitions": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "from": list(facts.placed[where]),
                "to": list(replicas),
                "bytes": facts.size(where),
            }
            for where, replicas in plan.items()
        ],
        "left": [
            {"topic": where.topic, "partition": where.partition, "waits_for": list(away)}
            for where, away in waits.items()
        ],
        "short": [asdict(each) for each in short],
        "brokers": [
            {
                "id": broker,
                "leaders": [old[broker].leaders, new[broker].leaders],
                "replicas": [old[broker].replicas, new[broker].replicas],
                "bytes": [old[broker].bytes, new[broker].bytes],
            }
            for broker in old
        ],
    }


def page(found: dict[str, Any], under_way: int) -> list[str]:
    lines = [f"{counted(under_way, 'move')} under way already"] if under_way else []
    if not found["partitions"] and found["short"]:
        return [*lines, "nothing can be moved to where it should be"]
    if not found["partitions"]:
        return [*lines, "every replica is where it should be"]
    rows = [
        (
            f"{each['topic']}-{each['partition']}",
            _listed(each["from"]),
            _listed(each["to"]),
            size(each["bytes"]),
        )
        for each in found["partitions"][:SHOWN]
    ]
    more = len(found["partitions"]) - SHOWN
    brokers = [
        (
            each["id"],
            _difference(*each["leaders"]),
            _difference(*each["replicas"]),
            f"{size(each['bytes'][0])} -> {size(each['bytes'][1])}",
        )
        for each in found["brokers"]
    ]
    return [
        *lines,
        *table(["PARTITION", "FROM", "TO", "SIZE"], rows),
        *([f"and {more} more"] if more > 0 else []),
        "",
        *table(["BROKER", "LEADERS", "REPLICAS", "DATA"], brokers),
        "",
        f"{counted(len(found['partitions']), 'partition')}, {size(found['bytes'])} to copy",
    ]


def _difference(before: int, after: int) -> str:
    return f"{before}" if before == after else f"{before} -> {after}"
