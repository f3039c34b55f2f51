"""What goes in and comes out of a client: partitions, records, and where they were written."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # where a bare `Consumer` stands for one of anything

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

Headers = Sequence[tuple[str, bytes | None]]
"""As `scriba.records` has them, without loading its codecs for clients that read no records."""

HeadersLike = Headers | Mapping[str, bytes | None]
"""Headers of a record to send: pairs in their order, or a mapping."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_LONGEST_NAME = 249
"""Of a topic, in Kafka."""


def is_topic_name(name: object) -> bool:
    """Whether a broker can be asked about a topic of this name; whether it is good, that tells."""
    return isinstance(name, str) and len(name) <= _LONGEST_NAME and is_text(name)


def is_text(text: str) -> bool:
    """Whether it can be sent: a str may hold halves of characters (surrogates), UTF-8 cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class TimestampType(enum.IntEnum):
    """Whose clock a record's timestamp comes from."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(slots=True, frozen=True)
class RecordMetadata:
    """Where a record was written. The offset is -1 when the broker did not say (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class OffsetAndTimestamp(NamedTuple):
    """A place in a log. The epoch is that of the leader that wrote it, -1 if not known."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(slots=True, frozen=True)
class OffsetAndMetadata:
    """What a group commits: the offset at which to go on, a remark, and the leader epoch of the
    record before it (-1 if not known)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def to_commit(
    offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What was given to be committed. ValueError for an offset at which nobody could go on: brokers
    would take it, and who reads next would find it."""
    found = {
        TopicPartition(*where): place
        if isinstance(place, OffsetAndMetadata)
        else OffsetAndMetadata(place)
        for where, place in offsets.items()
    }
    for where, place in found.items():
        if place.offset < 0:
            raise ValueError(f"{where}: offset {place.offset} is negative and cannot be committed")
    return found


@dataclass(slots=True, frozen=True)
class ConsumerGroupMetadata:
    """A member of a group, as a transaction that commits the group's offsets names it.

    Without membership (no subscription) the generation is -1 and the member id empty.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Isolation(enum.IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetSpec(enum.IntEnum):
    """Places in a log that have a name; any number from 0 up is a timestamp in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
