"""Which replicas are copied at a limited rate, and at which (KIP-73).

A topic names them (`leader.` and `follower.replication.throttled.replicas`), as `partition:broker`
or all of them as `*`; the rates are each broker's own. What is in sync is never held back, nor does
it use the rate up: only those who catch up do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scriba.broker.ports import BrokerIdentity, Configuration, MetadataView
from scriba.replication.throttle import Throttle

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition


class ThrottleHost(BrokerIdentity, Configuration, MetadataView, Protocol):
    """What limiting replication takes."""


class ReplicationThrottles:
    def __init__(self, node: ThrottleHost) -> None:
        self._node = node
        self.leader = Throttle(lambda: node.settings.leader_replication_throttled_rate)
        self.follower = Throttle(lambda: node.settings.follower_replication_throttled_rate)
        self.led: set[Partition] = set()
        """Partitions that followers here are given at the leader's rate, as far as led here."""
        self.followed: set[Partition] = set()
        """Partitions that are fetched at the follower's rate, as far as followed here."""

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

    def slows(self, partition: Partition) -> bool:
        """Whether this broker's own replica, which follows, catches up at a limited rate."""
        if partition not in self.followed:
            return False
        topic = self._node.image.topics_by_id.get(partition.topic_id)
        known = None if topic is None else topic.partitions.get(partition.index)
        return known is not None and self._node.id not in known.isr

    def forget(self, partition: Partition) -> None:
        self.led.discard(partition)
        self.followed.discard(partition)
