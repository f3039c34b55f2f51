"""The whole pipeline against what the generator knows: every figure, to the last cent."""

import shutil
from pathlib import Path

import pytest

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import HOUR_MS
from scriba.pipelines.shop.simulation.generator import Delivery, Event, Generator, Shape, encode
from scriba.pipelines.shop.simulation.truth import Table, Truth
from tests.spark.desk import Desk
from tests.spark.shop.store import Store

START = 1_793_000_000_000
SHAPE = Shape(rate=1.2, users=60, products=40, broken=0.01, very_late=0.01, duplicates=0.05)


def much_later(topic: str, number: int) -> Delivery:
    """Something that happens when everything else is over, so that what waits for its end ends."""
    at = START + 6 * HOUR_MS
    item = ("p0001", 1, 100)
    event = Event(at, topic, f"{number:016x}", "z", "sz", "web", "Firefox", False, (item,))
    return Delivery(at, number, event, encode(event), False, "")


def at_the_epoch(number: int) -> Delivery:
    """From a client whose clock has only just begun; figures of long before are asked for then."""
    later = much_later(topics.PRODUCT_VIEWED, number)
    return later._replace(arrival_ms=0, broken="event_time lies in the future")


ENDINGS = [
    much_later(topics.PRODUCT_VIEWED, 1),
    much_later(topics.PURCHASE_COMPLETED, 2),
    at_the_epoch(3),
]


def expected(truth: Truth, topic: str) -> Table:
    """The session that is still open is not told yet."""
    return {key: row for key, row in truth.tables()[topic].items() if not key.startswith("z/")}


def without_query(table: Table) -> Table:
    return {k: {n: v for n, v in row.items() if n != "query"} for k, row in table.items()}


@pytest.fixture
def store(desk: Desk, topic: str) -> Store:
    return Store(desk, f"{topic}-")


def check(store: Store) -> None:
    truth = store.truth
    for topic in truth.tables():
        assert without_query(store.table(topic)) == expected(truth, topic), topic
    late = store.table(topics.LATE_EVENTS)
    assert {row["event"]["event_id"] for row in late.values()} == {e.id for e in truth.late}
    told = store.table(topics.PROGRESS)
    assert told.keys() == set(topics.QUERIES)
    assert {row["dropped_by_watermark"] for row in told.values()} == {0}
    assert {row["lag"] for row in told.values()} == {0}
    assert {row["state"] for row in told.values()} == {"running"}
    assert all(row["transaction_ms"] >= 0 and row["rows_written"] >= 0 for row in told.values())
    reasons = [row["reason"] for row in store.table(topics.DEAD_LETTERS).values()]
    assert sorted(reasons) == sorted(truth.dead_letters.elements())


def test_figures_and_late_events_are_the_truth_also_after_all_checkpoints_are_lost(
    store: Store,
) -> None:
    store.take(Generator(SHAPE, START, START + HOUR_MS).deliveries())
    assert store.truth.late
    assert store.truth.duplicates
    assert store.truth.dead_letters
    store.run(store.settings())
    store.take(ENDINGS)
    store.run(store.settings())
    check(store)
    written = len(store.records(topics.FUNNEL))

    shutil.rmtree(Path(store.checkpoints))
    store.run(store.settings(max_offsets=100_000))
    assert len(store.records(topics.FUNNEL)) > written
    check(store)


def test_with_the_official_connector_the_figures_are_the_same(store: Store) -> None:
    few = Shape(rate=0.5, users=20, products=20, broken=0.01, duplicates=0.05)
    store.take(Generator(few, START, START + HOUR_MS // 3).deliveries())
    store.run(store.settings("official"), "intake", "figures")
    truth = store.truth.tables()
    for topic in (topics.FUNNEL, topics.SALES_SLIDING, topics.TOP_VIEWED_PRODUCTS, topics.HEALTH):
        assert without_query(store.table(topic)) == truth[topic], topic
