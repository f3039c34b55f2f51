"""Every metric of a node, declared with where its value is read.

Names are those under which dashboards ask for Kafka's, as the usual JMX exporter makes them; what
Kafka does not have begins with `scriba_`. Nothing is collected beforehand: the numbers are read
when somebody scrapes. The tables of docs/metrics.md are made from `METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from scriba import prometheus
from scriba.broker.observe.counters import CoordinatorCounters, Counters, NetworkCounters
from scriba.broker.ports import Configuration, Counting, MetadataView, WorldAccess
from scriba.prometheus import Family, Value, counter, gauge, histogram
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

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


def render(node: Observed) -> str:
    """All numbers of a node."""
    scrape = Scrape(node)
    return prometheus.render((family, read(scrape)) for family, read in METRICS)


_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_REQUESTS: Final = "kafka_network_requestmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_MANAGER: Final = "kafka_log_logcleanermanager_"
_CLEANER: Final = "kafka_log_logcleaner_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_GROUPS: Final = "kafka_server_group_coordinator_metrics_"
_TRANSACTIONS: Final = "kafka_server_transaction_coordinator_metrics_"


def _records() -> Iterator[Metric]:
    yield Metric(
        counter(f"{_TOPICS}messagesin_total", "Records that producers sent and the log took."),
        lambda s: s.counters.messages_in,
    )
    yield Metric(
        counter(f"{_TOPICS}bytesin_total", "Bytes of record batches from producers."),
        lambda s: s.counters.topic_bytes_in,
    )
    yield Metric(
        counter(f"{_TOPICS}bytesout_total", "Bytes of record batches to consumers."),
        lambda s: s.counters.topic_bytes_out,
    )
    yield Metric(
        counter(
            f"{_TOPICS}failedproducerequests_total", "Partitions of Produce answered with an error."
        ),
        lambda s: s.counters.failed_produce,
    )
    yield Metric(
        counter(
            f"{_TOPICS}failedfetchrequests_total",
            "Partitions of Fetch, and whole fetches of a session, answered with an error.",
        ),
        lambda s: s.counters.failed_fetch,
    )
    yield Metric(
        counter(
            "scriba_produce_duplicates_total",
            "Batches of idempotent producers that were in the log already.",
        ),
        lambda s: s.counters.duplicates,
    )
    yield Metric(
        counter(
            "scriba_page_cache_misses_total",
            "Reads of a log that waited for the device off the loop, for a lookup or to send.",
            "stage",
        ),
        lambda s: {
            "lookup": s.counters.page_cache_misses,
            "send": s.network.page_cache_misses,
        },
    )


def _requests() -> Iterator[Metric]:
    yield Metric(
        counter(f"{_REQUESTS}requests_total", "Requests, by API.", "request"),
        lambda s: s.apis(lambda api: api.count),
    )
    yield Metric(
        counter(f"{_REQUESTS}errors_total", "Requests refused as a whole, by API.", "request"),
        lambda s: s.apis(lambda api: api.errors),
    )
    yield Metric(
        counter(
            "scriba_requests_large_total",
            "Requests of so many elements that they were handled in slices, by API.",
            "request",
        ),
        lambda s: s.apis(lambda api: api.large),
    )
    yield Metric(
        counter(
            "scriba_fastpath_requests_total",
            "Requests that a fast path answered, by API; the rest took the general path.",
            "request",
        ),
        lambda s: {
            "Produce": s.counters.fastpath_produces,
            "Fetch": s.counters.fastpath_fetches,
            "OffsetCommit": s.counters.fastpath_commits,
        },
    )


def _network() -> Iterator[Metric]:
    yield Metric(
        gauge(f"{_SOCKETS}connection_count", "Open connections."),
        lambda s: s.node.server.connections,
    )
    yield Metric(
        counter(f"{_SOCKETS}connection_creation_total", "Connections accepted."),
        lambda s: s.network.accepted,
    )
    yield Metric(
        counter(f"{_SOCKETS}connection_close_total", "Connections ended."),
        lambda s: sum(s.network.closed.values()),
    )
    yield Metric(
        counter(f"{_SOCKETS}incoming_byte_total", "Bytes received."),
        lambda s: s.network.bytes_in,
    )
    yield Metric(
        counter(f"{_SOCKETS}outgoing_byte_total", "Bytes sent."),
        lambda s: s.network.bytes_out,
    )
    yield Metric(
        counter("scriba_connections_closed_total", "Connections ended, by reason.", "reason"),
        lambda s: s.network.closed,
    )
    yield Metric(
        counter(
            "scriba_connections_refused_total",
            "Connections refused, by the limit reached.",
            "reason",
        ),
        lambda s: s.network.refused,
    )
    yield Metric(
        counter(
            "scriba_receive_buffers_lost_total",
            "Receive buffers lost to a view that outlived its request: a defect.",
        ),
        lambda s: s.node.server.pool.kept_views,
    )
    yield Metric(
        counter(
            "scriba_scrapes_refused_total",
            "Connections to the metrics listener beyond those served at once.",
        ),
        lambda s: s.counters.scrapes_refused,
    )


def _node() -> Iterator[Metric]:
    yield Metric(
        counter("scriba_events_total", "Events, by kind (see events.md).", "kind"),
        lambda s: {kind.label: count for kind, count in s.node.events.counts.items()},
    )
    yield Metric(
        histogram(
            "scriba_eventloop_lag_seconds",
            "How late the event loop was, looked at forty times a second.",
        ),
        lambda s: s.node.world.lag,
    )
    yield Metric(
        gauge("scriba_eventloop_lag_max_seconds", "The longest since the start."),
        lambda s: s.node.world.lag.max_ms / 1000,
    )
    yield Metric(
        gauge(
            "scriba_retention_paused",
            "1 while the clock is in doubt and nothing is deleted for its age.",
        ),
        lambda s: s.node.clock_guard.paused,
    )
    yield Metric(
        gauge(
            "scriba_clock_ahead_seconds", "How far the clock in doubt is ahead of the one believed."
        ),
        lambda s: s.node.clock_guard.watch.jump_ms / 1000,
    )


def _replicas() -> Iterator[Metric]:
    yield Metric(
        gauge(f"{_REPLICAS}partitioncount", "Partitions hosted here."), lambda s: s.partitions
    )
    yield Metric(gauge(f"{_REPLICAS}leadercount", "Partitions led from here."), lambda s: s.leaders)
    yield Metric(
        gauge(
            f"{_REPLICAS}underreplicatedpartitions",
            "Partitions led from here with replicas out of sync, observers and those being added "
            "apart.",
        ),
        lambda s: s.under_replicated,
    )
    yield Metric(
        gauge(
            f"{_REPLICAS}reassigningpartitions",
            "Partitions led from here whose replicas are being reassigned.",
        ),
        lambda s: s.reassigning,
    )
    yield Metric(
        gauge(
            f"{_REPLICAS}offlinereplicacount",
            "Replicas out of use: damaged, without room, or in a directory that is offline.",
        ),
        lambda s: s.node.replicas.offline_count,
    )
    yield Metric(
        gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that failed."),
        lambda s: sum(directory.offline for directory in s.node.replicas.dirs),
    )
    yield Metric(
        gauge(
            "scriba_storage_closed_log_dirs",
            "Log directories that refuse records of clients, their volume being nearly full.",
        ),
        lambda s: sum(directory.closed is not None for directory in s.node.replicas.dirs),
    )
    yield Metric(
        counter(
            "scriba_storage_refused_writes_total",
            "Writes that a device did not take, most likely for lack of room.",
        ),
        lambda s: s.counters.refused_writes,
    )


def _replication() -> Iterator[Metric]:
    yield Metric(
        counter(f"{_REPLICAS}isrshrinks_total", "Replicas that left an in-sync set."),
        lambda s: s.counters.isr_shrinks,
    )
    yield Metric(
        counter(f"{_REPLICAS}isrexpands_total", "Replicas that joined an in-sync set."),
        lambda s: s.counters.isr_expands,
    )
    yield Metric(
        counter(
            f"{_REPLICAS}failedisrupdates_total",
            "Changes of in-sync sets that the controller refused, or did not answer.",
        ),
        lambda s: s.counters.failed_isr_updates,
    )
    yield Metric(
        gauge(
            f"{_REPLICAS}underminisrpartitioncount",
            "Partitions led from here with fewer replicas in sync than min.insync.replicas.",
        ),
        lambda s: s.under_min_isr,
    )
    yield Metric(
        gauge(
            f"{_REPLICAS}atminisrpartitioncount",
            "Partitions led from here with exactly min.insync.replicas replicas in sync.",
        ),
        lambda s: s.at_min_isr,
    )
    yield Metric(
        gauge(
            "scriba_follower_lag_records",
            "Records by which a follower is behind in the worst of the partitions led from here.",
            "follower",
        ),
        lambda s: s.follower_lag,
    )
    yield Metric(
        gauge("scriba_observer_replicas", "Replicas here that observe."),
        lambda s: len(s.node.replicas.observers),
    )
    yield Metric(
        gauge("scriba_observer_serving_replicas", "Those of them that consumers may read from."),
        lambda s: s.node.replicas.observers.serving,
    )
    yield Metric(
        gauge(
            "scriba_observer_lag_records",
            "Records by which the worst observer here is behind what is committed.",
        ),
        lambda s: s.node.replicas.observers.max_lag,
    )
    yield Metric(
        gauge(
            "scriba_observer_lag_seconds",
            "How long ago the worst observer here had all that was committed then.",
        ),
        lambda s: s.node.replicas.observers.max_behind_ms(s.node.world.clock.now()) / 1000,
    )
    yield Metric(
        gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Records by which the worst replica here is behind what is committed.",
        ),
        lambda s: s.node.replicas.fetchers.max_lag,
    )
    yield Metric(
        gauge(
            "kafka_server_replicafetchermanager_failedpartitionscount",
            "Replicas here that cannot follow their leader.",
        ),
        lambda s: s.node.replicas.fetchers.failed,
    )
    yield Metric(
        counter(f"{_TOPICS}replicationbytesin_total", "Bytes of record batches from leaders."),
        lambda s: s.counters.replication_bytes_in,
    )
    yield Metric(
        counter(f"{_TOPICS}replicationbytesout_total", "Bytes of record batches to followers."),
        lambda s: s.counters.replication_bytes_out,
    )
    yield Metric(
        counter(
            "scriba_committed_records_lost_total",
            "Committed records that replicas here took away after an unclean election.",
        ),
        lambda s: s.counters.records_lost,
    )


def _controller() -> Iterator[Metric]:
    yield Metric(
        gauge(f"{_CONTROLLER}activecontrollercount", "1 on the active controller, 0 elsewhere."),
        lambda s: int(s.node.metadata.active is not None),
    )
    yield Metric(
        gauge(f"{_CONTROLLER}activebrokercount", "Brokers that take part in the cluster."),
        lambda s: len(s.node.image.brokers) - s.fenced_brokers(),
    )
    yield Metric(
        gauge(f"{_CONTROLLER}fencedbrokercount", "Brokers that are registered and fenced."),
        lambda s: s.fenced_brokers(),
    )
    yield Metric(
        gauge(
            f"{_CONTROLLER}offlinepartitionscount",
            "On the active controller: partitions that nobody leads.",
        ),
        lambda s: s.offline_partitions(),
    )
    yield Metric(
        gauge(
            "scriba_balance_brokers",
            "On the active controller: brokers that it is filling or emptying by itself.",
        ),
        lambda s: 0 if s.balancer is None else len(s.balancer.running),
    )
    yield Metric(
        gauge(
            "scriba_balance_partitions_left",
            "On the active controller: partitions that it is still to move by itself.",
        ),
        lambda s: 0 if s.balancer is None else s.balancer.left,
    )
    yield Metric(
        counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Elections of this broker that may have lost acknowledged records.",
        ),
        lambda s: s.counters.unclean_elections,
    )
    yield Metric(
        counter(
            "scriba_controller_replicas_asked_total",
            "Replicas that this controller asked what they have, before unclean elections.",
        ),
        lambda s: s.counters.replicas_asked,
    )
    yield Metric(
        counter(
            "scriba_controller_replicas_passed_over_total",
            "Those of them that did not tell within `scriba.unclean.wait.ms`.",
        ),
        lambda s: s.counters.replicas_passed_over,
    )
    yield Metric(
        gauge(
            f"{_CONTROLLER}brokerregistrationstate",
            "On the active controller: 10 fenced, 20 in controlled shutdown, 30 active.",
            "broker",
        ),
        lambda s: s.broker_states(),
    )
    yield Metric(
        gauge(
            f"{_CONTROLLER}timesincelastheartbeatreceivedms",
            "On the active controller: how long ago an unfenced broker was heard.",
            "broker",
        ),
        lambda s: s.since_heartbeats_ms(),
    )
    yield Metric(
        gauge(
            "kafka_server_broker_metadata_metrics_last_applied_record_offset",
            "The last record of the metadata log that this node has applied.",
        ),
        lambda s: s.node.image.last_offset,
    )
    yield Metric(
        gauge(
            "scriba_controller_answer_age_seconds",
            "How long ago a controller answered this broker's heartbeat; -1 before the first.",
        ),
        lambda s: s.since_answered_s(),
    )


def _cleaner() -> Iterator[Metric]:
    yield Metric(
        gauge(f"{_MANAGER}max_dirty_percent", "Of the dirtiest log that was due at the last look."),
        lambda s: s.node.log_cleaner.gauges.max_dirty_percent,
    )
    yield Metric(
        gauge(f"{_MANAGER}time_since_last_run_ms", "Since the last look; -1 before it."),
        lambda s: s.since_cleaner_ran_ms(),
    )
    yield Metric(
        gauge(
            f"{_MANAGER}uncleanable_partitions_count",
            "Partitions that compaction leaves alone for damage.",
        ),
        lambda s: s.node.log_cleaner.gauges.uncleanable_partitions_count,
    )
    yield Metric(
        gauge(f"{_MANAGER}uncleanable_bytes", "Their size."),
        lambda s: s.node.log_cleaner.gauges.uncleanable_bytes,
    )
    yield Metric(
        gauge(
            f"{_CLEANER}max_compaction_delay_secs", "How far a log is beyond max.compaction.lag.ms."
        ),
        lambda s: s.node.log_cleaner.gauges.max_compaction_delay_ms / 1000,
    )
    yield Metric(
        gauge(f"{_CLEANER}max_clean_time_secs", "The longest compaction of a log."),
        lambda s: s.node.log_cleaner.gauges.max_clean_time_ms / 1000,
    )
    yield Metric(
        gauge(f"{_CLEANER}cleaner_recopy_percent", "What the last pass wrote of what it read."),
        lambda s: s.node.log_cleaner.gauges.cleaner_recopy_percent,
    )
    yield Metric(
        gauge(
            f"{_CLEANER}max_buffer_utilization_percent",
            "How full the map of keys was in the last pass.",
        ),
        lambda s: s.node.log_cleaner.gauges.max_buffer_utilization_percent,
    )
    yield Metric(
        gauge("scriba_cleaner_in_progress", "Logs under compaction now."),
        lambda s: s.node.log_cleaner.gauges.in_progress,
    )
    yield Metric(
        counter("scriba_cleaner_logs_total", "Logs compacted."), lambda s: s.counters.compactions
    )
    yield Metric(
        counter("scriba_cleaner_failed_total", "Compactions given up or put off."),
        lambda s: s.counters.failed_compactions,
    )
    yield Metric(
        counter("scriba_cleaner_read_bytes_total", "Bytes that cleaners read."),
        lambda s: s.counters.compaction_bytes_read,
    )
    yield Metric(
        counter("scriba_cleaner_written_bytes_total", "Bytes that cleaners wrote."),
        lambda s: s.counters.compaction_bytes_written,
    )


def _load_times(prefix: str, topic: str) -> Iterator[Metric]:
    yield Metric(
        gauge(f"{prefix}partition_load_time_max", f"Longest load of a partition of {topic}, ms."),
        lambda s: s.coordinators(lambda counts: counts.loads.max_ms)[topic],
    )
    yield Metric(
        gauge(f"{prefix}partition_load_time_avg", f"Mean load of a partition of {topic}, ms."),
        lambda s: s.coordinators(lambda counts: counts.loads.mean_ms)[topic],
    )


def _coordinators() -> Iterator[Metric]:
    yield from _load_times(_GROUPS, OFFSETS_TOPIC)
    yield from _load_times(_TRANSACTIONS, TRANSACTIONS_TOPIC)
    yield Metric(
        histogram(
            "scriba_coordinator_load_seconds",
            "How long it took to load a partition of a coordinator's topic.",
            "topic",
        ),
        lambda s: s.coordinators(lambda counts: counts.loads),
    )
    yield Metric(
        counter(
            "scriba_coordinator_records_appended_total",
            "Records that coordinators stored.",
            "topic",
        ),
        lambda s: s.coordinators(lambda counts: counts.records_appended),
    )
    yield Metric(
        counter(
            "scriba_coordinator_failures_total", "Coordinators that had to be built again.", "topic"
        ),
        lambda s: s.coordinators(lambda counts: counts.failures),
    )


SECTIONS: Final[dict[str, tuple[Metric, ...]]] = {
    "Records": (*_records(),),
    "Requests": (*_requests(),),
    "Connections": (*_network(),),
    "The node": (*_node(),),
    "The controller and its brokers": (*_controller(),),
    "Partitions and storage": (*_replicas(),),
    "Replication": (*_replication(),),
    "Compaction": (*_cleaner(),),
    "Coordinators": (*_coordinators(),),
}
"""As the page has them."""

METRICS: Final = tuple(metric for section in SECTIONS.values() for metric in section)
"""In the order in which they are told."""
