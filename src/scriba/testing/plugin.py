"""The pytest plugin: a broker for a whole run, and what keeps the tests on it apart.

Installed with the package. pytest imports it in every run, also of those who use none of it, so it
loads nothing but pytest until a fixture is asked for. Under pytest-xdist every worker has a broker
of its own.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scriba.testing import Broker

BROKER: "pytest.StashKey[Broker]" = pytest.StashKey()
_LONGEST = 80


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scriba", "a Kafka broker for tests")
    group.addoption(
        "--scriba-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the broker by Kafka's name; may be repeated, wins over the ini file",
    )
    group.addoption(
        "--scriba-process",
        action="store_true",
        help="run the broker in a process of its own",
    )
    parser.addini(
        "scriba_settings", "settings of the broker, one NAME=VALUE a line", type="linelist"
    )
    parser.addini(
        "scriba_process", "run the broker in a process of its own", type="bool", default=False
    )


def _settings(config: pytest.Config) -> dict[str, str]:
    settings: dict[str, str] = {}
    for line in (*config.getini("scriba_settings"), *config.getoption("--scriba-setting")):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"scriba_settings: {line!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def scriba_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """A broker for all tests of the run. After each test that uses it, it runs without faults."""
    from scriba.testing import broker

    process = pytestconfig.getoption("--scriba-process") or pytestconfig.getini("scriba_process")
    with broker(_settings(pytestconfig), process=process) as running:
        pytestconfig.stash[BROKER] = running
        yield running
        del pytestconfig.stash[BROKER]


@pytest.fixture
def scriba_prefix(request: pytest.FixtureRequest) -> str:
    """A text for names of topics and groups that no other test has."""
    from scriba.runtime.loop.hosting import unique

    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-.")
    return f"{name[:_LONGEST]}-{unique()}"


@pytest.fixture
def scriba_topic(scriba_broker: "Broker", scriba_prefix: str) -> str:
    """A new topic with one partition that no other test has; its name."""
    return scriba_broker.create_topic(scriba_prefix)


@pytest.fixture
def scriba_fresh_broker(scriba_broker: "Broker") -> "Broker":
    """The run's broker without any topic, group or transaction."""
    scriba_broker.reset()
    return scriba_broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test did to the run's broker ends with it: faults, a pause, an outage. And before its
    fixtures end, which may close clients: those would wait for a broker that stands still."""
    broker = item.config.stash.get(BROKER, None)
    if broker is not None and "scriba_broker" in getattr(item, "fixturenames", ()):
        broker.resume()
        if not broker.running:
            broker.start()
        broker.clear_faults()
