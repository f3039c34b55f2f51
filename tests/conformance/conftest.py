"""Live brokers, shared with the benchmarks: see tools/kafka."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "kafka"))

from broker_fixtures import TARGETS, cluster, new_topic, own_cluster, topic
from brokers import KINDS, Broker, running
from kafka_jars import Tools

__all__ = ["cluster", "new_topic", "own_cluster", "swift", "tools", "topic"]

SWIFT = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.regex.refresh.interval.ms": "10000",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Members of the consumer protocol act when they send a heartbeat, else every five seconds."""


@pytest.fixture(scope="session", params=TARGETS)
def swift(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker for all stories of groups and transactions, at which members meet without ado."""
    place = tmp_path_factory.mktemp(f"{request.param}-swift")
    with running(KINDS[request.param](place, settings=SWIFT)) as broker:
        yield broker


@pytest.fixture(scope="session")
def tools() -> Iterator[Tools]:
    """One JVM for all tools of a session."""
    with Tools() as made:
        yield made
