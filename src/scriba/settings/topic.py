"""The settings of a topic.

A topic stores only what was set for it; the rest comes from the node, whose settings carry the
names listed as synonyms here. `resolve` puts both together.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scriba.config import ConfigError, Kind, Scope, Settings, setting
from scriba.settings.foreign import taken
from scriba.settings.placement import refused

if TYPE_CHECKING:
    from scriba.settings.node import NodeSettings

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1
COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TIERED: Final = "tiered storage"


def _throttled(replicas: tuple[str, ...]) -> str | None:
    """Complains of what does not name replicas to be throttled."""
    if replicas == ("*",) or all(
        len(parts := each.split(":")) == 2 and all(part.isdigit() for part in parts)
        for each in replicas
    ):
        return None
    return "must be * alone, or partition:broker,partition:broker,..."


class TopicSettings(Settings):
    cleanup_policy: tuple[str, ...] = setting(
        Kind.LIST,
        default=("delete",),
        choices=("compact", "delete"),
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.cleanup.policy",),
        doc="How old data goes: `delete` drops whole segments by age and size, `compact` keeps the "
        "last record of every key, both together do both. Empty keeps everything.",
    )
    compression_gzip_level: int = setting(
        Kind.INT,
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("compression.gzip.level",),
        doc="Compression level of gzip when `compression.type` is gzip; -1 is its default.",
    )
    compression_lz4_level: int = setting(
        Kind.INT,
        default=9,
        at_least=1,
        at_most=17,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("compression.lz4.level",),
        doc="Compression level of lz4 when `compression.type` is lz4.",
    )
    compression_type: str = setting(
        Kind.STRING,
        default="producer",
        choices=COMPRESSION_TYPES,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("compression.type",),
        doc="Codec that batches are stored in. `producer` keeps what the producer sent; any "
        "other codec makes the broker recompress batches that arrive in a different one.",
    )
    compression_zstd_level: int = setting(
        Kind.INT,
        default=3,
        at_least=-131072,
        at_most=22,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("compression.zstd.level",),
        doc="Compression level of zstd when `compression.type` is zstd.",
    )
    delete_retention_ms: int = setting(
        Kind.LONG,
        default=86_400_000,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a compacted topic keeps the marker of a deleted key.",
    )
    file_delete_delay_ms: int = setting(
        Kind.LONG,
        default=60_000,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.segment.delete.delay.ms",),
        doc="Time between taking a segment out of the log and removing its files.",
    )
    flush_messages: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.flush.interval.messages",),
        doc="Unflushed records that force an fdatasync. With 1, nothing is acknowledged or shown "
        "to consumers before it is on the device.",
    )
    flush_ms: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="Longest time that a record stays unflushed.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        check=_throttled,
        scope=Scope.CLUSTER_WIDE,
        doc="Followers (`partition:broker`, or `*` alone) that catch up at "
        "`follower.replication.throttled.rate` at most.",
    )
    index_interval_bytes: int = setting(
        Kind.INT,
        default=4096,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.index.interval.bytes",),
        doc="Bytes of log between two entries of the offset index.",
    )
    internal_segment_bytes: int | None = setting(
        Kind.INT,
        default=None,
        at_least=1,
        internal=True,
        scope=Scope.CLUSTER_WIDE,
        doc="A segment size below the bound of `segment.bytes`, for tests.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        check=_throttled,
        scope=Scope.CLUSTER_WIDE,
        doc="Leaders (`partition:broker`, or `*` alone) whose followers catch up at "
        "`leader.replication.throttled.rate` at most.",
    )
    local_retention_bytes: int = setting(
        Kind.LONG,
        default=-2,
        at_least=-2,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.local.retention.bytes",),
        feature=TIERED,
        doc="Bytes kept on local disk once they are in remote storage; -2 follows retention.bytes.",
    )
    local_retention_ms: int = setting(
        Kind.LONG,
        default=-2,
        at_least=-2,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.local.retention.ms",),
        feature=TIERED,
        doc="Time on local disk once data is in remote storage; -2 follows retention.ms.",
    )
    max_compaction_lag_ms: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="Longest time that a record of a compacted topic may wait for compaction.",
    )
    max_message_bytes: int = setting(
        Kind.INT,
        default=1_048_588,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("message.max.bytes",),
        doc="Largest record batch taken, as it is stored.",
    )
    message_timestamp_after_max_ms: int = setting(
        Kind.LONG,
        default=3_600_000,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far a producer's timestamp may lie ahead of the broker's clock.",
    )
    message_timestamp_before_max_ms: int = setting(
        Kind.LONG,
        default=MAX_LONG,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far a producer's timestamp may lie behind the broker's clock.",
    )
    message_timestamp_type: str = setting(
        Kind.STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.message.timestamp.type",),
        doc="Whose clock a record's timestamp shows: the producer's or the broker's.",
    )
    min_cleanable_dirty_ratio: float = setting(
        Kind.DOUBLE,
        default=0.5,
        at_least=0,
        at_most=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Share of uncompacted bytes at which a log is compacted again.",
    )
    min_compaction_lag_ms: int = setting(
        Kind.LONG,
        default=0,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="Time that a record of a compacted topic is safe from compaction.",
    )
    min_insync_replicas: int = setting(
        Kind.INT,
        default=1,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("min.insync.replicas",),
        doc="In-sync replicas without which a produce with acks=all is refused.",
    )
    preallocate: bool = setting(
        Kind.BOOLEAN,
        default=False,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.preallocate",),
        doc="Whether a new segment's file takes its full size at once.",
    )
    remote_log_copy_disable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        feature=TIERED,
        scope=Scope.CLUSTER_WIDE,
        doc="Whether copying to remote storage stops while reading from it goes on.",
    )
    remote_log_delete_on_disable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        feature=TIERED,
        scope=Scope.CLUSTER_WIDE,
        doc="Whether switching remote storage off also removes what is there.",
    )
    remote_storage_enable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        feature=TIERED,
        scope=Scope.CLUSTER_WIDE,
        doc="Whether closed segments also go to remote storage.",
    )
    retention_bytes: int = setting(
        Kind.LONG,
        default=-1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.retention.bytes",),
        doc="Size above which a partition's oldest segments go; negative for no limit.",
    )
    retention_ms: int = setting(
        Kind.LONG,
        default=604_800_000,
        at_least=-1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="Age of its newest record at which a segment goes; -1 for never.",
    )
    scriba_replica_placement: str | None = setting(
        Kind.STRING,
        default=None,
        check=refused,
        scope=Scope.CLUSTER_WIDE,
        doc="Number of replicas of each partition in each rack, and whether they vote or "
        "observe: `voters=2@zone-a,1@zone-b;observers=1@zone-c`. Observers replicate and "
        "serve consumers of their rack; they are never in the ISR, and never elected.",
    )
    segment_bytes: int = setting(
        Kind.INT,
        default=1 << 30,
        at_least=1 << 20,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.segment.bytes",),
        doc="Size at which a new segment file begins.",
    )
    segment_index_bytes: int = setting(
        Kind.INT,
        default=10_485_760,
        at_least=4,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.index.size.max.bytes",),
        doc="Largest size of a segment's offset index; a full index begins a new segment.",
    )
    segment_jitter_ms: int = setting(
        Kind.LONG,
        default=0,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="Longest random time taken off `segment.ms`, so that partitions do not all roll at "
        "once.",
    )
    segment_ms: int = setting(
        Kind.LONG,
        default=604_800_000,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Age at which a new segment begins even if the old one is not full.",
    )
    unclean_leader_election_enable: bool = setting(
        Kind.BOOLEAN,
        default=False,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica outside the in-sync set may lead when no other can, losing data.",
    )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], node: "NodeSettings") -> "TopicSettings":
        """What is in force for a topic with `overrides` on a node: those that it can take."""
        try:
            return cls.checked(overrides, node)
        except ConfigError:
            return cls.checked(taken(overrides, partial(cls.checked, node=node)).kept, node)

    @classmethod
    def checked(cls, overrides: Mapping[str, str], node: "NodeSettings") -> "TopicSettings":
        """The same for creating and altering a topic: ConfigError when any override is unknown, out
        of bounds, or contradicts another."""
        defaults = node.topic_defaults
        return defaults.overridden(overrides) if overrides else defaults

    def overridden(self, overrides: Mapping[str, str]) -> "TopicSettings":
        """These settings with some given as text."""
        values: dict[str, Any] = self.parse_values(overrides)
        if small := values.get("internal_segment_bytes"):
            values["segment_bytes"] = small
        changed = self.replace(**values)
        if changed.min_compaction_lag_ms > changed.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms",
                f"must not exceed max.compaction.lag.ms ({changed.max_compaction_lag_ms})",
                str(changed.min_compaction_lag_ms),
            )
        return changed
