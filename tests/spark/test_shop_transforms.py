"""The transforms on small frames: what becomes of a record, and what windows hold."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events import accepted, judged
from scriba.pipelines.shop.figures import (
    by_minute,
    joined,
    joined_records,
    minute_records,
    outcome_records,
    session_records,
    sessions,
)
from scriba.pipelines.shop.topics import Names

COLUMNS = "value binary, topic string, partition int, offset long, timestamp timestamp"
ARRIVED = datetime(2026, 11, 15, 12, 35, tzinfo=UTC)
BOT = "Mozilla/5.0 (compatible; ExampleBot/2.1)"


def change(topic: str, **changes: Any) -> bytes:
    event = {**topics.CONTRACTS[topic].value, **changes}
    return json.dumps({name: value for name, value in event.items() if value is not ...}).encode()


def records(spark: SparkSession, *sent: tuple[str, bytes | None]) -> DataFrame:
    rows = [(value, topic, 0, n, ARRIVED) for n, (topic, value) in enumerate(sent)]
    return spark.createDataFrame(rows, COLUMNS)


def table(rows: DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    found = rows.collect()
    made = {(row.topic, row.key): json.loads(row.value) for row in found}
    assert len(made) == len(found)
    return made


VIEW, CART, BUY = topics.INPUTS
ITEM = {"product_id": "p1", "quantity": 2, "price_cents": 100}

JUDGED: list[tuple[str, bytes | None, str, str | None]] = [
    (VIEW, change(VIEW), "accepted", None),
    (CART, change(CART), "accepted", None),
    (BUY, change(BUY), "accepted", None),
    (VIEW, change(VIEW, user_agent=...), "accepted", None),
    (VIEW, change(VIEW, extra={"a": [1]}), "accepted", None),
    (VIEW, change(VIEW, event_time="2026-11-15T12:25:00.000Z"), "accepted", None),
    (VIEW, change(VIEW, event_time="2026-11-15T12:24:59.999Z"), "late", None),
    (VIEW, change(VIEW, user_agent=BOT), "bots", None),
    (VIEW, change(VIEW, user_agent=BOT, event_time="2026-11-15T11:00:00Z"), "bots", None),
    (VIEW, None, "dead_letters", "not JSON"),
    (VIEW, b"\xff\x00", "dead_letters", "not JSON"),
    (VIEW, change(VIEW)[:50], "dead_letters", "not JSON"),
    (VIEW, change(VIEW, event_time="soon"), "dead_letters", "a field has the wrong type"),
    (CART, change(CART, quantity="two"), "dead_letters", "a field has the wrong type"),
    (VIEW, b"[]", "dead_letters", "a field has the wrong type"),
    (VIEW, b"{}", "dead_letters", "event_id is missing"),
    (VIEW, change(VIEW, event_id=""), "dead_letters", "event_id is missing"),
    (VIEW, change(VIEW, user_id=...), "dead_letters", "user_id is missing"),
    (VIEW, change(VIEW, session_id=None), "dead_letters", "session_id is missing"),
    (VIEW, change(VIEW, event_time=...), "dead_letters", "event_time is missing"),
    (
        VIEW,
        change(VIEW, event_time="2026-11-15T12:36:01Z"),
        "dead_letters",
        "event_time lies in the future",
    ),
    (VIEW, change(VIEW, product_id=...), "dead_letters", "product_id is missing"),
    (CART, change(CART, quantity=0), "dead_letters", "quantity is not above zero"),
    (CART, change(CART, price_cents=-1), "dead_letters", "price_cents is missing or below zero"),
    (BUY, change(BUY, order_id=...), "dead_letters", "order_id is missing"),
    (BUY, change(BUY, items=[]), "dead_letters", "items are missing"),
    (BUY, change(BUY, items=[{"quantity": 1}]), "dead_letters", "an item is not complete"),
    (BUY, change(BUY, items=[ITEM, ITEM]), "dead_letters", "total_cents is not the sum of items"),
]


def test_every_record_has_its_outcome_and_every_dead_letter_its_reason(spark: SparkSession) -> None:
    sent = [(f"eu-{topic}", value) for topic, value, _, _ in JUDGED]
    found = judged(records(spark, *sent), Names("eu-")).orderBy("offset").collect()
    assert [(row.outcome, row.reason) for row in found] == [(o, r) for _, _, o, r in JUDGED]
    assert {row.topic for row in found} == set(topics.INPUTS)


def test_what_is_rejected_is_kept_as_it_was_sent(spark: SparkSession) -> None:
    late = change(VIEW, event_time="2026-11-15T12:00:00.000Z")
    rows = judged(records(spark, (VIEW, late), (VIEW, b"{"), (VIEW, None)), Names())
    found = table(outcome_records(rows, Names("eu-")))
    kept = found["eu-shop_late_events", "product_viewed-0-0"]
    assert (kept["event"], kept["seconds"]) == (json.loads(late), 2100.0)
    dead = found["eu-shop_dead_letters", "product_viewed-0-1"]
    assert dead == {
        "topic": "product_viewed",
        "partition": 0,
        "offset": 1,
        "arrived": "2026-11-15T12:35:00.000Z",
        "reason": "not JSON",
        "value": "{",
    }
    assert found["eu-shop_dead_letters", "product_viewed-0-2"]["value"] is None


def moment(time: str) -> dict[str, str]:
    return {"event_time": f"2026-11-15T{time}Z", "event_id": time, "order_id": f"o{time}"}


def test_sales_fall_into_one_minute_and_five_windows(spark: SparkSession) -> None:
    sent = [(BUY, change(BUY, **moment(time))) for time in ("12:31:10", "12:31:50", "12:34:00")]
    view = (VIEW, change(VIEW, event_id="v", session_id="other"))
    good = accepted(records(spark, *sent, sent[0], view, view), Names())
    found = table(minute_records(by_minute(good), Names()))
    minutes = {k: v["orders"] for (t, k), v in found.items() if t == topics.SALES_PER_MINUTE}
    assert minutes == {"2026-11-15T12:31:00Z": 2, "2026-11-15T12:34:00Z": 1}
    sliding = {k[11:16]: v["orders"] for (t, k), v in found.items() if t == topics.SALES_SLIDING}
    assert sliding == {
        "12:27": 2,
        "12:28": 2,
        "12:29": 2,
        "12:30": 3,
        "12:31": 3,
        "12:32": 1,
        "12:33": 1,
        "12:34": 1,
    }
    assert found[topics.FUNNEL, "2026-11-15T12:34:00Z"] == {
        "window_start": "2026-11-15T12:34:00Z",
        "window_end": "2026-11-15T12:35:00Z",
        "views": 1,
        "carts": 0,
        "purchases": 1,
    }
    assert found[topics.ACTIVE_SESSIONS, "2026-11-15T12:34:00Z"]["sessions"] == 2
    assert found[topics.PRODUCT_VIEWS, "2026-11-15T12:34:00Z/p0007"]["views"] == 1


def test_a_session_is_summed_up(spark: SparkSession) -> None:
    sent = [(VIEW, change(VIEW, **moment("12:30:00"))), (BUY, change(BUY, **moment("12:34:00.5")))]
    good = accepted(records(spark, *sent), Names())
    found = table(session_records(sessions(good), Names()))
    assert found == {
        (topics.USER_SESSIONS, "u00042/2026-11-15T12:30:00.000Z"): {
            "user_id": "u00042",
            "started": "2026-11-15T12:30:00.000Z",
            "ended": "2026-11-15T12:34:00.500Z",
            "views": 1,
            "carts": 0,
            "purchases": 1,
            "revenue_cents": 1999,
        }
    }


def test_a_purchase_meets_the_views_before_it_and_no_others(spark: SparkSession) -> None:
    sent = [
        (VIEW, change(VIEW, **moment("12:30:00"))),
        (VIEW, change(VIEW, **moment("12:34:30"))),
        (VIEW, change(VIEW, **moment("12:31:00"), product_id="p1")),
        (VIEW, change(VIEW, **moment("12:32:00"), user_id="other")),
        (BUY, change(BUY, **moment("12:34:00"))),
        (BUY, change(BUY, **moment("12:29:00"))),
    ]
    good = accepted(records(spark, *sent), Names())
    views, bought = good.where(f"topic = '{VIEW}'"), good.where(f"topic = '{BUY}'")
    found = table(joined_records(joined(views, bought), Names()))
    seconds = {key: row["seconds"] for (_, key), row in found.items()}
    assert seconds == {"o12:34:00/p0007/12:30:00": 240.0, "o12:29:00/p0007/-": None}


@pytest.mark.parametrize("topic", [topics.JOINED_PURCHASES, topics.USER_SESSIONS])
def test_the_contract_names_the_fields_that_are_written(spark: SparkSession, topic: str) -> None:
    sent = [(VIEW, change(VIEW, **moment("12:30:00"))), (BUY, change(BUY, **moment("12:34:00")))]
    good = accepted(records(spark, *sent), Names())
    views, bought = good.where(f"topic = '{VIEW}'"), good.where(f"topic = '{BUY}'")
    made = {
        topics.JOINED_PURCHASES: lambda: joined_records(joined(views, bought), Names()),
        topics.USER_SESSIONS: lambda: session_records(sessions(good), Names()),
    }
    (row,) = table(made[topic]()).values()
    assert row.keys() == topics.CONTRACTS[topic].value.keys()
