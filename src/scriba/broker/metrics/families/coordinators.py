"""The coordinators of groups and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge, histogram
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_GROUPS: Final = "kafka_server_group_coordinator_metrics_"
_TRANSACTIONS: Final = "kafka_server_transaction_coordinator_metrics_"


def _load_times(prefix: str, topic: str) -> Iterator[Metric]:
    yield Metric(
        gauge(f"{prefix}partition_load_time_max", f"Longest load of a partition of {topic}, ms."),
        lambda s: s.coordinators(lambda counts: counts.loads.max_ms)[topic],
    )
    yield Metric(
        gauge(f"{prefix}partition_load_time_avg", f"Mean load of a partition of {topic}, ms."),
        lambda s: s.coordinators(lambda counts: counts.loads.mean_ms)[topic],
    )


def coordinators() -> Iterator[Metric]:
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
