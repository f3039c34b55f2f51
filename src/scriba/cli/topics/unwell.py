"""`scriba topic describe --under-replicated|--offline`: partitions that miss a replica or a leader.

Nothing but metadata is asked for: who has no leader tells neither offsets nor sizes.
"""

import argparse
from typing import Any

from scriba.cli.output import note, print_json, print_table
from scriba.cli.topics.observers import observing
from scriba.client import Admin
from scriba.client.admin.model import PartitionDescription
from scriba.client.diagnosis.explain import waits_for


async def show(admin: Admin, options: argparse.Namespace) -> int:
    names = options.topics
    if not names:
        names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    topics = await admin.describe_topics(names)
    observers = await observing(admin, topics)
    found = [
        document(topic.name, partition, observers.get(topic.name, frozenset()))
        for topic in topics.values()
        for partition in topic.partitions
        if (
            is_offline(partition)
            if options.offline
            else is_under_replicated(partition, observers.get(topic.name, frozenset()))
        )
    ]
    if options.json:
        print_json(found)
    elif found:
        headings = ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "MISSING", "WAITS FOR"]
        print_table(headings, (row(each) for each in found))
    else:
        what = "without a leader" if options.offline else "under-replicated"
        note(f"no partition is {what}")
    return 0


def is_offline(partition: PartitionDescription) -> bool:
    return partition.leader is None


def is_under_replicated(
    partition: PartitionDescription, observers: frozenset[int] = frozenset()
) -> bool:
    """Observers are never in sync, and never missed."""
    return bool(missing(partition, observers))


def missing(partition: PartitionDescription, observers: frozenset[int]) -> list[int]:
    known = {*partition.isr, *observers}
    return [each for each in partition.replicas if each not in known]


def document(
    topic: str, partition: PartitionDescription, observers: frozenset[int] = frozenset()
) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "missing": missing(partition, observers),
        "observers": [each for each in partition.replicas if each in observers],
        "waits_for": waits_for(partition),
    }


def row(found: dict[str, Any]) -> tuple[str | int | None, ...]:
    lists = (",".join(map(str, found[name])) for name in ("replicas", "isr", "missing"))
    waiting = ",".join(map(str, found["waits_for"])) or None
    return (found["topic"], found["partition"], found["leader"], *lists, waiting)
