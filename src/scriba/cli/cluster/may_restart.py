"""`scriba cluster may-restart`: whether a node may go for a moment, and else what it would hurt."""

import argparse
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scriba.cli.output import print_json, print_lines
from scriba.cli.problems import FAILED, CommandError
from scriba.cli.session import with_admin
from scriba.client import Admin, ConfigResource, TopicPartition
from scriba.client.admin.model import PartitionDescription, QuorumDescription, Reassignment

MIN_ISR: Final = "min.insync.replicas"
HEARD_MS: Final = 10_000
"""A voter that was heard of within this time is there."""
SHOWN: Final = 20


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    node: int = options.node
    cluster = await admin.describe_cluster(include_fenced=True)
    quorum = await admin.describe_quorum()
    known = {each.id for each in cluster.nodes} | {each.id for each in quorum.voters}
    if node not in known:
        there = ", ".join(map(str, sorted(known)))
        raise CommandError(f"there is no node {node}", f"there are {there}")
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    topics = await admin.describe_topics(names)
    resources = [ConfigResource.topic(name) for name in names]
    configs = await admin.describe_configs(resources, names=[MIN_ISR]) if resources else {}
    least = {each.name: int(found[MIN_ISR].value or 1) for each, found in configs.items()}
    partitions = {
        TopicPartition(topic.name, each.partition): each
        for topic in topics.values()
        for each in topic.partitions
    }
    moves = await admin.list_partition_reassignments()
    now_ms = time.time_ns() // 1_000_000
    hurts = [
        *harm_to_quorum(node, quorum, now_ms),
        *harm_to_partitions(node, partitions, least),
        *harm_to_moves(node, moves),
    ]
    if options.json:
        print_json({"node": node, "may_restart": not hurts, "hurts": hurts})
    else:
        print_lines("\n".join(page(node, hurts)))
    return FAILED if hurts else 0


def harm_to_quorum(node: int, quorum: QuorumDescription, now_ms: int) -> Iterable[str]:
    voters = [each.id for each in quorum.voters]
    if node not in voters:
        return
    there = [
        each.id
        for each in quorum.voters
        if each.id != node
        and (each.id == quorum.leader or now_ms - each.last_fetch_timestamp < HEARD_MS)
    ]
    needed = len(voters) // 2 + 1
    if len(there) < needed and len(voters) > 1:
        yield f"the quorum would have {len(there)} of {len(voters)} voters, and needs {needed}"
    elif len(voters) == 1:
        yield "it is the only voter: nothing can be changed while it is gone"


def harm_to_partitions(
    node: int,
    partitions: Mapping[TopicPartition, PartitionDescription],
    least: Mapping[str, int],
) -> Iterable[str]:
    for where, each in partitions.items():
        others = [broker for broker in each.isr if broker != node]
        if node not in each.isr:
            continue
        needed = min(least.get(where.topic, 1), len(each.replicas))
        if not others:
            yield f"{where} would be offline: no other replica is in sync"
        elif len(others) < needed:
            yield (
                f"{where} would take no acks=all: {len(others)} in sync, and {MIN_ISR} is {needed}"
            )


def harm_to_moves(node: int, moves: Mapping[TopicPartition, Reassignment]) -> Iterable[str]:
    filled = [str(where) for where, move in moves.items() if node in move.adding]
    if filled:
        named = ", ".join(filled[:3]) + (" and others" if len(filled) > 3 else "")
        yield f"it is being given replicas: {named} would take longer"


def page(node: int, hurts: list[Any]) -> list[str]:
    if not hurts:
        return [f"node {node} may restart"]
    more = len(hurts) - SHOWN
    return [
        f"node {node} should not restart now:",
        *(f"  {each}" for each in hurts[:SHOWN]),
        *([f"  and {more} more"] if more > 0 else []),
    ]
