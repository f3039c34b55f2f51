"""`scriba group`: list, describe, reset, delete."""

import argparse
from collections.abc import Iterable
from typing import Any

from scriba.cli.groups.listing import listed
from scriba.cli.groups.offset_plan import OffsetChange, moves
from scriba.cli.output import (
    counted,
    note,
    print_json,
    print_lines,
    print_names,
    print_table,
    table,
)
from scriba.cli.parsing.partitions import offsets_at, partitions_named
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, OffsetAndMetadata, OffsetSpec, PartlyListed, TopicPartition
from scriba.client.admin.groups import GROUP_STATES, named
from scriba.client.admin.model import GroupDescription

Offsets = dict[TopicPartition, int]


@with_admin
async def list_all(admin: Admin, options: argparse.Namespace) -> int:
    try:
        wanted = named("state", options.state, GROUP_STATES)
    except ValueError as wrong:
        raise Misuse(str(wrong)) from None
    found, code = await listed(admin.list_groups(types=options.type))
    groups = [g for g in found if not wanted or g.state in wanted]
    if options.names:
        print_names([g.group_id for g in groups], options.json)
    elif options.json:
        print_json(
            [
                {
                    "group": g.group_id,
                    "type": g.type,
                    "state": g.state,
                    "protocol_type": g.protocol_type,
                }
                for g in groups
            ]
        )
    elif groups:
        rows = [(g.group_id, g.state, g.type, g.protocol_type) for g in groups]
        print_table(["GROUP", "STATE", "TYPE", "PROTOCOL"], rows)
    else:
        note("there are no such groups" if options.state or options.type else "there are no groups")
    return code


# -- describe ------------------------------------------------------------------------------------


@with_admin
async def describe(admin: Admin, options: argparse.Namespace) -> int:
    names, code = options.groups, 0
    if not names:
        found, code = await listed(admin.list_groups())
        names = [group.group_id for group in found]
    groups = await admin.describe_groups(names)
    documents = []
    for name, group in groups.items():
        committed = await admin.list_group_offsets(name)
        read = {where for member in group.members for where in member.assignment}
        ends = await _ends(admin, {*committed, *read})
        documents.append(_document(group, committed, ends))
    if options.json:
        print_json(documents)
    elif documents:
        print_lines("\n\n".join(_page(document) for document in documents))
    else:
        note("there are no groups")
    return code


async def _ends(
    admin: Admin, partitions: Iterable[TopicPartition], spec: int = OffsetSpec.LATEST
) -> Offsets:
    """Where logs end, or another place in them; partitions that are gone are left out."""
    there = {topic.name: topic for topic in await admin.list_topics(include_internal=True)}
    wanted = [
        where
        for where in partitions
        if where.topic in there and where.partition < there[where.topic].partitions
    ]
    return await offsets_at(admin, wanted, spec)


def _document(
    group: GroupDescription, committed: dict[TopicPartition, OffsetAndMetadata], ends: Offsets
) -> dict[str, Any]:
    readers = {where: member for member in group.members for where in member.assignment}
    partitions = []
    for where in sorted({*committed, *readers}):
        place, end, reader = committed.get(where), ends.get(where), readers.get(where)
        lag = None if place is None or end is None else max(0, end - place.offset)
        partitions.append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "committed": None if place is None else place.offset,
                "end": end,
                "lag": lag,
                "metadata": None if place is None else place.metadata,
                "member": None if reader is None else reader.member_id,
            }
        )
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "epoch": group.epoch,
        "members": [
            {
                "member": m.member_id,
                "instance": m.instance_id,
                "client": m.client_id,
                "host": m.host,
                "partitions": [str(where) for where in m.assignment],
                "target": None if m.target is None else [str(where) for where in m.target],
            }
            for m in group.members
        ],
        "partitions": partitions,
        "lag": total_lag(partitions),
        "partitions_without_commit": sum(p["committed"] is None for p in partitions),
    }


def total_lag(partitions: list[dict[str, Any]]) -> int | None:
    """Of the partitions of which it is known. A group that has committed nothing has no lag: where
    its members begin is their auto.offset.reset, of which brokers know nothing."""
    known = [p["lag"] for p in partitions if p["lag"] is not None]
    return sum(known) if known else None


def _told_lag(document: dict[str, Any]) -> str:
    without = document["partitions_without_commit"]
    if document["lag"] is None:
        return "lag unknown: nothing is committed"
    if without:
        there = counted(without, "partition")
        return f"lag {document['lag']:,} and {there} without a commit"
    return f"lag {document['lag']:,}"


def _page(document: dict[str, Any]) -> str:
    about = [document["state"], document["type"]]
    if document["assignor"]:
        about.append(f"assignor {document['assignor']}")
    about += [
        f"coordinator {document['coordinator']}",
        _told_lag(document),
        counted(len(document["members"]), "member"),
    ]
    lines = [f"{document['group']}  {', '.join(about)}"]
    if document["members"]:
        rows = [
            (m["member"], m["client"], m["host"], m["instance"], _places(m))
            for m in document["members"]
        ]
        headings = ["MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS"]
        lines += [f"  {line}" for line in table(headings, rows)]
    if document["partitions"]:
        places = [
            (p["topic"], p["partition"], p["committed"], p["end"], p["lag"], p["member"])
            for p in document["partitions"]
        ]
        headings = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
        lines += [f"  {line}" for line in table(headings, places)]
    return "\n".join(lines)


def _places(member: dict[str, Any]) -> str:
    have = ",".join(member["partitions"]) or "-"
    return have if member["target"] is None else f"{have} -> {','.join(member['target']) or '-'}"


# -- reset and delete ----------------------------------------------------------------------------


@with_admin
async def reset(admin: Admin, options: argparse.Namespace) -> int:
    committed = await admin.list_group_offsets(options.group)
    partitions = await _chosen(admin, options, committed)
    starts = await _ends(admin, partitions, OffsetSpec.EARLIEST)
    ends = await _ends(admin, partitions)
    timed: Offsets = {}
    if options.to is not None and options.to.kind == "time":
        timed = await _ends(admin, partitions, options.to.number)
    before = {where: place.offset for where, place in committed.items()}
    plan = [
        move
        for move in moves(options.to, options.shift, before, starts, ends, timed)
        if move.where in partitions
    ]
    state = await _state(admin, options.group)
    if options.apply:
        if state not in (None, "Empty", "Dead"):
            raise CommandError(
                f"group {options.group} is {state}: its members would write over new offsets",
                "stop them, then try again",
            )
        await admin.alter_group_offsets(options.group, {m.where: m.after for m in plan})
    if options.json:
        print_json(
            {
                "group": options.group,
                "applied": options.apply,
                "partitions": [_move_document(move) for move in plan],
            }
        )
        return 0
    rows = [
        (m.where.topic, m.where.partition, m.before, m.after, _difference(m), m.end - m.after)
        for m in plan
    ]
    print_table(["TOPIC", "PARTITION", "COMMITTED", "NEW", "DIFFERENCE", "LAG"], rows)
    if options.apply:
        print(f"{options.group} goes on there")
    else:
        if state not in (None, "Empty", "Dead"):
            note(f"group {options.group} is {state}; stop its members before this can be applied")
        print("nothing was changed; add --apply to do it")
    return 0


def _move_document(move: OffsetChange) -> dict[str, Any]:
    return {
        "topic": move.where.topic,
        "partition": move.where.partition,
        "committed": move.before,
        "new": move.after,
        "lag": move.end - move.after,
    }


def _difference(move: OffsetChange) -> str:
    return "new" if move.before is None else f"{move.after - move.before:+d}"


async def _state(admin: Admin, group: str) -> str | None:
    try:
        found = {g.group_id: g for g in await admin.list_groups()}
    except PartlyListed as partly:
        if group not in partly.results:
            raise  # it may be in a partition that is offline
        return (await admin.describe_groups([group]))[group].state
    return found[group].state if group in found else None


async def _chosen(
    admin: Admin, options: argparse.Namespace, committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions that were named, or all that the group has committed."""
    if not options.topic:
        chosen = list(committed)
        if not chosen:
            raise CommandError(
                f"group {options.group} has committed nothing", "name what it reads with --topic"
            )
        return chosen
    return await partitions_named(admin, options.topic)


@with_admin
async def delete(admin: Admin, options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.groups))
    if options.topic:
        return await _delete_offsets(admin, names, set(options.topic), options.json)
    await admin.delete_groups(names)
    if options.json:
        print_json({"deleted": names})
    else:
        for name in names:
            print(f"deleted {name}")
    return 0


async def _delete_offsets(admin: Admin, names: list[str], topics: set[str], as_json: bool) -> int:
    deleted: dict[str, list[str]] = {}
    for name in names:
        chosen = [w for w in await admin.list_group_offsets(name) if w.topic in topics]
        if chosen:
            await admin.delete_group_offsets(name, chosen)
        deleted[name] = [str(where) for where in chosen]
    if as_json:
        print_json({"deleted_offsets": deleted})
    else:
        for name, chosen_names in deleted.items():
            print(f"{name}: deleted the offsets of {', '.join(chosen_names) or 'nothing'}")
    return 0
