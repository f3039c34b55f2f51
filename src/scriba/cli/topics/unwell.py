"""`scriba topic describe --under-replicated|--offline`: partitions that miss a replica or a leader.

Nothing but metadata is asked for: who has no leader tells neither offsets nor sizes. Replicas that
a reassignment adds are not missed, as in the metric.
"""

import argparse
from typing import Any

from scriba.cli.output import note, print_json, print_table
from scriba.cli.topics.gone import described
from scriba.cli.topics.observers import observing
from scriba.client import Admin, ClientError, TopicPartition
from scriba.client.admin.model import PartitionDescription, Reassignment
from scriba.client.diagnosis.explain import is_under_replicated, waits_for
from scriba.client.diagnosis.gather import PATIENCE_MS


async def show(admin: Admin, options: argparse.Namespace) -> int:
    topics = await described(admin, options.topics)
    observers = await observing(admin, topics)
    moves = await under_way(admin)
    found = []
    for topic in topics.values():
        watching = observers.get(topic.name, frozenset())
        for partition in topic.partitions:
            move = moves.get(TopicPartition(topic.name, partition.partition))
            adding = frozenset() if move is None else frozenset(move.adding)
            if (
                is_offline(partition)
                if options.offline
                else is_under_replicated(partition, watching | adding)
            ):
                found.append(document(topic.name, partition, watching, adding))
    if options.json:
        print_json(found)
    elif found:
        headings = ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "MISSING", "WAITS FOR"]
        print_table(headings, (row(each) for each in found))
    else:
        what = "without a leader" if options.offline else "under-replicated"
        note(f"no partition is {what}")
    moving = sum(where.topic in topics for where in moves)
    if moving:
        are = "partition is" if moving == 1 else "partitions are"
        note(f"{moving:,} {are} being moved: scriba cluster reassign --list")
    return 0


async def under_way(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """The reassignments; none where no controller tells."""
    try:
        return await admin.list_partition_reassignments(timeout_ms=PATIENCE_MS)
    except ClientError:
        return {}


def is_offline(partition: PartitionDescription) -> bool:
    return partition.leader is None


def missing(partition: PartitionDescription, beside: frozenset[int]) -> list[int]:
    known = {*partition.isr, *beside}
    return [each for each in partition.replicas if each not in known]


def document(
    topic: str,
    partition: PartitionDescription,
    observers: frozenset[int] = frozenset(),
    adding: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "missing": missing(partition, observers | adding),
        "observers": [each for each in partition.replicas if each in observers],
        "adding": [each for each in partition.replicas if each in adding],
        "waits_for": waits_for(partition),
    }


def row(found: dict[str, Any]) -> tuple[str | int | None, ...]:
    lists = (",".join(map(str, found[name])) for name in ("replicas", "isr", "missing"))
    waiting = ",".join(map(str, found["waits_for"])) or None
    return (found["topic"], found["partition"], found["leader"], *lists, waiting)
