"""Which partitions a broker's coming or going concerns, without a walk through all there are.

By broker: the partitions that it leads, those that it is in sync with and those that it may lead
though it is not (its eligible ones, KIP-966). Those without a leader stand under `NO_LEADER`.
Besides, those that it is out of sync with, those of its own that nobody leads, those whose replicas
are being reassigned, and those whose first replica does not lead. All of it follows from the image
and is kept up with each change, so a broker that is fenced or comes back costs as much as it has
partitions, in a cluster of any size.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from scriba.controller.image import NO_LEADER, ClusterImage, Delta, PartitionImage, TopicImage

Chosen = tuple[TopicImage, int, PartitionImage]

_Group = dict[bytes, set[int]]
"""Partitions by the id of their topic. Sets of small numbers have an order that is the same in each
process; what goes into records is sorted nevertheless."""


class PartitionIndex:
    __slots__ = (
        "_behind",
        "_displaced",
        "_eligible",
        "_in_sync",
        "_led",
        "_offline",
        "_reassigning",
        "visited",
    )

    def __init__(self) -> None:
        self._led: dict[int, _Group] = {}
        self._in_sync: dict[int, _Group] = {}
        self._eligible: dict[int, _Group] = {}
        self._behind: dict[int, _Group] = {}
        self._offline: dict[int, _Group] = {}
        self._reassigning: _Group = {}
        self._displaced: dict[int, _Group] = {}
        self.visited = 0
        """Partitions looked at so far: what the work has cost, whatever the machine."""

    # ---- kept up ----

    def fill(self, image: ClusterImage) -> Generator[None, None, None]:
        """Takes in a whole image, partition by partition; none of it counts before the end."""
        for topic in list(image.topics_by_id.values()):
            led: dict[int, set[int]] = defaultdict(set)
            in_sync: dict[int, set[int]] = defaultdict(set)
            for index, partition in topic.partitions.items():
                led[partition.leader].add(index)
                for broker in partition.isr:
                    in_sync[broker].add(index)
                self._note_unusual(topic.id, index, None, partition)
                yield
            for groups, by_broker in ((self._led, led), (self._in_sync, in_sync)):
                for broker, indexes in by_broker.items():
                    groups.setdefault(broker, {})[topic.id] = indexes

    def apply(self, delta: Delta, image: ClusterImage) -> None:
        for topic_id in delta.deleted:
            self._forget(topic_id)
        for topic_id, changes in delta.partitions.items():
            partitions = image.topics_by_id[topic_id].partitions
            for index, before in changes.items():
                self._move(topic_id, index, before, partitions[index])

    def _move(
        self, topic_id: bytes, index: int, before: PartitionImage | None, after: PartitionImage
    ) -> None:
        old = before
        led = () if old is None else (old.leader,)
        self._regroup(self._led, topic_id, index, led, (after.leader,))
        self._regroup(self._in_sync, topic_id, index, () if old is None else old.isr, after.isr)
        self._note_unusual(topic_id, index, before, after)

    def _note_unusual(
        self, topic_id: bytes, index: int, before: PartitionImage | None, after: PartitionImage
    ) -> None:
        """What is not so of a partition that has all its replicas, and its first one leading."""
        old = _AS_USUAL if before is None else before
        for groups, was, now in (
            (self._eligible, old.eligible_leader_replicas, after.eligible_leader_replicas),
            (self._behind, _out_of_sync(old), _out_of_sync(after)),
            (self._displaced, _displaced(old), _displaced(after)),
            (self._offline, _offline(old), _offline(after)),
        ):
            if was or now:
                self._regroup(groups, topic_id, index, was, now)
        if after.is_reassigning and not old.is_reassigning:
            self._reassigning.setdefault(topic_id, set()).add(index)
        elif old.is_reassigning and not after.is_reassigning:
            self._drop(self._reassigning, topic_id, index)

    def _regroup(
        self,
        groups: dict[int, _Group],
        topic_id: bytes,
        index: int,
        old: tuple[int, ...],
        new: tuple[int, ...],
    ) -> None:
        if old == new:
            return
        for broker in old:
            if broker not in new:
                self._drop(groups[broker], topic_id, index)
        for broker in new:
            if broker not in old:
                groups.setdefault(broker, {}).setdefault(topic_id, set()).add(index)

    def _drop(self, group: _Group, topic_id: bytes, index: int) -> None:
        group[topic_id].discard(index)
        if not group[topic_id]:
            del group[topic_id]

    def _forget(self, topic_id: bytes) -> None:
        self._reassigning.pop(topic_id, None)
        for groups in (
            self._led,
            self._in_sync,
            self._eligible,
            self._behind,
            self._displaced,
            self._offline,
        ):
            for group in groups.values():
                group.pop(topic_id, None)

    # ---- asked ----

    def leads(self, broker: int) -> bool:
        return bool(self._led.get(broker))

    def count_leaderless(self) -> int:
        return sum(map(len, self._led.get(NO_LEADER, {}).values()))

    def leaderless(self, image: ClusterImage) -> Iterator[Chosen]:
        return self._walk(image, [self._led.get(NO_LEADER, {})])

    def awaiting(self, image: ClusterImage, broker: int) -> Iterator[Chosen]:
        """Partitions without a leader that have a replica on the broker: it may be theirs."""
        return self._walk(image, [self._offline.get(broker, {})])

    def in_sync(self, image: ClusterImage, brokers: Iterable[int]) -> Iterator[Chosen]:
        """Partitions with one of these brokers in their in-sync set, each once."""
        return self._walk(image, [self._in_sync.get(broker, {}) for broker in brokers])

    def trusted(self, image: ClusterImage, broker: int) -> Iterator[Chosen]:
        """Partitions that the broker may lead as it stands: in sync with them, or eligible."""
        groups = [self._in_sync.get(broker, {}), self._eligible.get(broker, {})]
        return self._walk(image, groups)

    def reassigning(self, image: ClusterImage) -> Iterator[Chosen]:
        """Partitions whose replicas are being reassigned."""
        return self._walk(image, [self._reassigning])

    def displaced(self, image: ClusterImage, brokers: Iterable[int]) -> Iterator[Chosen]:
        """Partitions that have one of these brokers as their first replica, and another leads."""
        return self._walk(image, [self._displaced.get(broker, {}) for broker in brokers])

    def behind(self, image: ClusterImage, broker: int) -> Iterator[TopicImage]:
        """Topics of which a replica of the broker is out of sync, those being added apart."""
        for topic_id in self._behind.get(broker, {}):
            yield image.topics_by_id[topic_id]

    def has_replicas(self, broker: int) -> bool:
        """Whether any partition has a replica there, those being added apart."""
        return bool(self._in_sync.get(broker) or self._behind.get(broker))

    def with_eligible(self, image: ClusterImage) -> Iterator[Chosen]:
        """Partitions that have eligible replicas outside their in-sync set."""
        return self._walk(image, list(self._eligible.values()))

    def _walk(self, image: ClusterImage, groups: Sequence[_Group]) -> Iterator[Chosen]:
        """Every partition of the groups once, as the image has it when it is reached.

        Whoever pulls may replay in between. A partition that a replay took out of a group is not
        visited again; one that comes twice because of it needs no further change.
        """
        for position, group in enumerate(groups):
            earlier = groups[:position]
            for topic_id in list(group):
                for index in sorted(group.get(topic_id, ())):
                    if any(index in other.get(topic_id, ()) for other in earlier):
                        continue
                    topic = image.topics_by_id.get(topic_id)
                    if topic is None:
                        break
                    self.visited += 1
                    yield topic, index, topic.partitions[index]


_AS_USUAL: Final = PartitionImage((), (), (), NO_LEADER, 0, 0)


def _out_of_sync(partition: PartitionImage) -> tuple[int, ...]:
    if len(partition.isr) == len(partition.replicas):
        return ()
    known = (*partition.isr, *partition.adding_replicas)
    return tuple(broker for broker in partition.replicas if broker not in known)


def _displaced(partition: PartitionImage) -> tuple[int, ...]:
    """The first replica, if another leads."""
    first = partition.replicas[:1]
    return () if partition.leader in (NO_LEADER, *first) else first


def _offline(partition: PartitionImage) -> tuple[int, ...]:
    """All replicas, if none leads."""
    return partition.replicas if partition.leader == NO_LEADER else ()
