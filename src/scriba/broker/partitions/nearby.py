"""Which replica a consumer is told to read from: one in its own rack (KIP-392).

A consumer says in which rack it is (`client.rack`). If this broker leads the partition in another
one, and selects by racks (`replica.selector.class`), it names a replica there: one that is in sync,
as one that is not might fall further and further behind, with its readers, or an observer that is
less than `scriba.observer.max.lag.ms` behind; that has the offset; and that the consumer can reach
on its listener. Of several the one that has most, so that the choice is
the same each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import Configuration, MetadataView, WorldAccess
from scriba.settings.keys.node import RACK_AWARE_SELECTOR

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition

NOBODY: Final = -1


class SelectorHost(Configuration, MetadataView, WorldAccess, Protocol):
    """What choosing a replica takes."""


class ReplicaSelector:
    def __init__(self, node: SelectorHost) -> None:
        self._node = node
        self._own_rack = node.settings.broker_rack
        self.by_rack = node.settings.replica_selector_class == RACK_AWARE_SELECTOR
        """Whether anybody is ever sent to a follower."""

    def preferred(
        self, partition: Partition, rack: str, offset: int, listener: str | None = None
    ) -> int:
        """The replica to read from instead of this one, which leads; NOBODY where it is this one.

        Without a listener it may be one that the consumer cannot reach.
        """
        leader = partition.leader
        if leader is None or not self.by_rack or not rack or rack == self._own_rack:
            return NOBODY
        node, brokers = self._node, self._node.image.brokers
        now_ms, max_lag_ms = node.world.clock.mono_ms(), node.settings.scriba_observer_max_lag_ms
        best: tuple[int, int, int] | None = None
        for replica, end_offset, caught_up_ms in leader.holders(offset, now_ms, max_lag_ms):
            broker = brokers.get(replica)
            if (
                broker is not None
                and broker.rack == rack
                and not broker.fenced
                and (listener is None or any(each.name == listener for each in broker.listeners))
            ):
                best = max(best or (-1, 0, 0), (end_offset, caught_up_ms, replica))
        return best[2] if best is not None else NOBODY
