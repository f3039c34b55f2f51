"""The controller: the cluster as it sees it, and what it decides by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge

_CONTROLLER: Final = "kafka_controller_kafkacontroller_"


def controller() -> Iterator[Metric]:
    yield from _cluster()
    yield from _balancing()
    yield from _elections()
    yield from _registrations()


def _cluster() -> Iterator[Metric]:
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


def _balancing() -> Iterator[Metric]:
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


def _elections() -> Iterator[Metric]:
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


def _registrations() -> Iterator[Metric]:
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
            "kafka_server_broker_metadata_metrics_metadata_apply_error_count",
            "Committed records that this node cannot apply: it stops at the first, so 0 or 1.",
        ),
        lambda s: int(bool(s.node.metadata.follower.stopped)),
    )
    yield Metric(
        gauge(
            "scriba_controller_answer_age_seconds",
            "How long ago a controller answered this broker's heartbeat; -1 before the first.",
        ),
        lambda s: s.since_answered_s(),
    )
