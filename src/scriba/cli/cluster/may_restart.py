"""`scriba cluster may-restart`: whether a node may be restarted now, or what that would harm."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from scriba.cli.output import print_json, print_lines
from scriba.cli.problems import FAILED, CommandError
from scriba.cli.session import with_admin
from scriba.cli.topics.gone import described, still_there
from scriba.cli.topics.observers import MIN_ISR, least_in_sync
from scriba.client import Admin, ConfigResource, TopicPartition
from scriba.client.admin.model import ConfigEntry, QuorumDescription, Reassignment
from scriba.placement.harm import Held, harm
from scriba.settings.placement import PLACEMENT

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
    topics = await described(admin)
    resources = [ConfigResource.topic(name) for name in topics]
    configs: dict[ConfigResource, dict[str, ConfigEntry]] = {}
    if resources:
        asked = admin.describe_configs(resources, names=[MIN_ISR, PLACEMENT])
        configs = await still_there(asked)
    least = {each.name: least_in_sync(found) for each, found in configs.items()}
    moves = await admin.list_partition_reassignments()
    held = (
        Held(
            f"{topic.name}-{each.partition}",
            each.replicas,
            each.isr,
            _adding(moves, TopicPartition(topic.name, each.partition)),
            least.get(topic.name, 1),
        )
        for topic in topics.values()
        for each in topic.partitions
    )
    hurts = harm(node, heard_ms(quorum), held)
    if options.json:
        print_json({"node": node, "may_restart": not hurts, "hurts": hurts})
    else:
        print_lines("\n".join(page(node, hurts)))
    return FAILED if hurts else 0


def _adding(moves: Mapping[TopicPartition, Reassignment], where: TopicPartition) -> tuple[int, ...]:
    return moves[where].adding if where in moves else ()


def heard_ms(quorum: QuorumDescription) -> dict[int, int]:
    """By voter, how long ago its leader heard of it, by that one's own clock."""
    now = max((each.last_fetch_timestamp for each in quorum.voters), default=0)
    return {
        each.id: 0 if each.id == quorum.leader else now - each.last_fetch_timestamp
        for each in quorum.voters
    }


def page(node: int, hurts: list[Any]) -> list[str]:
    if not hurts:
        return [f"node {node} may restart"]
    more = len(hurts) - SHOWN
    return [
        f"node {node} should not restart now:",
        *(f"  {each}" for each in hurts[:SHOWN]),
        *([f"  and {more} more"] if more > 0 else []),
    ]
