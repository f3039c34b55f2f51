"""Scriba and Apache Kafka, side by side: what our clients do must hold against both."""

import threading
from collections.abc import Callable, Iterator

import pytest
from brokers import KINDS, Broker, running


@pytest.fixture(scope="session", params=["scriba", "kafka"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with running(KINDS[request.param](tmp_path_factory.mktemp(f"client-{request.param}"))) as node:
        yield node


@pytest.fixture(params=["during calls", "in a thread"])
def start_thread(request: pytest.FixtureRequest) -> Callable[..., object] | None:
    """Where the event loop of a synchronous client runs."""
    if request.param == "during calls":
        return None

    def start(main: Callable[[], None], name: str) -> None:
        threading.Thread(target=main, name=name, daemon=True).start()

    return start
