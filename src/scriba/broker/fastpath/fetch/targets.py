"""What a Fetch asks for and what was found of it, as the fast path has them at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scriba.broker.handlers.records.isolation import READ_COMMITTED
from scriba.broker.partitions.fetch_sessions import NO_TOPIC_ID, Key, Watched
from scriba.storage.results import Slice

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.replication.leader import LeaderState
    from scriba.storage.producers.state import AbortedTxn
    from scriba.wire.template import Packer


class Target:
    """A partition as it was last found by readers of what is committed, or by others."""

    __slots__ = (
        "begin",
        "bound",
        "epoch",
        "high_watermark",
        "leader",
        "partition",
        "stable_offset",
        "start_offset",
        "told",
        "topic",
    )

    def __init__(self, topic: Topic, partition: Partition) -> None:
        self.topic = topic
        self.partition = partition
        self.leader: LeaderState | None = None
        self.epoch = self.high_watermark = self.stable_offset = self.start_offset = -1
        self.bound = -1
        """Up to where it may be read."""
        self.begin = b""
        """What is told of it up to its records."""
        self.told = b""
        """The same with no records. Both are packed when they are first needed."""

    def look(self, from_followers: bool) -> bool:
        """Takes note of a partition that has changed; whether it may be read."""
        partition = self.partition
        self.leader = leader = partition.leader
        self.high_watermark = partition.high_watermark.value
        self.stable_offset = partition.stable_offset.value
        self.start_offset = partition.log.start_offset
        self.bound = partition.readable(self.topic.isolation == READ_COMMITTED).value
        self.begin = self.told = b""
        if leader is None and not (partition.serves and from_followers):
            self.high_watermark = -1  # so that it is looked at again
            return False
        self.epoch = partition.leader_epoch
        return True

    def follows_on(self) -> bool:
        """Whether a partition that does not lead may be read as when it was last found."""
        partition = self.partition
        return partition.serves and partition.leader_epoch == self.epoch


class Topic(NamedTuple):
    """A topic and its partitions here, for readers of what is committed or for others."""

    name: str
    isolation: int
    head: bytes
    """Its name or its id, as it is in an answer."""
    targets: dict[int, Target]
    pack: Packer
    """Packs an answer up to the records of a single partition."""
    size: int
    """What that has behind the length."""


class Order(NamedTuple):
    """Different partitions of a topic, in the order in which a request names them."""

    targets: list[Target]
    head: bytes
    """An answer that tells of no others, up to the first of them."""


Name = bytes | str
"""How a version names topics: by their ids, or by their names."""


Wanted = tuple[list["Target"], list[int], list[int], list[int], bytes, list[Watched]]
"""The partitions that are asked for, a column for each thing that is asked: the partitions, epochs
of their leaders as the client knows them, offsets, bytes that each may have; the head as in
`Order`, empty where there are several topics; and what is known of them in a session. A plain
tuple, as is `Reading`, one for each request: to make one with names takes ten times as long."""


class PartlyAborted(NamedTuple):
    """Records, and the transactions among them that a reader of what is committed leaves out."""

    records: Slice
    transactions: list[AbortedTxn]
    size: int
    """Of the records."""


Found = bytes | Slice | PartlyAborted
"""What is told of a partition without records, or the records."""


Reading = tuple[list[Found], list[int], int]
"""What there is of the partitions of a request, which of them have records, and the size of all
records together."""


class Changes:
    """What a request changes in its session."""

    __slots__ = ("added", "forgotten", "named")

    def __init__(self) -> None:
        self.named: dict[Watched, int] = {}
        """Partitions whose offset or limits are told, and where."""
        self.added: dict[Key, Watched] = {}
        self.forgotten: set[Key] = set()


def id_and_name(named: Name) -> tuple[bytes, str]:
    """A topic's id and name, of which a version has one."""
    return (named, "") if isinstance(named, bytes) else (NO_TOPIC_ID, named)
