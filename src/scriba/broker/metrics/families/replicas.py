"""The replicas of a broker: how many, where, and how well they follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge

_REPLICAS: Final = "kafka_server_replicamanager_"
_TOPICS: Final = "kafka_server_brokertopicmetrics_"


def replicas() -> Iterator[Metric]:
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
        gauge(
            "scriba_metadata_reserve_bytes",
            "Room on the device that is kept for the metadata log; less while the device is full.",
        ),
        lambda s: s.node.metadata.quorum.reserve.left,
    )
    yield Metric(
        counter(
            "scriba_storage_refused_writes_total",
            "Writes that a device did not take, most likely for lack of room.",
        ),
        lambda s: s.counters.refused_writes,
    )


def replication() -> Iterator[Metric]:
    yield from _isr()
    yield from _observers()
    yield from _fetchers()


def _isr() -> Iterator[Metric]:
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


def _observers() -> Iterator[Metric]:
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


def _fetchers() -> Iterator[Metric]:
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
