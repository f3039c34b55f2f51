"""The page on testing and `scriba.testing` say the same."""

import inspect
import re
from pathlib import Path

import scriba.testing
from scriba.testing import embedded, plugin
from scriba.testing.embedded import Broker, Clock

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
REFERENCE = PAGE.partition("## Reference")[2]


def public(of: type) -> set[str]:
    return {name for name in vars(of) if not name.startswith("_")}


def test_every_method_and_attribute_is_on_the_page() -> None:
    told = set(re.findall(r"`(\w+)[`(]", REFERENCE))
    assert public(Broker) - told == set()
    assert {f"clock.{name}" for name in public(Clock)} <= set(
        re.findall(r"`(clock\.\w+)\(", REFERENCE)
    )


def test_the_page_shows_the_defaults() -> None:
    for name, method in inspect.getmembers(Broker, inspect.isfunction):
        shown = re.search(rf"`{name}\((.*?)\)`", REFERENCE)
        if name.startswith("_") or shown is None:
            continue
        for parameter, default in re.findall(r"(\w+)=(\w+)", shown[1]):
            found = inspect.signature(method).parameters[parameter].default
            assert str(found) == default, f"{name}({parameter})"


def test_every_fixture_and_option_is_on_the_page() -> None:
    for name in vars(plugin):
        if name.startswith("scriba_"):
            assert f"| `{name}` |" in REFERENCE
    for option in ("scriba_settings", "--scriba-setting", "scriba_process", "--scriba-process"):
        assert f"`{option}" in REFERENCE


def test_what_differs_from_kafka_is_told() -> None:
    assert set(embedded.TEST_SETTINGS) == {
        "listeners",
        "group.initial.rebalance.delay.ms",
        "offsets.topic.num.partitions",
        "transaction.state.log.num.partitions",
    }, "tell it on the page, too"


def test_exports_are_what_users_need() -> None:
    assert scriba.testing.__all__ == [
        "Broker",
        "Clock",
        "Group",
        "Record",
        "Transaction",
        "broker",
    ]
    for name in scriba.testing.__all__:
        assert getattr(scriba.testing, name).__doc__
