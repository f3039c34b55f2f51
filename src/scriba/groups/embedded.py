"""What consumers of the classic protocol put into JoinGroup and SyncGroup: their subscription and
their share, each as a version followed by a message of that version.

Later versions only add fields at the end, so that one not known yet is read as the last known.
"""

from collections.abc import Iterable

from scriba.errors import ParseError
from scriba.groups.assignors import Assignment
from scriba.groups.facts import Topics
from scriba.wire.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)

LAST_VERSION = 3


def version_of(data: bytes) -> int:
    if len(data) < 2:
        raise ParseError("too short for a version")
    return int.from_bytes(data[:2], "big")


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    version = min(version_of(data), LAST_VERSION)
    return ConsumerProtocolSubscription.decode_from(data, 2, version)[0]


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    version = min(version_of(data), LAST_VERSION)
    return ConsumerProtocolAssignment.decode_from(data, 2, version)[0]


def write_assignment(assignment: Assignment, topics: Topics, version: int) -> bytes:
    """Topics that are gone are left out: the client knows them by name only."""
    version = min(version, LAST_VERSION)
    found = sorted(
        (topic.name, sorted(held))
        for topic_id, held in assignment.items()
        if (topic := topics.by_id(topic_id)) is not None
    )
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=partitions)
            for name, partitions in found
        ]
    )
    return version.to_bytes(2, "big") + message.encode(version)


def by_id(
    named: Iterable[tuple[str, Iterable[int]]], topics: Topics
) -> dict[bytes, frozenset[int]]:
    """Partitions by topic id, of the topics that exist."""
    return {
        topic.id: frozenset(partitions)
        for name, partitions in named
        if (topic := topics.get(name)) is not None
    }
