"""Scriba and Apache Kafka, side by side: what our clients do must hold against both."""

from collections.abc import Iterator

import pytest

from tests.integration.client.members import GROUPS
from tools.kafka.brokers import KINDS, Broker, running


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with running(KINDS[request.param](tmp_path_factory.mktemp(f"client-{request.param}"))) as node:
        yield node


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def quick_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One whose groups come together at once and miss a member soon."""
    where = tmp_path_factory.mktemp(f"groups-{request.param}")
    with running(KINDS[request.param](where, GROUPS)) as node:
        yield node
