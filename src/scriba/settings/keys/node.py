"""The settings of a node, declared.

Names, types and bounds are Kafka's. Defaults are too, except where a node must come up with no
settings at all: an id, both roles, a loopback listener, a directory.
"""

from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final

from scriba.config import Importance, Kind, Scope, Setting, setting
from scriba.settings.balance_runs import unknown_run
from scriba.settings.keys.cleaner import CleanerKeys
from scriba.settings.keys.coordinators import GroupKeys, TransactionKeys
from scriba.settings.keys.metrics import MetricsKeys
from scriba.settings.listeners import PROTOCOLS
from scriba.settings.topic import MAX_INT, MAX_LONG, TopicSettings

HIGH, LOW = Importance.HIGH, Importance.LOW
CLUSTER_WIDE = Scope.CLUSTER_WIDE


def for_topics(*, default: str, importance: Importance = Importance.MEDIUM) -> Any:
    """Declares what a topic gets that does not set `default` itself: same type, same bounds."""
    shared: Setting = TopicSettings.table[default]
    return replace(
        shared,
        name="",
        synonyms=(),
        scope=CLUSTER_WIDE,
        importance=importance,
        doc=f"Default of the topic setting `{default}`.",
    )


def _per_ip(text: str) -> str | None:
    try:
        parse_overrides(text)
    except ValueError:
        return "must be address:count,address:count; names of hosts are not looked up"
    return None


def parse_overrides(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: address to count."""
    counts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = item.rpartition(":")
        if int(count) < 0:
            raise ValueError(item)
        counts[str(ip_address(host.strip().strip("[]")))] = int(count)
    return counts


RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"


def unknown_selector(name: str) -> str | None:
    if name in (RACK_AWARE_SELECTOR, LEADER_SELECTOR, ""):
        return None
    return (
        f"must be {RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}: selectors written in Java cannot be "
        "loaded"
    )


class NodeKeys(GroupKeys, TransactionKeys, CleanerKeys, MetricsKeys):
    # --- who it is and where it listens -------------------------------------------------------
    node_id: int = setting(
        Kind.INT,
        default=1,
        at_least=0,
        importance=HIGH,
        doc="Number of this node, unique in its cluster and kept for life.",
    )
    broker_id: int = setting(
        Kind.INT, default=-1, importance=HIGH, doc="Older name of `node.id`; -1 when not used."
    )
    process_roles: tuple[str, ...] = setting(
        Kind.LIST,
        default=("broker", "controller"),
        choices=("broker", "controller"),
        importance=HIGH,
        doc="What this node does. A single node does both.",
    )
    broker_rack: str | None = setting(
        Kind.STRING,
        default=None,
        doc="Rack of this node. New partitions have their replicas in different racks, and with "
        "`replica.selector.class` consumers read from their own.",
    )
    listeners: tuple[str, ...] = setting(
        Kind.LIST,
        default=("PLAINTEXT://127.0.0.1:9092",),
        importance=HIGH,
        doc="Addresses to listen on, as `NAME://host:port`. Port 0 takes any free port; an empty "
        "host is every address of the machine, which needs `scriba.allow.insecure.bind`.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        importance=HIGH,
        doc="Addresses told to clients, where they differ from `listeners`.",
    )
    listener_security_protocol_map: str = setting(
        Kind.STRING,
        default="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        importance=LOW,
        doc="Security protocol of each listener name, as `NAME:PROTOCOL`.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        Kind.LIST,
        default=("CONTROLLER",),
        importance=HIGH,
        doc="Listener names that serve the controller. A single node needs none of them bound.",
    )
    inter_broker_listener_name: str | None = setting(
        Kind.STRING,
        default=None,
        doc="Listener on which brokers reach each other; else the one of "
        "`security.inter.broker.protocol`.",
    )
    security_inter_broker_protocol: str = setting(
        Kind.STRING,
        default="PLAINTEXT",
        choices=PROTOCOLS,
        doc="Protocol that picks the listener between brokers when none is named.",
    )
    controller_quorum_voters: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        importance=HIGH,
        doc="The controllers, as `id@host:port`. A single node names itself or nobody. Where the "
        "metadata log names the voters itself (kraft.version 1), these are only whom to ask first.",
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        importance=HIGH,
        doc="Where to find controllers, as `host:port`. A single node names itself or nobody.",
    )
    controller_quorum_auto_join_enable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        importance=LOW,
        doc="Whether a controller that is no voter asks to be one; a voter with its id and another "
        "directory, which is this controller before it lost its disk, is removed first.",
    )
    scriba_allow_insecure_bind: bool = setting(
        Kind.BOOLEAN,
        default=False,
        doc="Whether a listener without authentication may be bound to an address that other "
        "machines reach.",
    )
    scriba_fast_paths: bool = setting(
        Kind.BOOLEAN,
        default=True,
        scope=CLUSTER_WIDE,
        importance=LOW,
        doc="Whether a Produce, Fetch, OffsetCommit or Metadata request of the usual kind is "
        "answered without being decoded into objects. Answers and logs are the same either way; "
        "false costs more CPU time, and tells whether a fast path is to blame for what you see.",
    )
    scriba_retention_paused_at_ms: int = setting(
        Kind.LONG,
        default=-1,
        at_least=-1,
        scope=Scope.PER_BROKER,
        doc="Latest time that the node trusts while its clock is in doubt; nothing is deleted "
        "for its age meanwhile. The node sets this; `scriba log retention resume` deletes "
        "it, and retention continues.",
    )
    scriba_retention_paused_for_ms: int = setting(
        Kind.LONG,
        default=0,
        at_least=0,
        scope=Scope.PER_BROKER,
        doc="Time that the node has run, over all starts, since its clock is in doubt; after a "
        "day the clock is trusted again. The node sets this.",
    )
    # --- where it keeps its data --------------------------------------------------------------
    log_dir: tuple[str, ...] = setting(
        Kind.LIST,
        default=("scriba-data",),
        importance=HIGH,
        doc="Directory of the data when `log.dirs` is not set.",
    )
    log_dirs: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        importance=HIGH,
        doc="Directories of the data; partitions are spread over them.",
    )
    metadata_log_dir: str | None = setting(
        Kind.STRING,
        default=None,
        importance=HIGH,
        doc="Directory of the cluster metadata log; else the first of `log.dirs`.",
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        scope=Scope.PER_BROKER,
        doc="Those of `log.dirs` that get no new partitions; `*` for all of them.",
    )
    scriba_log_dirs_write_watermark: float = setting(
        Kind.DOUBLE,
        default=0.0,
        at_least=0.0,
        at_most=1.0,
        scope=CLUSTER_WIDE,
        doc="Share of a volume in use, such as 0.9, at which its log directories refuse records "
        "of clients and the broker hands over their leaderships, until there is room again; "
        "0 for none.",
    )
    scriba_metadata_reserve_bytes: int = setting(
        Kind.LONG,
        default=1 << 20,
        at_least=0,
        at_most=1 << 30,
        doc="Room on the device that a file beside the metadata log keeps for it. When the device "
        "is full, metadata is written into that room; 0 for none.",
    )
    # --- connections and requests -------------------------------------------------------------
    socket_request_max_bytes: int = setting(
        Kind.INT,
        default=104_857_600,
        at_least=1,
        importance=HIGH,
        doc="Largest request; a longer one closes its connection before memory is taken.",
    )
    queued_max_request_bytes: int = setting(
        Kind.LONG,
        default=-1,
        doc="Most bytes of requests that wait in memory, of all connections together: large ones "
        "that are on their way, and those that are worked on. When it is used up, large requests "
        "wait for room, the smallest first, and peers whose request comes too slowly meanwhile "
        "lose their connection. Requests of more than 4 MB share half of it. One that is larger "
        "than half of it comes alone, and only half of it counts: so up to half more may be "
        "taken. -1 for an eighth of the memory that the node may have, and at least "
        "`socket.request.max.bytes`.",
    )
    connections_max_idle_ms: int = setting(
        Kind.LONG,
        default=600_000,
        doc="Idle time after which a connection is closed; -1 for never.",
    )
    max_connections: int = setting(
        Kind.INT,
        default=MAX_INT,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Most connections at a time; further ones are closed at once.",
    )
    max_connections_per_ip: int = setting(
        Kind.INT,
        default=MAX_INT,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Most connections at a time from one address.",
    )
    max_connections_per_ip_overrides: str = setting(
        Kind.STRING,
        default="",
        check=_per_ip,
        scope=CLUSTER_WIDE,
        doc="Exceptions from `max.connections.per.ip`, as `address:count`.",
    )
    fetch_max_bytes: int = setting(
        Kind.INT,
        default=57_671_680,
        at_least=1024,
        doc="Most bytes of records in one answer to a fetch.",
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        Kind.INT, default=1000, at_least=0, doc="Fetch sessions remembered at a time."
    )
    max_request_partition_size_limit: int = setting(
        Kind.INT,
        default=2000,
        at_least=1,
        doc="Most partitions in one answer that describes topic partitions.",
    )
    request_timeout_ms: int = setting(
        Kind.INT,
        default=30_000,
        importance=HIGH,
        doc="Time a broker gives another node to answer.",
    )
    socket_connection_setup_timeout_ms: int = setting(
        Kind.LONG,
        default=10_000,
        at_least=1,
        doc="Time a broker waits for another node to take its connection; it doubles with each "
        "failure.",
    )
    socket_connection_setup_timeout_max_ms: int = setting(
        Kind.LONG,
        default=30_000,
        at_least=1,
        doc="Longest `socket.connection.setup.timeout.ms` after several failures.",
    )
    # --- topics -------------------------------------------------------------------------------
    num_partitions: int = setting(
        Kind.INT, default=1, at_least=1, doc="Partitions of a topic created without a count."
    )
    default_replication_factor: int = setting(
        Kind.INT,
        default=1,
        doc="Replicas of a topic created without a factor. Where it is not set: three, or as many "
        "as there are brokers; with three, the topic gets `min.insync.replicas=2` unless that is "
        "set.",
    )
    auto_create_topics_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        importance=HIGH,
        doc="Whether asking for an unknown topic creates it.",
    )
    delete_topic_enable: bool = setting(
        Kind.BOOLEAN, default=True, importance=HIGH, doc="Whether topics may be deleted."
    )
    message_max_bytes: int = for_topics(default="max.message.bytes", importance=HIGH)
    min_insync_replicas: int = for_topics(default="min.insync.replicas", importance=HIGH)
    unclean_leader_election_enable: bool = for_topics(
        default="unclean.leader.election.enable", importance=HIGH
    )
    compression_type: str = for_topics(default="compression.type", importance=HIGH)
    compression_gzip_level: int = for_topics(default="compression.gzip.level")
    compression_lz4_level: int = for_topics(default="compression.lz4.level")
    compression_zstd_level: int = for_topics(default="compression.zstd.level")
    # --- the log ------------------------------------------------------------------------------
    log_cleanup_policy: tuple[str, ...] = for_topics(default="cleanup.policy")
    log_segment_bytes: int = for_topics(default="segment.bytes", importance=HIGH)
    log_roll_ms: int | None = setting(
        Kind.LONG,
        default=None,
        at_least=1,
        importance=HIGH,
        scope=CLUSTER_WIDE,
        synonyms=("log.roll.hours",),
        doc="Default of the topic setting `segment.ms`.",
    )
    log_roll_hours: int = setting(
        Kind.INT,
        default=168,
        at_least=1,
        importance=HIGH,
        doc="`log.roll.ms` in hours, when that is not set.",
    )
    log_roll_jitter_ms: int | None = setting(
        Kind.LONG,
        default=None,
        at_least=0,
        importance=HIGH,
        scope=CLUSTER_WIDE,
        synonyms=("log.roll.jitter.hours",),
        doc="Default of the topic setting `segment.jitter.ms`.",
    )
    log_roll_jitter_hours: int = setting(
        Kind.INT,
        default=0,
        at_least=0,
        importance=HIGH,
        doc="`log.roll.jitter.ms` in hours, when that is not set.",
    )
    log_index_size_max_bytes: int = for_topics(default="segment.index.bytes")
    log_index_interval_bytes: int = for_topics(default="index.interval.bytes")
    log_retention_ms: int | None = setting(
        Kind.LONG,
        default=None,
        importance=HIGH,
        scope=CLUSTER_WIDE,
        synonyms=("log.retention.minutes", "log.retention.hours"),
        doc="Default of the topic setting `retention.ms`; -1 keeps data for ever.",
    )
    log_retention_minutes: int | None = setting(
        Kind.INT,
        default=None,
        importance=HIGH,
        doc="`log.retention.ms` in minutes, when that is not set.",
    )
    log_retention_hours: int = setting(
        Kind.INT,
        default=168,
        importance=HIGH,
        doc="`log.retention.ms` in hours, when neither that nor the minutes are set.",
    )
    log_retention_bytes: int = for_topics(default="retention.bytes", importance=HIGH)
    log_retention_check_interval_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=1,
        doc="Interval between checks for segments to delete.",
    )
    log_segment_delete_delay_ms: int = for_topics(default="file.delete.delay.ms", importance=HIGH)
    log_flush_interval_messages: int = for_topics(default="flush.messages", importance=HIGH)
    log_flush_interval_ms: int | None = setting(
        Kind.LONG,
        default=None,
        importance=HIGH,
        scope=CLUSTER_WIDE,
        synonyms=("log.flush.scheduler.interval.ms",),
        doc="Default of the topic setting `flush.ms`.",
    )
    log_flush_scheduler_interval_ms: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        importance=HIGH,
        doc="`log.flush.interval.ms` when that is not set.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        Kind.INT,
        default=60_000,
        at_least=0,
        importance=HIGH,
        doc="Interval between checkpoints of the recovery points.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        Kind.INT,
        default=60_000,
        at_least=0,
        importance=HIGH,
        doc="Interval between checkpoints of the log start offsets.",
    )
    log_message_timestamp_type: str = for_topics(default="message.timestamp.type")
    log_message_timestamp_before_max_ms: int = for_topics(default="message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = for_topics(default="message.timestamp.after.max.ms")
    log_preallocate: bool = for_topics(default="preallocate")
    log_cleaner_delete_retention_ms: int = for_topics(default="delete.retention.ms")
    log_cleaner_min_compaction_lag_ms: int = for_topics(default="min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = for_topics(default="max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = for_topics(default="min.cleanable.dirty.ratio")
    log_local_retention_ms: int = for_topics(default="local.retention.ms")
    log_local_retention_bytes: int = for_topics(default="local.retention.bytes")
    producer_id_expiration_ms: int = setting(
        Kind.INT,
        default=86_400_000,
        at_least=1,
        importance=LOW,
        scope=CLUSTER_WIDE,
        doc="Time after its last write at which a partition forgets an idempotent producer.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        Kind.INT,
        default=600_000,
        at_least=1,
        importance=LOW,
        internal=True,
        doc="Interval between checks for producers to forget.",
    )
    # --- replication and the controller -------------------------------------------------------
    replica_lag_time_max_ms: int = setting(
        Kind.LONG,
        default=30_000,
        importance=HIGH,
        doc="Time without catching up after which a follower leaves the in-sync set.",
    )
    scriba_replica_stall_ms: int = setting(
        Kind.LONG,
        default=0,
        at_least=100,
        also=0,
        doc="Time after which a follower that delays acknowledgements leaves the ISR, if "
        "`min.insync.replicas` remain without it; 0 for never. A leader that no follower reaches "
        "hands over its leadership after this time, or half of `replica.lag.time.max.ms`.",
    )
    scriba_unclean_wait_ms: int = setting(
        Kind.LONG,
        default=1_000,
        at_least=0,
        at_most=60_000,
        scope=CLUSTER_WIDE,
        doc="Time that an unclean election waits for live replicas to report the end of their "
        "logs, before the one with the most complete log is elected. 0 elects the first live "
        "replica without asking.",
    )
    unclean_leader_election_interval_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=1,
        internal=True,
        doc="Interval at which the active controller looks at all partitions without a leader, "
        "for one that may be elected uncleanly. Whatever changes that is noticed at once besides.",
    )
    replica_selector_class: str | None = setting(
        Kind.STRING,
        default=None,
        check=unknown_selector,
        doc="Which replica a consumer is told to read from. "
        f"`{RACK_AWARE_SELECTOR}` names one in the consumer's rack (`client.rack`); "
        f"`{LEADER_SELECTOR}`, and no value, the leader.",
    )
    scriba_observer_max_lag_ms: int = setting(
        Kind.LONG,
        default=10_000,
        at_least=1_000,
        scope=CLUSTER_WIDE,
        doc="Lag, in time, at which an observer (`scriba.replica.placement`) stops serving "
        "consumers and sends them back to the leader.",
    )
    auto_leader_rebalance_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        importance=HIGH,
        doc="Whether the first replica of a partition leads again by itself, once all replicas of "
        "its broker are in sync.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        Kind.LONG,
        default=300,
        at_least=1,
        importance=HIGH,
        doc="Interval between the rounds in which preferred leaders come back, a few a second.",
    )
    scriba_balance_auto: bool = setting(
        Kind.BOOLEAN,
        default=False,
        scope=CLUSTER_WIDE,
        doc="Whether the controller moves replicas by itself: to a broker that joins, and away "
        "from one that has been gone for `scriba.balance.gone.ms`.",
    )
    scriba_balance_gone_ms: int = setting(
        Kind.LONG,
        default=1_800_000,
        at_least=1,
        scope=CLUSTER_WIDE,
        doc="Time that a broker has to be gone before the controller moves its replicas to "
        "others (`scriba.balance.auto`).",
    )
    scriba_balance_run: str = setting(
        Kind.STRING,
        default="",
        check=unknown_run,
        scope=CLUSTER_WIDE,
        doc="Brokers that the controller is filling or emptying by itself, such as "
        "`fill:4,empty:5`. The controller writes this; delete it to stop.",
    )
    scriba_reassignment_min_rate: int = setting(
        Kind.LONG,
        default=10_000_000,
        at_least=1,
        scope=CLUSTER_WIDE,
        doc="Lowest rate, in bytes a second, at which this broker copies partitions that are "
        "being reassigned without a throttle, however busy it is with clients.",
    )
    leader_replication_throttled_rate: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Bytes a second that this broker gives to followers that catch up, of the partitions "
        "that `leader.replication.throttled.replicas` names.",
    )
    follower_replication_throttled_rate: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Bytes a second at which this broker catches up, in the partitions that "
        "`follower.replication.throttled.replicas` names.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Bytes a second at which this broker copies replicas that move between its log "
        "directories, all of them together.",
    )
    replica_fetch_backoff_ms: int = setting(
        Kind.INT,
        default=1000,
        at_least=0,
        importance=Importance.MEDIUM,
        doc="Longest pause before a follower asks again for a partition that its leader refused, "
        "or tries again to reach its leader; pauses double up to it from 20 ms.",
    )
    replica_fetch_max_bytes: int = setting(
        Kind.INT,
        default=1_048_576,
        at_least=0,
        importance=Importance.MEDIUM,
        doc="Most bytes of one partition in an answer to a follower; a larger batch comes alone.",
    )
    replica_fetch_min_bytes: int = setting(
        Kind.INT,
        default=1,
        importance=HIGH,
        doc="Bytes without which a leader keeps a follower waiting, up to "
        "`replica.fetch.wait.max.ms`.",
    )
    replica_fetch_response_max_bytes: int = setting(
        Kind.INT,
        default=10_485_760,
        at_least=0,
        importance=Importance.MEDIUM,
        doc="Most bytes in an answer to a follower; a larger batch comes alone.",
    )
    replica_fetch_wait_max_ms: int = setting(
        Kind.INT,
        default=500,
        importance=HIGH,
        doc="Longest time a leader keeps a follower waiting that has everything.",
    )
    replica_socket_timeout_ms: int = setting(
        Kind.INT,
        default=30_000,
        importance=HIGH,
        doc="Time without an answer after which a follower gives the connection to its leader up.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        Kind.LONG,
        default=5000,
        importance=HIGH,
        doc="Interval between checkpoints of the high watermarks.",
    )
    broker_heartbeat_interval_ms: int = setting(
        Kind.INT, default=2000, doc="Interval between heartbeats of a broker to the controller."
    )
    broker_session_timeout_ms: int = setting(
        Kind.INT,
        default=9000,
        doc="Time without a heartbeat after which the controller fences a broker.",
    )
    initial_broker_registration_timeout_ms: int = setting(
        Kind.INT,
        default=60_000,
        doc="Time a starting broker tries to register with a controller before it gives up; where "
        "there are several controllers, also how long internal topics wait for three brokers.",
    )
    log_dir_failure_timeout_ms: int = setting(
        Kind.LONG,
        default=30_000,
        at_least=1,
        importance=LOW,
        doc="Time after which a broker ends that cannot tell the controller of a failed log "
        "directory: until that hears of it, nobody else leads what lay there.",
    )
    controlled_shutdown_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether a broker that stops hands its leaderships over first.",
    )
    controller_socket_timeout_ms: int = setting(
        Kind.INT,
        default=30_000,
        doc="Time after which a connection to the controller that does not answer is given up.",
    )
    controller_quorum_election_timeout_ms: int = setting(
        Kind.INT,
        default=1000,
        at_least=0,
        importance=HIGH,
        doc="Time a controller waits for an election to end before it starts another.",
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        Kind.INT,
        default=2000,
        at_least=0,
        importance=HIGH,
        doc="Time without word from the active controller after which another stands for election.",
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        Kind.INT,
        default=1000,
        at_least=0,
        importance=HIGH,
        doc="Longest pause of a controller after an election that it lost; chosen by chance, and "
        "longer after each.",
    )
    controller_quorum_retry_backoff_ms: int = setting(
        Kind.INT,
        default=20,
        at_least=0,
        importance=LOW,
        doc="Pause before another controller that could not be asked is asked again.",
    )
    controller_quorum_fetch_max_bytes: int = setting(
        Kind.INT,
        default=1 << 20,
        at_least=1,
        importance=LOW,
        doc="Most bytes of the metadata log in one answer; a first batch that is larger comes "
        "all the same.",
    )
    controller_quorum_fetch_snapshot_max_bytes: int = setting(
        Kind.INT,
        default=1 << 20,
        at_least=1,
        importance=LOW,
        doc="Most bytes of a metadata snapshot in one answer.",
    )
    controller_quorum_request_timeout_ms: int = setting(
        Kind.INT, default=2000, at_least=0, doc="Time a controller gives another to answer."
    )
    metadata_log_segment_bytes: int = setting(
        Kind.INT,
        default=1 << 30,
        at_least=8 << 20,
        importance=HIGH,
        doc="Size at which a new segment of the metadata log begins.",
    )
    internal_metadata_log_segment_bytes: int | None = setting(
        Kind.INT,
        default=None,
        at_least=1,
        importance=LOW,
        internal=True,
        doc="Takes the place of `metadata.log.segment.bytes` where it is given; it may be small.",
    )
    internal_metadata_max_batch_size_in_bytes: int = setting(
        Kind.INT,
        default=8 << 20,
        at_least=1,
        importance=LOW,
        internal=True,
        doc="Largest batch that the active controller writes; a change that takes more is refused.",
    )
    internal_metadata_delete_delay_millis: int = setting(
        Kind.LONG,
        default=60_000,
        at_least=0,
        importance=LOW,
        internal=True,
        doc="Time after which files of the metadata log are deleted that are no longer part of it.",
    )
    metadata_log_segment_ms: int = setting(
        Kind.LONG,
        default=604_800_000,
        importance=HIGH,
        doc="Age at which a new segment of the metadata log begins.",
    )
    metadata_max_retention_bytes: int = setting(
        Kind.LONG,
        default=104_857_600,
        importance=HIGH,
        doc="Size above which old metadata goes, once a snapshot holds it.",
    )
    metadata_max_retention_ms: int = setting(
        Kind.LONG,
        default=604_800_000,
        importance=HIGH,
        doc="Age at which old metadata goes, once a snapshot holds it.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        Kind.LONG,
        default=20_971_520,
        at_least=1,
        importance=HIGH,
        doc="Bytes of new metadata that call for a snapshot.",
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        Kind.LONG,
        default=3_600_000,
        at_least=0,
        importance=HIGH,
        doc="Time after which new metadata calls for a snapshot; 0 for never.",
    )
    metadata_max_idle_interval_ms: int = setting(
        Kind.INT,
        default=500,
        at_least=0,
        importance=LOW,
        doc="Time between the empty records of an idle controller; 0 for none.",
    )
