"""Scriba and Apache Kafka, side by side: what our clients do must hold against both."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import KINDS, Broker, running

sys.path.insert(0, str(Path(__file__).resolve().parent))


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
    from members import GROUPS  # a neighbour that only this folder's path has

    where = tmp_path_factory.mktemp(f"groups-{request.param}")
    with running(KINDS[request.param](where, GROUPS)) as node:
        yield node
