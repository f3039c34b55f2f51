"""The whole pipeline against what the generator knows: every figure, to the last cent."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from scriba.client import SyncConsumer, SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.generator import Delivery, Event, Generator, Shape, encode
from scriba.pipelines.shop.queries import NAMES, Settings, Shop
from scriba.pipelines.shop.rules import HOUR_MS
from scriba.pipelines.shop.topics import Names
from scriba.pipelines.shop.truth import Table, Truth

from .conftest import BUSY, Desk

START = 1_793_000_000_000
SHAPE = Shape(rate=1.2, users=60, products=40, broken=0.01, very_late=0.01, duplicates=0.05)


class Store:
    """A shop on the tests' broker, whose topics have a prefix of their own."""

    def __init__(self, desk: Desk, prefix: str) -> None:
        self.names = Names(prefix)
        self.bootstrap = desk.broker.bootstrap
        self.checkpoints = desk.folder / "shop"
        self.truth = Truth()
        self.spark = desk.spark
        topics.create(self.bootstrap, self.names, replicas=1)

    def take(self, deliveries: Iterator[Delivery]) -> None:
        with SyncProducer(bootstrap_servers=self.bootstrap) as producer:
            for delivery in deliveries:
                self.truth.add(delivery)
                event = delivery.event
                producer.send_nowait(
                    self.names(event.topic),
                    delivery.value,
                    event.user.encode(),
                    timestamp=delivery.arrival_ms,
                )
            producer.flush()

    def run(self, *queries: str, connector: str = "scriba", max_offsets: int = 2500) -> None:
        """Everything that is there, to the end."""
        settings = Settings(
            self.bootstrap,
            str(self.checkpoints),
            names=self.names,
            connector=connector,
            max_offsets=max_offsets,
            to_the_end=True,
        )
        waiting = list(queries or NAMES)
        while waiting:
            shop = Shop(self.spark, settings)
            started = [(name, shop.start(name)) for name in waiting]
            waiting = []
            for name, query in started:
                try:
                    query.awaitTermination()
                except StreamingQueryException as failure:
                    if BUSY not in str(failure):
                        raise
                    waiting.append(name)

    def table(self, topic: str) -> Table:
        return dict(self.records(topic))

    def records(self, topic: str) -> list[tuple[str, dict[str, object]]]:
        with SyncConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            places = consumer.partitions(self.names(topic))
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            found = []
            while any(consumer.position(place) < ends[place] for place in places):
                found += consumer.poll(100)
        return [(record.key.decode(), json.loads(record.value)) for record in found]


def much_later(topic: str, number: int) -> Delivery:
    """Something that happens when everything else is over, so that what waits for its end ends."""
    at = START + 6 * HOUR_MS
    item = ("p0001", 1, 100)
    event = Event(at, topic, f"{number:016x}", "z", "sz", "web", "Firefox", False, (item,))
    return Delivery(at, number, event, encode(event), False, "")


ENDINGS = [much_later(topics.PRODUCT_VIEWED, 1), much_later(topics.PURCHASE_COMPLETED, 2)]


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
    reasons = [row["reason"] for row in store.table(topics.DEAD_LETTERS).values()]
    assert sorted(reasons) == sorted(truth.dead_letters.elements())


def test_figures_and_late_events_are_the_truth_also_after_all_checkpoints_are_lost(
    store: Store,
) -> None:
    store.take(Generator(SHAPE, START, START + HOUR_MS).deliveries())
    assert store.truth.late
    assert store.truth.duplicates
    assert store.truth.dead_letters
    store.run()
    store.take(iter(ENDINGS))
    store.run()
    check(store)
    written = len(store.records(topics.FUNNEL))

    shutil.rmtree(Path(store.checkpoints))
    store.run(max_offsets=100_000)
    assert len(store.records(topics.FUNNEL)) > written
    check(store)
