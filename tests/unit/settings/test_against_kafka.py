"""Every setting that Kafka 4.3 has, compared with what is declared here.

`kafka-4.3.0.tsv` is what Kafka's own jars report (`tools/settings/DumpSettings.java` prints it).
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from scriba.client.settings import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
)
from scriba.config import Setting
from scriba.settings import NodeSettings, TopicSettings, differences
from scriba.settings.unsupported import LATER, NOT_APPLICABLE


class Fact(NamedTuple):
    level: str
    name: str
    kind: str
    default: str
    bounds: str
    importance: str
    mode: str
    internal: str


LINES: Final = (Path(__file__).parent / "kafka-4.3.0.tsv").read_text().splitlines()
ROWS: Final = [line.split("\t") for line in LINES]
FACTS: Final = [Fact(*row) for row in ROWS if row[0] in ("topic", "broker")]
CLIENTS: Final[dict[str, type[ClientSettings]]] = {
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
    "admin": AdminSettings,
}
SYNONYMS: Final = {row[1]: tuple(row[2].split()) for row in ROWS if row[0] == "synonyms"}

READ_AT_START: Final = {
    # Kafka can open and close listeners while it runs.
    "listeners",
    "listener.security.protocol.map",
}


def unless_null(default: str) -> str | None:
    return None if default == "<null>" else default


def declared(fact: Fact) -> Setting | None:
    table = TopicSettings.table if fact.level == "topic" else NodeSettings.table
    return table.get(fact.name)


DYNAMIC_ONLY: Final = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Kafka's brokers take these at run time, and none of its configuration classes lists them."""

SERVED: Final = [(fact, setting) for fact in FACTS if (setting := declared(fact)) is not None]


def test_every_setting_of_kafka_is_declared_or_sorted_into_exactly_one_table() -> None:
    for fact in FACTS:
        places = [fact.name in LATER, fact.name in NOT_APPLICABLE, declared(fact) is not None]
        assert sum(places) == 1, fact.name


def test_nothing_is_declared_that_kafka_does_not_know_except_our_own() -> None:
    known = {fact.name for fact in FACTS}
    ours = [*NodeSettings.table, *TopicSettings.table]
    others = [name for name in ours if name not in known and not name.startswith("scriba.")]
    assert [name for name in others if name not in DYNAMIC_ONLY] == []
    assert [name for name in NOT_APPLICABLE if name not in known] == []
    assert {name for name in LATER if name not in known} <= DYNAMIC_ONLY


@pytest.mark.parametrize(("fact", "setting"), SERVED, ids=lambda value: getattr(value, "name", ""))
def test_type_default_and_bounds_are_those_of_kafka(fact: Fact, setting: Setting) -> None:
    assert setting.kind.name == fact.kind
    assert bool(setting.internal) == (fact.internal == "internal")
    assert (setting.render(setting.default) != unless_null(fact.default)) == (
        fact.name in differences.NODE
    ), "a default that is not Kafka's is named with its reason, and no other"
    if numbers := re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?", fact.bounds):
        expected = tuple(None if number is None else int(number) for number in numbers.groups())
        assert (setting.at_least, setting.at_most, setting.also) == expected
    elif names := re.fullmatch(r"\[([a-zA-Z_, ]+)\]", fact.bounds):
        assert set(setting.choices) == set(names[1].split(", "))


@pytest.mark.parametrize(("fact", "setting"), SERVED, ids=lambda value: getattr(value, "name", ""))
def test_a_setting_changes_at_run_time_where_it_does_in_kafka(fact: Fact, setting: Setting) -> None:
    if fact.level == "broker":
        expected = "read-only" if fact.name in READ_AT_START else fact.mode
        assert setting.scope.value == expected
        assert setting.importance.name == fact.importance


def test_topic_settings_fall_back_on_the_same_broker_settings() -> None:
    ours = {name: setting.synonyms for name, setting in TopicSettings.table.items()}
    assert {name: synonyms for name, synonyms in ours.items() if synonyms} == SYNONYMS


def test_defaults_of_features_to_come_are_those_of_kafka() -> None:
    for fact in FACTS:
        if fact.name in LATER:
            assert LATER[fact.name][1] == ("" if fact.default == "<null>" else fact.default)


def test_defaults_of_clients_are_those_of_kafka_unless_a_reason_is_named() -> None:
    found = {
        name
        for client, name, _, default in (row for row in ROWS if row[0] in CLIENTS)
        if (setting := CLIENTS[client].table.get(name)) is not None
        and setting.render(setting.default) != unless_null(default)
    }
    assert found == set(differences.CLIENT)
