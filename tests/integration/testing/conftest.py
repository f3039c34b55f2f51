"""Brokers of `scriba.testing`, on a thread of this process and in a process of their own."""

from collections.abc import Iterator

import pytest

import scriba.testing
from scriba.testing import Broker

HOMES = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One on a thread of this process, and one with a process of its own."""
    with scriba.testing.broker(process=request.param) as running:
        yield running


@pytest.fixture
def local() -> Iterator[Broker]:
    with scriba.testing.broker() as running:
        yield running
