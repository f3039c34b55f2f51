"""The process of a node: its events, its event loop, its clock."""

from __future__ import annotations

from collections.abc import Iterator

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge, histogram


def process() -> Iterator[Metric]:
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
