"""No record ends a query, no clock silences others, and the same topics give the same figures."""

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from scriba.client import ConsumerRecord, SyncConsumer, SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.checks import ACCEPTED, DEAD_LETTER, LATE, Verdict, judge
from scriba.pipelines.shop.events.rules import MINUTE_MS, minute_name, time_name
from scriba.pipelines.shop.lake.lake import open_lake, stream
from scriba.pipelines.shop.simulation.truth import STEPS
from scriba.pipelines.shop.streaming.queries import Settings
from scriba.pipelines.shop.streaming.runner import Runner
from tests.spark.desk import Desk
from tests.spark.shop.nasty import Nasty
from tests.spark.shop.store import Store

VIEW, CART, BUY = topics.INPUTS
Received = ConsumerRecord[bytes | None, bytes | None]
FIGURES = (topics.FUNNEL, topics.SALES_SLIDING, topics.PRODUCT_VIEWS, topics.ACTIVE_SESSIONS)
AHEAD_MS = 50 * MINUTE_MS


@pytest.fixture
def store(desk: Desk, topic: str) -> Store:
    """As clients find it: the broker says when an event arrived."""
    return Store(desk, f"{topic}-", made_up=False)


def send(store: Store, sent: Sequence[tuple[str, bytes | None]], ahead_ms: int = 0) -> None:
    now = time.time_ns() // 1_000_000
    with SyncProducer(bootstrap_servers=store.bootstrap) as producer:
        for number, (topic, value) in enumerate(sent):
            key = (None, b"", b"\xff\xfe", b"k" * 1000, b"u1")[number % 5]
            headers = ((("trace", b"\xff"), ("", None)), ())[number % 2]
            producer.send_nowait(
                store.names(topic), value, key, timestamp=now + ahead_ms, headers=headers
            )
        producer.flush()


def there(store: Store) -> list[tuple[str, Received, Verdict]]:
    """Every record of the topics, and what the rules say of it."""
    with SyncConsumer(bootstrap_servers=store.bootstrap, auto_offset_reset="earliest") as consumer:
        places = [p for topic in topics.INPUTS for p in consumer.partitions(store.names(topic))]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: list[Received] = []
        while any(consumer.position(place) < ends[place] for place in places):
            found += consumer.poll(100)
    named = [(store.names.plain(record.topic), record) for record in found]
    return [(t, r, judge(t, r.value, r.timestamp * 1000)) for t, r in named]


def check(store: Store) -> dict[str, Any]:
    """Figures, rejected records and counts are those that follow from the topics."""
    records = there(store)
    outcomes = Counter(verdict.outcome for _, _, verdict in records)
    health = store.table(topics.HEALTH).values()
    for name in ("accepted", "bots", "late", "dead_letters"):
        assert sum(row[name] for row in health) == outcomes[name], name
    assert len(store.table(topics.LATE_EVENTS)) == outcomes[LATE]
    letters = Counter(row["reason"] for row in store.table(topics.DEAD_LETTERS).values())
    assert letters == Counter(v.reason for _, _, v in records if v.outcome == DEAD_LETTER)
    counted = {v.event["event_id"]: (t, v) for t, _, v in records if v.outcome == ACCEPTED}
    steps: dict[str, Counter[str]] = {}
    for topic, verdict in counted.values():
        minute = minute_name(verdict.time_us // 1000 // MINUTE_MS * MINUTE_MS)
        steps.setdefault(minute, Counter())[STEPS[topic]] += 1
    funnel = store.table(topics.FUNNEL)
    assert {k: {s: row[s] for s in STEPS.values()} for k, row in funnel.items()} == {
        k: {s: row[s] for s in STEPS.values()} for k, row in steps.items()
    }
    bought = [v.event for t, v in counted.values() if t == BUY]
    sales = store.table(topics.SALES_PER_MINUTE).values()
    assert sum(row["revenue_cents"] for row in sales) == sum(e["total_cents"] for e in bought)
    told = store.table(topics.PROGRESS).values()
    assert {(row["restarts"], row["dropped_by_watermark"]) for row in told} == {(0, 0)}
    return {topic: store.table(topic) for topic in FIGURES}


def settings(store: Store, max_offsets: int) -> Settings:
    return store.settings(max_offsets=max_offsets)


def test_no_record_ends_a_query_and_no_clock_silences_others(store: Store, desk: Desk) -> None:
    now = time.time_ns() // 1_000_000
    hostile = Nasty(time_name(now), time_name(now - 30 * MINUTE_MS))
    ahead = Nasty(time_name(now + AHEAD_MS), time_name(now))
    send(store, hostile.values())
    send(store, [(topic, ahead.event(topic)) for topic in topics.INPUTS], AHEAD_MS)
    store.run(settings(store, 100_000))
    check(store)

    onlookers = Nasty(time_name(now + 1), "")
    views = [(VIEW, onlookers.event(VIEW, event_id=f"later{n}")) for n in range(50)]
    send(store, views)
    store.run(settings(store, 100_000), "figures", "intake")
    figures = check(store)
    assert sum(row["views"] for row in figures[topics.FUNNEL].values()) > 50

    # The same topics, in small batches, from nothing.
    shutil.rmtree(store.checkpoints)
    written = len(store.records(topics.FUNNEL))
    store.run(settings(store, 120), "figures")
    assert len(store.records(topics.FUNNEL)) > written
    assert {topic: store.table(topic) for topic in FIGURES} == figures

    lake = open_lake(desk.spark, str(desk.folder / "lake"), "parquet")
    start = partial(stream, desk.spark, settings(store, 100_000), lake, 1.0)
    Runner(desk.spark, settings(store, 100_000), {"archive": start}).run()
    kept = lake.read()
    assert kept is not None
    rows = {(r.topic, r.partition, r.offset): r for r in kept.collect()}
    for topic, record, _ in there(store):
        row = rows.pop((topic, record.partition, record.offset))
        assert (row.key, row.value) == (record.key, record.value)
        pairs = None if row.headers is None else tuple((h.key, h.value) for h in row.headers)
        assert (pairs or ()) == tuple(record.headers)
    assert rows == {}
