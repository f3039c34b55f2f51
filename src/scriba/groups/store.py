"""Everything that one partition of `__consumer_offsets` holds, as replay builds it.

Groups of both protocols stand in one table, since a group id names one group. What the offsets,
the listing and the expiry need of a group, whichever its protocol, is the face `Group`. Offsets
are kept apart from the groups: a simple consumer commits without ever being a member, and
offsets of an open transaction wait here, by producer, until its marker arrives.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Final, NamedTuple, Protocol

from scriba.groups.facts import NO_TOPIC_ID
from scriba.outcome import Change
from scriba.wire.messages.stored_groups import OffsetCommitKey, OffsetCommitValue

TopicPartition = tuple[str, int]
"""Topic name and partition index."""

OFFSETS_AT_ONCE: Final = 250
"""Offsets of one transaction that end with it in one slice."""

Offsets = list[tuple["TopicPartition", "Committed"]]

CheckTopicPartition = Callable[[str, bytes, int], None]
"""Topic name, topic id, partition index: raises KafkaError where a member may not commit."""


class Committed(NamedTuple):
    """A committed offset; times are wall-clock milliseconds."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    """Set only by OffsetCommit 2-4 with a retention of its own; -1 where the broker decides."""
    topic_id: bytes = NO_TOPIC_ID
    position: int = -1
    """Offset of the record: a transaction that ends late must not undo a newer plain commit."""

    @classmethod
    def read(cls, value: OffsetCommitValue, position: int) -> "Committed":
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            position,
        )


class Group(Protocol):
    """A group of any protocol. The `check_` methods raise KafkaError."""

    group_id: str
    kind: str
    """As ListGroups names it: "classic" or "consumer"."""

    def state_name(self) -> str:
        """As ListGroups names it: "Empty", "Stable", ..."""
        ...

    def protocol_type_name(self) -> str:
        """As ListGroups names it; empty for a simple consumer's group."""
        ...

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, version: int, in_txn: bool
    ) -> CheckTopicPartition | None:
        """Whether this member may commit offsets at this generation or member epoch, and what is
        left to be checked place by place."""
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Whether this member may read offsets at this generation or member epoch."""
        ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribed(self, topic: str) -> bool:
        """Whether offsets of the topic are in use and therefore kept."""
        ...

    def idle_since(self, committed: Committed) -> int | None:
        """From when the retention of an offset counts; None while it does not."""
        ...

    def empty(self) -> bool:
        """Whether nobody is a member, so that the group may go once it holds no offsets."""
        ...

    def tombstones(self) -> list[Change]:
        """What removes the group itself, without its offsets."""
        ...


class Store:
    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending: dict[int, dict[str, dict[TopicPartition, Committed]]] = {}
        """Producer id -> group id -> what its open transaction has committed so far."""
        self.open_txns: dict[str, set[int]] = {}
        """Group id -> producers with a pending commit in it; mirrors `pending`."""
        self.unstable: dict[str, dict[TopicPartition, int]] = {}
        """Group id -> place -> how many transactions have a pending commit there; mirrors
        `pending`, so that nobody has to ask each of a thousand producers."""
        self.by_topic: dict[str, dict[str, int]] = {}
        """Topic -> group id -> number of its offsets there, committed and pending: which groups
        to look at when a topic goes."""

    def put_offset(self, group_id: str, place: TopicPartition, committed: Committed) -> None:
        offsets = self.offsets.setdefault(group_id, {})
        if place not in offsets:
            self._count(place[0], group_id, 1)
        offsets[place] = committed

    def put_pending(
        self, producer_id: int, group_id: str, place: TopicPartition, committed: Committed
    ) -> None:
        places = self.pending.setdefault(producer_id, {}).setdefault(group_id, {})
        if place not in places:
            self._count(place[0], group_id, 1)
            unstable = self.unstable.setdefault(group_id, {})
            unstable[place] = unstable.get(place, 0) + 1
        places[place] = committed
        self.open_txns.setdefault(group_id, set()).add(producer_id)

    def drop_offset(self, group_id: str, place: TopicPartition) -> None:
        """A tombstone takes the pending commits of the place with it: their transaction must not
        bring back what was deleted."""
        offsets = self.offsets.get(group_id)
        if offsets is not None and offsets.pop(place, None) is not None:
            self._count(place[0], group_id, -1)
            if not offsets:
                del self.offsets[group_id]
        if not self.is_pending(group_id, place):
            return
        for producer_id in list(self.open_txns[group_id]):
            groups = self.pending[producer_id]
            if groups[group_id].pop(place, None) is not None:
                self._count(place[0], group_id, -1)
                self._settle(group_id, place)
            if not groups[group_id]:
                del groups[group_id]
                self._close_txn(producer_id, group_id)
            if not groups:
                del self.pending[producer_id]

    def end_txn(self, producer_id: int, commit: bool) -> Generator[None, None, None]:
        """Ends a transaction here, in slices. Until the last one its offsets are half there, so
        nobody may read meanwhile."""
        begun = False
        for group_id, places in self.pending.pop(producer_id, {}).items():
            self._close_txn(producer_id, group_id)
            if group_id not in self.open_txns:
                del self.unstable[group_id]  # nobody else has a pending commit in the group
            for ending in _kept(places) if commit else _taken(places):
                if begun:
                    yield
                self._end(group_id, ending, commit)
                begun = True

    def _end(self, group_id: str, ending: Offsets, commit: bool) -> None:
        """Some pending offsets of a group are committed, or go. With few calls and looks into
        tables, since the other groups of the partition wait until the last of them is."""
        if group_id in self.unstable:
            for place, _ in ending:
                self._settle(group_id, place)
        gone = Counter([place[0] for place, _ in ending])
        if commit:
            offsets = self.offsets.setdefault(group_id, {})
            for place, committed in ending:
                standing = offsets.setdefault(place, committed)
                if standing is committed:
                    gone[place[0]] -= 1  # it was counted as pending, and counts on
                elif standing.position < committed.position:
                    offsets[place] = committed
        for topic, count in gone.items():
            if count:
                self._count(topic, group_id, -count)

    def _close_txn(self, producer_id: int, group_id: str) -> None:
        producers = self.open_txns[group_id]
        producers.discard(producer_id)
        if not producers:
            del self.open_txns[group_id]

    def _settle(self, group_id: str, place: TopicPartition) -> None:
        """One transaction less has a pending commit there."""
        unstable = self.unstable[group_id]
        unstable[place] -= 1
        if not unstable[place]:
            del unstable[place]
            if not unstable:
                del self.unstable[group_id]

    def _count(self, topic: str, group_id: str, change: int) -> None:
        counts = self.by_topic.setdefault(topic, {})
        counts[group_id] = counts.get(group_id, 0) + change
        if not counts[group_id]:
            del counts[group_id]
            if not counts:
                del self.by_topic[topic]

    def has_offset(self, group_id: str, place: TopicPartition) -> bool:
        return place in self.offsets.get(group_id, ()) or self.is_pending(group_id, place)

    def is_pending(self, group_id: str, place: TopicPartition) -> bool:
        return place in self.unstable.get(group_id, ())

    def places(self, group_id: str) -> Iterator[TopicPartition]:
        """All places with an offset of the group, committed or pending, each once."""
        seen = dict.fromkeys(self.offsets.get(group_id, ()))
        seen.update(dict.fromkeys(self.unstable.get(group_id, ())))
        return iter(seen)


def _kept(places: dict[TopicPartition, Committed]) -> Iterator[Offsets]:
    left = iter(places.items())
    while some := list(islice(left, OFFSETS_AT_ONCE)):
        yield some


def _taken(places: dict[TopicPartition, Committed]) -> Iterator[Offsets]:
    """Some after the other are let go of: a hundred thousand at once would hold the loop."""
    while some := [places.popitem() for _ in range(min(len(places), OFFSETS_AT_ONCE))]:
        yield some


def offset_tombstone(group_id: str, place: TopicPartition) -> Change:
    return Change(OffsetCommitKey(group=group_id, topic=place[0], partition=place[1]), None)
