"""The log cleaner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge

_MANAGER: Final = "kafka_log_logcleanermanager_"
_CLEANER: Final = "kafka_log_logcleaner_"


def compaction() -> Iterator[Metric]:
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
