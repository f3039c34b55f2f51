"""Which replicas are copied at a limited rate, and at which (KIP-73).

A topic names them (`leader.` and `follower.replication.throttled.replicas`), as `partition:broker`
or all of them as `*`; the rates are each broker's own. What is in sync is never held back, nor does
it use the rate up: only those who catch up do. Replicas that are being moved, and that nobody has
named, are copied at a rate that gives way to clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scriba.broker.ports import (
    BrokerIdentity,
    Configuration,
    Counting,
    MetadataView,
    WorldAccess,
)
from scriba.replication.giving_way import Busy, GivingWay
from scriba.replication.throttle import Throttle

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.replication.leader import LeaderState


class ThrottleHost(BrokerIdentity, Configuration, Counting, MetadataView, WorldAccess, Protocol):
    """What limiting replication takes."""


class ReplicationThrottles:
    def __init__(self, node: ThrottleHost) -> None:
        self._node = node
        self.leader = Throttle(lambda: node.settings.leader_replication_throttled_rate)
        self.follower = Throttle(lambda: node.settings.follower_replication_throttled_rate)
        giving = GivingWay(self._busy, lambda: node.settings.scriba_reassignment_min_rate)
        clock = node.world.clock
        self.given = Throttle(lambda: giving.rate(clock.mono_ms()))
        """Of moves that nobody has set a rate for: what goes out."""
        self.taken = Throttle(lambda: giving.rate(clock.mono_ms()))
        """And what comes in."""
        self.led: set[Partition] = set()
        """Partitions that followers here are given at the leader's rate, as far as led here."""
        self.followed: set[Partition] = set()
        """Partitions that are fetched at the follower's rate, as far as followed here."""

    def _busy(self) -> Busy:
        counters, lag = self._node.counters, self._node.world.lag
        return Busy(counters.topic_bytes_in + counters.topic_bytes_out, lag.sum_ms, lag.count)

    def watch(self, partition: Partition) -> None:
        """Takes note of what the settings of its topic say."""
        settings = partition.settings
        for named, those in (
            (settings.leader_replication_throttled_replicas, self.led),
            (settings.follower_replication_throttled_replicas, self.followed),
        ):
            if named and (named[0] == "*" or f"{partition.index}:{self._node.id}" in named):
                those.add(partition)
            else:
                those.discard(partition)

    def giving(self, partition: Partition, leader: LeaderState, replica: int) -> Throttle | None:
        """What slows a replica that is given records of a partition led here; None if nothing."""
        if replica in leader.isr:
            return None
        if partition in self.led:
            return self.leader
        return self.given if replica in leader.adding else None

    def taking(self, partition: Partition) -> Throttle | None:
        """What slows this broker's own replica, which follows; None if nothing."""
        topic = self._node.image.topics_by_id.get(partition.topic_id)
        known = None if topic is None else topic.partitions.get(partition.index)
        if known is None or self._node.id in known.isr:
            return None
        if partition in self.followed:
            return self.follower
        return self.taken if self._node.id in known.adding_replicas else None

    def forget(self, partition: Partition) -> None:
        self.led.discard(partition)
        self.followed.discard(partition)
