"""What a service has read: kept with its place, checked, and thrown away when it is not its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scriba.client import TopicPartition
from scriba.pipelines.inventory.decide import Accepted, decide
from scriba.pipelines.inventory.model import Command, Event, Kind, Line
from scriba.pipelines.inventory.store import FILE, BooksDamaged, Entry, Store, StoreInUse
from scriba.pipelines.inventory.topics import Names

NAMES = Names()
AUDIT, EVENTS = TopicPartition(NAMES.audit, 0), TopicPartition(NAMES.events, 0)
TOPICS = {"cluster": "c", NAMES.events: "e1", NAMES.audit: "a1", "partitions": "1"}


class Writing:
    """A log of events in both topics, as a writer would make it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.offset = 0

    def carry_out(self, command: Command) -> tuple[Event, ...]:
        decision = decide(command, self.store.books(command), 0)
        assert isinstance(decision, Accepted)
        self.write(decision.events)
        return decision.events

    def write(self, events: tuple[Event, ...], *places: TopicPartition) -> None:
        entries = []
        for event in events:
            entries += [entry(event, where, self.offset) for where in places or (AUDIT, EVENTS)]
            self.offset += 1
        self.store.apply(entries, {AUDIT: self.offset, EVENTS: self.offset})


def entry(event: Event, where: TopicPartition, offset: int) -> Entry:
    return Entry(where.topic, where.partition, offset, event.item.encode(), event.encode())


def receive(name: str, **quantities: int) -> Command:
    lines = tuple(Line(item, quantity) for item, quantity in quantities.items())
    return Command(name, Kind.RECEIVE, lines)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path, NAMES)
    assert made.belongs_to(TOPICS)
    return made


def test_a_store_opened_again_has_everything_and_its_place(store: Store, tmp_path: Path) -> None:
    first = Writing(store).carry_out(receive("r", apple=3, pear=4))
    store.close()
    again = Store(tmp_path, NAMES)
    assert again.belongs_to(TOPICS)
    assert again.positions() == {AUDIT: 2, EVENTS: 2}
    assert [told.event for told in again.command("r")] == list(first)
    assert [told.event.item for told in again.stocks("", 10)] == ["apple", "pear"]
    assert [told.event.item for told in again.stocks("apple", 10)] == ["pear"]
    again.close()


@pytest.mark.parametrize("change", [{"cluster": "other"}, {NAMES.audit: "a2"}])
def test_a_store_of_other_topics_is_emptied(
    store: Store, tmp_path: Path, change: dict[str, str]
) -> None:
    Writing(store).carry_out(receive("r", apple=3))
    assert not store.belongs_to(TOPICS | change)
    assert store.positions() == {}
    assert store.stock("apple") is None


def test_a_file_that_is_no_store_is_made_anew(store: Store, tmp_path: Path) -> None:
    store.close()
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    again = Store(tmp_path, NAMES)
    assert again.belongs_to(TOPICS)
    assert again.positions() == {}
    again.close()


def test_two_services_do_not_share_a_folder(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreInUse, match="--data"):
        Store(tmp_path, NAMES)
    assert store.positions() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 3},
        {"version": 1},
        {"stock": 7},
        {"change": 4},
    ],
)
def test_an_event_that_does_not_follow_is_damage_and_is_not_taken(
    store: Store, wrong: dict[str, Any]
) -> None:
    writing = Writing(store)
    (event,) = writing.carry_out(receive("r", apple=3))
    follows = replace(event, command="s", version=2, change=2, stock=5, sequence=2)
    with pytest.raises(BooksDamaged, match="inventory-audit-0 at offset 1: apple"):
        writing.write((replace(follows, **wrong),), AUDIT)
    assert store.positions() == {AUDIT: 1, EVENTS: 1}
    assert len(store.history("apple", 0, 10)) == 1


def test_compaction_may_leave_out_versions_but_not_turn_them_round(store: Store) -> None:
    writing = Writing(store)
    (event,) = writing.carry_out(receive("r", apple=3))
    writing.write((replace(event, version=7, stock=5),), EVENTS)
    with pytest.raises(BooksDamaged, match="version 4 after version 7"):
        writing.write((replace(event, version=4, stock=5),), EVENTS)


def test_what_is_no_event_of_its_key_is_damage(store: Store) -> None:
    with pytest.raises(BooksDamaged, match="not an event"):
        store.apply([Entry(*AUDIT, 0, b"apple", b"{}")], {})
    with pytest.raises(BooksDamaged, match="without a value"):
        store.apply([Entry(*EVENTS, 0, b"apple", None)], {})
    event = Writing(store).carry_out(receive("r", apple=3))[0]
    with pytest.raises(BooksDamaged, match="the key is not the item"):
        store.apply([replace(entry(event, AUDIT, 5), key=b"pear")], {})


def test_topics_that_differ_about_an_item_decide_nothing(store: Store) -> None:
    writing = Writing(store)
    (event,) = writing.carry_out(receive("r", apple=3))
    writing.write((replace(event, version=2, stock=9, command="x"),), EVENTS)
    with pytest.raises(BooksDamaged, match="differ about apple"):
        store.books(receive("s", apple=1))
