"""Scriba and Apache Kafka, side by side: what our clients do must hold against both."""

from collections.abc import Iterator

import pytest
from brokers import KINDS, Broker, running


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with running(KINDS[request.param](tmp_path_factory.mktemp(f"client-{request.param}"))) as node:
        yield node
