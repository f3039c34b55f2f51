"""Scriba and Apache Kafka, side by side: what our clients do must hold against both."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.client.members import GROUPS
from tools.kafka.brokers import TESTED, Broker, running

SETTINGS: dict[str, dict[str, str]] = {"client": {}, "groups": GROUPS}

Started = Callable[[str, str], Broker]


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A broker of a kind with some settings, the same one to the end of the session.

    A parameter of a fixture would end it wherever the next test takes another, which is once for
    every file.
    """
    found: dict[tuple[str, str], Broker] = {}
    with ExitStack() as stack:

        def one(kind: str, name: str) -> Broker:
            if (kind, name) not in found:
                place = tmp_path_factory.mktemp(f"{name}-{kind}")
                node = TESTED[kind](place, SETTINGS[name])
                found[kind, name] = stack.enter_context(running(node))
            return found[kind, name]

        yield one


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def broker(request: pytest.FixtureRequest, started: Started) -> Broker:
    return started(request.param, "client")


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def quick_broker(request: pytest.FixtureRequest, started: Started) -> Broker:
    """One whose groups come together at once and miss a member soon."""
    return started(request.param, "groups")
