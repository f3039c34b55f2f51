"""What members tell each other through the coordinator, which does not look inside.

Each piece begins with its version. Newer versions only add fields at the end, so one that is newer
than ours is read as ours.
"""

from collections.abc import Iterable, Sequence
from struct import Struct as Layout
from typing import Final, TypeVar

from scriba.client.model import TopicPartition
from scriba.errors import ParseError
from scriba.wire.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from scriba.wire.schema import Message

M = TypeVar("M", bound=Message)

_VERSION: Final = Layout(">h")
_NEWEST: Final = 3


def encode_subscription(
    topics: Iterable[str],
    user_data: bytes | None,
    owned: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(owned).items()
        ],
        generation_id=generation,
        rack_id=rack,
    )
    return _VERSION.pack(_NEWEST) + message.encode(_NEWEST)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription | None:
    """None when it makes no sense."""
    try:
        return _decode(ConsumerProtocolSubscription, data)
    except ParseError:
        return None


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(partitions).items()
        ]
    )
    return _VERSION.pack(_NEWEST) + message.encode(_NEWEST)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """No bytes at all mean no partitions."""
    if not data:
        return ()
    return tuple(
        TopicPartition(said.topic, index)
        for said in _decode(ConsumerProtocolAssignment, data).assigned_partitions
        for index in said.partitions
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _decode(kind: type[M], data: bytes) -> M:
    if len(data) < _VERSION.size:
        raise ParseError("too short for a version")
    (version,) = _VERSION.unpack_from(data)
    message, _ = kind.decode_from(data, _VERSION.size, max(0, min(version, _NEWEST)))
    return message
