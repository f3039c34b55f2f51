"""Pytest fixtures that give a test a live broker of either kind.

`SCRIBA_TARGET` says which: `scriba` (when unset), `kafka` to record how the reference behaves, or
`both`. A test states what Kafka does and must pass against both.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.kafka.brokers import PATIENCE, TESTED, Broker, running

TARGETS = {"both": ["scriba", "kafka"]}.get(
    os.environ.get("SCRIBA_TARGET", "scriba"), [os.environ.get("SCRIBA_TARGET", "scriba")]
)

SWIFT = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.regex.refresh.interval.ms": "10000",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings with which groups and transactions wait for as little as they can: members of the
consumer protocol, for example, act when they send a heartbeat, else every five seconds."""

BACK_SOON = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""Kafka takes a broker that was killed for a new one when the session of the old one is over, which
is after nine seconds unless it is told otherwise."""

_names = itertools.count(1)


@pytest.fixture(scope="session", params=TARGETS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker for the whole session; tests keep apart by their topics' names."""
    with running(TESTED[request.param](tmp_path_factory.mktemp(request.param))) as broker:
        yield broker


@pytest.fixture(params=TARGETS)
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test alone, which may stop, kill and restart it."""
    with running(TESTED[request.param](tmp_path / request.param)) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nothing is created."""
    return _fresh(request)


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    return lambda: _fresh(request)


def eventually(told: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Waits until it is so: metadata spreads after the answer to the change that made it."""
    deadline = time.monotonic() + timeout
    while not told():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def _fresh(request: pytest.FixtureRequest) -> str:
    words = "".join(c if c.isalnum() else "-" for c in request.node.originalname)
    return f"{words.removeprefix('test-')[:60]}-{next(_names)}"
