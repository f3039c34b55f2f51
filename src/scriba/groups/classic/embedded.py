"""What consumers of the classic protocol put into JoinGroup and SyncGroup: their subscription and
their share, each as a version followed by a message of that version.

Later versions only add fields at the end, so that one not known yet is read as the last known.
"""

from collections.abc import Iterable
from typing import TypeVar

from scriba.errors import ParseError
from scriba.groups.assignors import Assignment
from scriba.groups.facts import Topics
from scriba.wire.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from scriba.wire.schema import Message, TooMany

LAST_VERSION = 3
MAX_ELEMENTS = 50_000
"""Topics and partitions that one member names. It is read in one go, so it has a limit."""

M = TypeVar("M", bound=Message)


def version_of(data: bytes) -> int:
    if len(data) < 2:
        raise ParseError("too short for a version")
    return int.from_bytes(data[:2], "big")


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    return _read(ConsumerProtocolSubscription, data, min(version_of(data), LAST_VERSION))


def read_topics(data: bytes) -> list[str]:
    """Of a subscription of any version: each begins with the first one."""
    return _read(ConsumerProtocolSubscription, data, 0).topics


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    return _read(ConsumerProtocolAssignment, data, min(version_of(data), LAST_VERSION))


def _read(cls: type[M], data: bytes, version: int) -> M:
    try:
        return cls.decode_from(data, 2, version, MAX_ELEMENTS)[0]
    except TooMany as error:
        raise ParseError(f"{cls.__name__}: {error}") from error


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
