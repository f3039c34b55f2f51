"""One broker and one browser for all tests, which keep apart by the prefix of their topics."""

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.browser.dashboards import Dashboard
from tests.browser.shop_figures import Figures
from tests.browser.webdriver import Browser, browser
from tools.kafka.broker_fixtures import cluster, own_cluster
from tools.kafka.brokers import Broker

__all__ = ["cluster", "own_cluster"]

_prefixes = itertools.count(1)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def screen(chromium: Browser) -> Iterator[Browser]:
    """The browser with a desk's window and light colours; the page must not have complained."""
    chromium.size(1320, 1100)
    chromium.prefer("light")
    chromium.open("about:blank")
    chromium.complaints()
    chromium.requested()
    yield chromium
    chromium.open("about:blank")


@pytest.fixture
def start() -> Iterator[Callable[..., Dashboard]]:
    """Starts dashboards, which end with the test."""
    with contextlib.ExitStack() as stack:

        def started(bootstrap: str, *arguments: str, port: int = 0) -> Dashboard:
            made = Dashboard(bootstrap, *arguments, port=port)
            stack.callback(made.kill)
            return made

        yield started


@pytest.fixture(scope="session")
def busy(cluster: Broker) -> Iterator[Dashboard]:
    """The dashboard of a shop with an hour of figures, which no test changes."""
    shop = Figures(cluster.bootstrap, "busy-")
    shop.hour()
    shop.close()
    made = Dashboard(cluster.bootstrap, "--prefix", "busy-", "--stale-after", "3600")
    yield made
    made.kill()


@pytest.fixture
def shop(cluster: Broker) -> Iterator[Figures]:
    """The figures of a shop of one's own."""
    made = Figures(cluster.bootstrap, f"browser{next(_prefixes)}-")
    yield made
    made.close()


@pytest.fixture
def dashboard(cluster: Broker, shop: Figures, start: Callable[..., Dashboard]) -> Dashboard:
    """Its dashboard, for which figures are fresh that a slow machine wrote minutes ago."""
    return start(cluster.bootstrap, "--prefix", shop.names.prefix, "--stale-after", "500")
