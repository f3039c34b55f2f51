"""Where a consumer stands in each of its partitions.

A partition is in one of four states, by what stands between it and the next fetch:

    to be restored neither offset nor target: the group's committed offset is being asked for
    to be found    `target` says where to begin (a name or a time): ListOffsets gives the offset
    to be checked  a new leader was elected since it was last good: is it still in the log?
    fetchable      the offset is good; records are fetched as long as there is room for them

`position` is what the application has seen, `fetch_offset` runs ahead of it by what is buffered.
Every jump (seek, reset, truncation) begins a new generation; answers to older ones are dropped.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from scriba.client.cluster import NO_NODE, Cluster, Partition
from scriba.client.consuming.completed_fetch import CompletedFetch, GivenBack
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.model import TopicPartition
from scriba.peers.errors import ClientError

AHEAD: Final = 2
"""Completed fetches of a partition that are kept: one that is being used up, one fetched ahead."""


class AssignedPartition:
    """One partition that is read."""

    __slots__ = (
        "_checked_epoch",
        "_position",
        "_seen_epoch",
        "absent_since",
        "asking",
        "avoid_until",
        "buffered",
        "epoch",
        "error",
        "fetch_offset",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "nearby",
        "nearby_until",
        "paused",
        "retry_at",
        "target",
        "where",
    )

    def __init__(self, where: TopicPartition, target: int | None) -> None:
        self.where = where
        self.paused = False
        self.generation = 0
        self.target = target
        self.fetch_offset = -1
        self.epoch = -1
        """Of the leader that wrote what is before `fetch_offset`; -1 when not known."""
        self._position = -1
        self._seen_epoch = -1
        self._checked_epoch = -1
        self.buffered: deque[CompletedFetch | GivenBack] = deque()
        self.error: ClientError | None = None
        """Raised by the next poll."""
        self.absent_since: int | None = -1
        """Since when its topic is known to lack it; -1 if it does not, None once that was told."""
        self.asking = False
        """Whether a broker is being asked about the position."""
        self.retry_at = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.nearby = NO_NODE
        """A replica that the leader told us to read from (KIP-392)."""
        self.nearby_until = 0
        self.avoid_until = 0
        """Until when the leader itself is read from, because such a replica was of no use."""

    # -- jumps -----------------------------------------------------------------------------------

    def jump(self, offset: int, epoch: int = -1) -> None:
        """Goes on at an offset; `epoch` is that of the record before it, if known."""
        self._leave()
        self._position = self.fetch_offset = offset
        self.epoch = self._seen_epoch = epoch
        self._checked_epoch = -1

    def look_for(self, target: int) -> None:
        """Goes on where a name or a timestamp points to."""
        self._leave()
        self.target = target
        self._position = self.fetch_offset = -1
        self.epoch = self._seen_epoch = -1

    def _leave(self) -> None:
        self.generation += 1
        self.target = None
        self.buffered.clear()
        self.error = None
        self.asking = False
        self.retry_at = 0
        self.nearby = NO_NODE

    # -- what was taken --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Where the application goes on; -1 when that has to be found."""
        return self.buffered[0].next_offset if self.buffered else self._position

    @property
    def seen_epoch(self) -> int:
        """Of the leader that wrote what is before `position`; -1 when not known."""
        seen = self.buffered[0].seen_epoch if self.buffered else -1
        return self._seen_epoch if seen < 0 else seen

    def used_up(self) -> None:
        """The first completed fetch has nothing more."""
        completed = self.buffered.popleft()
        self._position = completed.end_offset
        self._seen_epoch = completed.end_epoch

    def give_back(self, records: list[ConsumerRecord[Any, Any]]) -> None:
        """Takes back the last that were taken: they come before what is buffered."""
        self.buffered.appendleft(GivenBack(records, self.position, self.seen_epoch))
        self._seen_epoch = -1  # until they are used up it is that of a later record

    # -- states ----------------------------------------------------------------------------------

    @property
    def found(self) -> bool:
        return self.fetch_offset >= 0

    def to_be_checked(self, partition: Partition) -> bool:
        """Whether another leader might not have what was read before `fetch_offset`."""
        return (
            self.found
            and self.epoch >= 0
            and partition.leader_epoch >= 0
            and partition.leader_epoch > max(self._checked_epoch, self.epoch)
        )

    def checked(self, leader_epoch: int) -> None:
        self._checked_epoch = leader_epoch

    def node(self, partition: Partition, now: int) -> int:
        """The broker to fetch from."""
        if self.nearby != NO_NODE and now >= self.nearby_until:
            self.nearby = NO_NODE
        return partition.leader if self.nearby == NO_NODE else self.nearby

    def avoid_nearby(self, until: int) -> None:
        """Goes back to the leader, and stays there for a while."""
        self.nearby = NO_NODE
        self.avoid_until = until

    @property
    def full(self) -> bool:
        return len(self.buffered) >= AHEAD

    def fetched(self, completed: CompletedFetch, next_offset: int, epoch: int) -> None:
        self.buffered.append(completed)
        self.fetch_offset = next_offset
        self.epoch = epoch

    def lag(self, committed: bool) -> int | None:
        end = self.last_stable_offset if committed else self.high_watermark
        return None if end < 0 or self.position < 0 else max(0, end - self.position)


class Positions:
    """All partitions of a consumer, those first that have waited longest for records."""

    def __init__(self) -> None:
        self.assigned: dict[TopicPartition, AssignedPartition] = {}

    def assign(self, partitions: Iterable[TopicPartition], target: int | None) -> None:
        """Replaces the partitions; those that stay keep their positions."""
        before = self.assigned
        self.assigned = {
            where: before.get(where) or AssignedPartition(where, target) for where in partitions
        }

    def to_end(self, assigned: AssignedPartition) -> None:
        """Lets the others go first in the next request."""
        del self.assigned[assigned.where]
        self.assigned[assigned.where] = assigned

    def to_be_found(self, now: int) -> list[AssignedPartition]:
        return [a for a in self._idle(now) if a.target is not None]

    def to_be_checked(
        self, cluster: Cluster, now: int
    ) -> list[tuple[AssignedPartition, Partition]]:
        pairs = [(a, cluster.partition(a.where)) for a in self._idle(now) if a.found]
        return [(a, p) for a, p in pairs if p is not None and a.to_be_checked(p)]

    def _idle(self, now: int) -> list[AssignedPartition]:
        return [a for a in self.assigned.values() if not a.asking and a.retry_at <= now]
