"""Replicas here that observe: they serve consumers while they are not too far behind.

A replica in the ISR is never far behind, so it serves as long as it is in it. An observer is in no
ISR: how far it is behind only its own fetches tell. Twice a second each is asked when it last had
what its leader had committed; one for which that is longer ago than `scriba.observer.max.lag.ms`
sends its consumers back to the leader until it has caught up. A leader that cannot be reached
leaves it behind, too: how much is missing is unknown then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scriba.broker.ports import Configuration, WorldAccess
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.partitions.replication.fetchers import Fetchers
    from scriba.instant import Instant


class ObserverHost(Configuration, WorldAccess, Protocol):
    """What it takes to know whether a replica is too far behind."""


class Observers:
    def __init__(self, node: ObserverHost, fetchers: Fetchers) -> None:
        self._node = node
        self._fetchers = fetchers
        self._here: dict[Partition, None] = {}

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._here

    def watch(self, partition: Partition) -> None:
        """Takes up a replica that observes in its present role, lets go of one that does not."""
        placement = partition.placement
        observes = (
            placement is not None
            and partition.follower is not None
            and self._node.settings.broker_rack in placement.observers
        )
        if observes:
            self._here[partition] = None
        else:
            self._here.pop(partition, None)

    def forget(self, partition: Partition) -> None:
        self._here.pop(partition, None)

    async def look(self, now: Instant) -> None:
        """Has each serve if it may, or stop."""
        pace = Pace(self._node.world.clock)
        limit_ms = self._node.settings.scriba_observer_max_lag_ms
        for partition in tuple(self._here):
            if partition.follower is not None and partition in self._here:
                behind_ms = self.behind_ms(partition, now)
                partition.serve(behind_ms is not None and behind_ms <= limit_ms)
            await pace()

    def behind_ms(self, partition: Partition, now: Instant) -> int | None:
        """How long ago it had all that was committed then; None where it never did."""
        caught_up_ms = self._fetchers.caught_up_ms(partition)
        return None if caught_up_ms is None else max(now.mono_ms - caught_up_ms, 0)

    @property
    def max_lag(self) -> int:
        """Records by which the worst one is behind what is committed, as far as it was told."""
        states = (partition.follower for partition in self._here)
        return max((state.lag for state in states if state is not None), default=0)

    def max_behind_ms(self, now: Instant) -> int:
        """The longest time that one is behind."""
        found = (self.behind_ms(partition, now) for partition in self._here)
        return max((each for each in found if each is not None), default=0)

    @property
    def serving(self) -> int:
        return sum(partition.serves for partition in self._here)
