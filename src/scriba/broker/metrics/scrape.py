"""One look at a node: where every metric reads its value.

Nothing is collected beforehand: the numbers are read when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from scriba.broker.observe.counters import CoordinatorCounters, Counters, NetworkCounters
from scriba.broker.ports import Configuration, Counting, MetadataView, WorldAccess
from scriba.prometheus import Family, Value

if TYPE_CHECKING:
    from scriba.broker.coordinators.runtime import CoordinatorRuntime
    from scriba.broker.jobs.clock_guard import ClockGuard
    from scriba.broker.jobs.compaction import LogCleaner
    from scriba.broker.metadata.controller import QuorumController
    from scriba.broker.metadata.lifecycle import BrokerLifecycle
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.server import Server
    from scriba.broker.observe.events import Events
    from scriba.broker.partitions.replicas import Replicas
    from scriba.controller.image import BrokerImage
    from scriba.controller.partitions.balancing import Balancer

T = TypeVar("T")


class Observed(Configuration, Counting, MetadataView, WorldAccess, Protocol):
    """A node, as whoever scrapes it sees it."""

    @property
    def clock_guard(self) -> ClockGuard: ...

    @property
    def lifecycle(self) -> BrokerLifecycle: ...

    @property
    def log_cleaner(self) -> LogCleaner: ...

    @property
    def metadata(self) -> QuorumController: ...

    @property
    def events(self) -> Events: ...

    @property
    def group_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def server(self) -> Server: ...

    def api_entries(self) -> Iterator[ApiEntry]:
        """All that is served, on whatever listener."""


class Scrape:
    """One look at a node; what takes a pass over all partitions is counted once."""

    def __init__(self, node: Observed) -> None:
        self.node = node
        self.counters: Counters = node.counters
        self.network: NetworkCounters = node.server.counters
        self.partitions = len(node.replicas)
        self.leaders = node.replicas.new_leaders()
        self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigning = 0
        self.follower_lag: dict[str, int] = {}
        """Of each follower of partitions led from here, the records it is behind, by its id."""
        for partition in node.replicas:
            leader = partition.leader
            if leader is not None:
                self.leaders += 1
                self.under_replicated += leader.under_replicated
                self.reassigning += leader.reassigning
                self.under_min_isr += leader.under_min_isr
                self.at_min_isr += leader.at_min_isr
                for replica, follower in leader.followers.items():
                    lag = max(leader.own_end - max(follower.end_offset, 0), 0)
                    id_ = str(replica)
                    self.follower_lag[id_] = max(self.follower_lag.get(id_, 0), lag)

    def apis(self, number: Callable[[ApiEntry], int]) -> dict[str, int]:
        """A number of each API that was ever asked for, over all listeners."""
        found: dict[str, int] = {}
        for api in self.node.api_entries():
            if api.count:
                found[api.name] = found.get(api.name, 0) + number(api)
        return found

    def coordinators(self, number: Callable[[CoordinatorCounters], T]) -> dict[str, T]:
        both = (self.node.group_coordinators, self.node.txn_coordinators)
        return {each.topic: number(each.counts) for each in both}

    def since_cleaner_ran_ms(self) -> int:
        ran = self.node.log_cleaner.gauges.last_run_ms
        return self.node.world.clock.mono_ms() - ran if ran >= 0 else -1

    def fenced_brokers(self) -> int:
        return sum(broker.fenced for broker in self.node.image.brokers.values())

    def offline_partitions(self) -> int:
        active = self.node.metadata.active
        return 0 if active is None else active.machine.offline_count

    @property
    def balancer(self) -> Balancer | None:
        active = self.node.metadata.active
        return None if active is None else active.machine.balancer

    def broker_states(self) -> dict[str, int]:
        """Of each broker, as the active controller has it; the others tell nothing."""
        if self.node.metadata.active is None:
            return {}
        brokers = self.node.image.brokers.values()
        return {str(broker.id): _state(broker) for broker in brokers}

    def since_heartbeats_ms(self) -> dict[str, int]:
        """How long ago each unfenced broker was heard, by the active controller."""
        active = self.node.metadata.active
        if active is None:
            return {}
        now, sessions = self.node.world.clock.mono_ms(), active.machine.state.sessions
        return {str(at): now - session.last_contact for at, session in sorted(sessions.items())}

    def since_answered_s(self) -> float:
        heard = self.node.lifecycle.heard_at
        return (self.node.world.clock.mono_ms() - heard) / 1000 if heard >= 0 else -1


def _state(broker: BrokerImage) -> int:
    """Kafka's numbers (KIP-1131)."""
    if broker.fenced:
        return 10
    return 20 if broker.in_controlled_shutdown else 30


class Metric(NamedTuple):
    family: Family
    read: Callable[[Scrape], Value]
