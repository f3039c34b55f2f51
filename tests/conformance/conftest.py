"""Live brokers, shared with the benchmarks: see tools/kafka."""

from collections.abc import Iterator

import pytest

from tools.kafka.broker_fixtures import SWIFT, TARGETS, cluster, new_topic, own_cluster, topic
from tools.kafka.brokers import TESTED, Broker, running
from tools.kafka.kafka_jars import Tools

__all__ = ["cluster", "new_topic", "own_cluster", "swift", "tools", "topic"]


@pytest.fixture(scope="session", params=TARGETS)
def swift(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker for all stories of groups and transactions, at which members meet without ado."""
    place = tmp_path_factory.mktemp(f"{request.param}-swift")
    with running(TESTED[request.param](place, settings=SWIFT)) as broker:
        yield broker


@pytest.fixture(scope="session")
def tools() -> Iterator[Tools]:
    """One JVM for all tools of a session."""
    with Tools() as made:
        yield made
