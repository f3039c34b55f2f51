"""The settings of the coordinators of groups and of transactions, declared.

Names, types, bounds and defaults are Kafka's. A cluster of one cannot hold the three replicas that
Kafka's defaults ask of the internal topics: there they have one, and one in-sync replica is enough.
"""

from typing import Final

from scriba.config import ConfigError, Importance, Kind, Scope, Settings, setting
from scriba.settings.topic import MAX_INT, TopicSettings

HIGH, LOW = Importance.HIGH, Importance.LOW
CLUSTER_WIDE = Scope.CLUSTER_WIDE

MIGRATIONS: Final = ("disabled", "downgrade", "upgrade", "bidirectional")
CODECS: Final = (0, 1, 2, 3, 4)


ASSIGNORS: Final = ("uniform", "range")


def _assignors(given: tuple[str, ...]) -> str | None:
    if not given:
        return "must name an assignor"
    wrong = next((name for name in given if name not in ASSIGNORS), None)
    return None if wrong is None else f"must be from {', '.join(ASSIGNORS)}"


def _segment(given: int) -> str | None:
    """Else the topic could not be made, and nobody would have a coordinator."""
    least = TopicSettings.table["segment.bytes"].at_least
    return None if least is None or given >= least else f"must be at least {least}, as of any topic"


class GroupKeys(Settings):
    # --- groups of the classic protocol -------------------------------------------------------
    group_min_session_timeout_ms: int = setting(
        Kind.INT, default=6000, doc="Shortest session that a member of a classic group may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        Kind.INT,
        default=1_800_000,
        doc="Longest session that a member of a classic group may ask for.",
    )
    group_initial_rebalance_delay_ms: int = setting(
        Kind.INT,
        default=3000,
        doc="Time that an empty classic group waits for more members before its first generation. "
        "`scriba up` without a file starts with 0, as Kafka's container images do.",
    )
    group_max_size: int = setting(
        Kind.INT, default=MAX_INT, at_least=1, doc="Most members of a classic group."
    )
    # --- groups of the consumer protocol ------------------------------------------------------
    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        Kind.LIST,
        default=("classic", "consumer", "streams"),
        choices=("consumer", "classic", "share", "streams"),
        check=lambda given: None if "classic" in given else "must keep classic",
        doc="Protocols that groups may use. `share` and `streams` also need features of the "
        "cluster that are not served yet.",
    )
    group_consumer_session_timeout_ms: int = setting(
        Kind.INT,
        default=45_000,
        at_least=1,
        doc="Time without a heartbeat after which a member is removed from its consumer group.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        Kind.INT, default=45_000, at_least=1, doc="Shortest session of a consumer group."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        Kind.INT, default=60_000, at_least=1, doc="Longest session of a consumer group."
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        Kind.INT,
        default=5000,
        at_least=1,
        doc="Interval between heartbeats, told to the members of consumer groups.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        Kind.INT,
        default=5000,
        at_least=1,
        doc="Shortest interval between heartbeats of a consumer group.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        Kind.INT,
        default=15_000,
        at_least=1,
        doc="Longest interval between heartbeats of a consumer group.",
    )
    group_consumer_max_size: int = setting(
        Kind.INT, default=MAX_INT, at_least=1, doc="Most members of a consumer group."
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        Kind.LIST,
        default=("uniform", "range"),
        check=_assignors,
        doc="Assignors of the broker: `uniform` and `range`. The first is used where a group "
        "names none.",
    )
    group_consumer_migration_policy: str = setting(
        Kind.STRING,
        default="bidirectional",
        check=lambda given: (
            None if given.lower() in MIGRATIONS else f"must be one of {', '.join(MIGRATIONS)}"
        ),
        doc="Whether a live group changes its protocol with its members: `upgrade` from classic "
        "to consumer, `downgrade` back, `bidirectional` both, `disabled` neither.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        Kind.INT,
        default=1000,
        at_least=0,
        scope=CLUSTER_WIDE,
        doc="Least time between two assignments of a consumer group.",
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        Kind.INT, default=0, at_least=0, doc="Least value of the interval between assignments."
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        Kind.INT,
        default=15_000,
        at_least=0,
        doc="Most that the interval between assignments may be.",
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        Kind.INT,
        default=600_000,
        at_least=10_000,
        internal=True,
        doc="Time after which a subscribed pattern is matched against the topics again.",
    )
    # --- offsets and their topic --------------------------------------------------------------
    offset_metadata_max_bytes: int = setting(
        Kind.INT,
        default=4096,
        importance=HIGH,
        doc="Longest metadata that may be committed with an offset.",
    )
    offsets_commit_timeout_ms: int = setting(
        Kind.INT,
        default=5000,
        at_least=1,
        importance=HIGH,
        doc="Time that a change of a group gets to reach all in-sync replicas.",
    )
    offsets_load_buffer_size: int = setting(
        Kind.INT,
        default=5_242_880,
        at_least=1,
        importance=HIGH,
        doc="Bytes read at a time when groups are loaded; one batch is read even if larger.",
    )
    offsets_retention_minutes: int = setting(
        Kind.INT,
        default=10_080,
        at_least=1,
        importance=HIGH,
        doc="Time for which offsets are kept once nobody uses them any more.",
    )
    offsets_retention_check_interval_ms: int = setting(
        Kind.LONG,
        default=600_000,
        at_least=1,
        importance=HIGH,
        doc="Interval between checks for offsets to forget.",
    )
    offsets_topic_num_partitions: int = setting(
        Kind.INT,
        default=50,
        at_least=1,
        importance=HIGH,
        doc="Partitions of `__consumer_offsets`, fixed when it is made.",
    )
    offsets_topic_replication_factor: int = setting(
        Kind.SHORT,
        default=3,
        at_least=1,
        importance=HIGH,
        doc="Replicas of `__consumer_offsets`; unless it is set, at most one for each broker.",
    )
    offsets_topic_segment_bytes: int = setting(
        Kind.INT,
        default=104_857_600,
        at_least=1,
        importance=HIGH,
        check=_segment,
        doc="Size at which a new segment of `__consumer_offsets` begins, fixed when it is made.",
    )
    offsets_topic_compression_codec: int = setting(
        Kind.INT,
        default=0,
        importance=HIGH,
        check=lambda given: (
            None if given in CODECS else "must be 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4"
        ),
        doc="Codec of the records of `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, "
        "4 zstd.",
    )

    def check_groups(self) -> None:
        """What no single value can tell. ConfigError at the first contradiction."""
        for what in ("session.timeout", "heartbeat.interval", "assignment.interval"):
            self._in_order(f"group.consumer.min.{what}.ms", f"group.consumer.max.{what}.ms")
            self._in_order(f"group.consumer.min.{what}.ms", f"group.consumer.{what}.ms")
            self._in_order(f"group.consumer.{what}.ms", f"group.consumer.max.{what}.ms")
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigError(
                "group.consumer.heartbeat.interval.ms",
                "must be less than group.consumer.session.timeout.ms",
                str(self.group_consumer_heartbeat_interval_ms),
            )

    def _in_order(self, low: str, high: str) -> None:
        if self.value(low) > self.value(high):
            raise ConfigError(high, f"must be at least {low}={self.value(low)}", self.value(high))


class TransactionKeys(Settings):
    transaction_max_timeout_ms: int = setting(
        Kind.INT,
        default=900_000,
        at_least=1,
        importance=HIGH,
        doc="Longest that a producer may ask for its transactions to stay open.",
    )
    transactional_id_expiration_ms: int = setting(
        Kind.INT,
        default=604_800_000,
        at_least=1,
        importance=HIGH,
        doc="Time after its last transaction at which a transactional id is forgotten.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        Kind.INT,
        default=10_000,
        at_least=1,
        importance=LOW,
        doc="Interval between checks for transactions that are open too long.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        Kind.INT,
        default=3_600_000,
        at_least=1,
        importance=LOW,
        doc="Interval between checks for transactional ids to forget.",
    )
    transaction_partition_verification_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        importance=LOW,
        scope=CLUSTER_WIDE,
        doc="Whether a transactional write is taken only where the transaction is known to be "
        "open in that partition.",
    )
    transaction_two_phase_commit_enable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        importance=LOW,
        feature="two-phase commit",
        doc="Whether producers may prepare a transaction that never times out.",
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        Kind.INT,
        default=20,
        at_least=1,
        importance=HIGH,
        doc="Wait before a write asks again whether the transaction before it has ended.",
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        Kind.INT,
        default=100,
        at_least=0,
        importance=HIGH,
        doc="Time after which a transactional write stops asking and is told to retry.",
    )
    transaction_state_log_num_partitions: int = setting(
        Kind.INT,
        default=50,
        at_least=1,
        importance=HIGH,
        doc="Partitions of `__transaction_state`, fixed when it is made.",
    )
    transaction_state_log_replication_factor: int = setting(
        Kind.SHORT,
        default=3,
        at_least=1,
        importance=HIGH,
        doc="Replicas of `__transaction_state`; unless it is set, at most one for each broker.",
    )
    transaction_state_log_min_isr: int = setting(
        Kind.INT,
        default=2,
        at_least=1,
        importance=HIGH,
        doc="In-sync replicas that a change of a transaction needs; never more than the replicas.",
    )
    transaction_state_log_segment_bytes: int = setting(
        Kind.INT,
        default=104_857_600,
        at_least=1,
        importance=HIGH,
        check=_segment,
        doc="Size at which a new segment of `__transaction_state` begins, fixed when it is made.",
    )
    transaction_state_log_load_buffer_size: int = setting(
        Kind.INT,
        default=5_242_880,
        at_least=1,
        importance=HIGH,
        doc="Bytes read at a time when transactions are loaded; one batch is read even if larger.",
    )
