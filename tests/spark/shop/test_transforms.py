"""The transforms on small frames: what becomes of a record, and what windows hold."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.checks import DEAD_LETTER, LATE, OUTCOMES, judge
from scriba.pipelines.shop.events.events import accepted, judged
from scriba.pipelines.shop.streaming.figures import (
    LARGEST,
    OUTCOME,
    by_minute,
    joined,
    joined_records,
    minute_records,
    outcome_records,
    session_records,
    sessions,
)
from scriba.pipelines.shop.topics import Names
from tests.spark.shop.nasty import Nasty

COLUMNS = "value binary, topic string, partition int, offset long, timestamp timestamp"
ARRIVED = datetime(2026, 11, 15, 12, 35, tzinfo=UTC)


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


def test_spark_says_of_every_record_what_the_rules_say(spark: SparkSession) -> None:
    """And of a good many hostile ones."""
    sent = Nasty("2026-11-15T12:34:56.789Z", "2026-11-15T11:00:00Z").values()
    found = judged(records(spark, *((f"eu-{t}", value) for t, value in sent)), Names("eu-"))
    rows = found.orderBy("offset").collect()
    at = round(ARRIVED.timestamp() * 1_000_000)
    said = [judge(topic, value, at) for topic, value in sent]
    assert [(row.outcome, row.reason) for row in rows] == [(v.outcome, v.reason) for v in said]
    assert [row.topic for row in rows] == [topic for topic, _ in sent]
    assert {v.outcome for v in said} == set(OUTCOMES)
    written = outcome_records(judged(records(spark, *sent), Names(), OUTCOME), Names()).where(
        "key is not null"
    )
    kept = table(written)
    assert len(kept) == sum(v.outcome in (LATE, DEAD_LETTER) for v in said)
    assert max(len(json.dumps(value)) for value in kept.values()) < 1_000_000


def test_sums_that_do_not_fit_say_the_largest_number(spark: SparkSession) -> None:
    """Instead of ending the query; no rule lets so much money through, so it is put in by hand."""
    good = accepted(
        records(spark, *((BUY, change(BUY, **moment(t))) for t in ("12:31:10", "12:31:11"))),
        Names(),
    )
    rich = good.withColumn("total_cents", F.lit(9 * 10**18)).withColumn("units", F.lit(2**62))
    found = table(minute_records(by_minute(rich), Names()))
    sales = found[topics.SALES_PER_MINUTE, "2026-11-15T12:31:00Z"]
    assert (sales["orders"], sales["revenue_cents"], sales["units"]) == (2, LARGEST, LARGEST)
    (session,) = table(session_records(sessions(rich), Names())).values()
    assert session["revenue_cents"] == LARGEST


def test_what_is_rejected_is_kept_as_it_was_sent(spark: SparkSession) -> None:
    late = change(VIEW, event_time="2026-11-15T12:00:00.000Z")
    rows = judged(records(spark, (VIEW, late), (VIEW, b"{"), (VIEW, None)), Names(), OUTCOME)
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
