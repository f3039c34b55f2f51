"""From records to events: read by an explicit schema, and judged one by one.

`judged` says of every record what becomes of it; `accepted` are the events that count. Nothing here
holds state, so the same functions serve streams and batches.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.rules import ALLOWED_LATENESS, BOTS, FROM_THE_FUTURE, interval
from scriba.pipelines.shop.topics import Names

DEAD_LETTER: Final = "dead_letters"
BOT: Final = "bots"
LATE: Final = "late"
ACCEPTED: Final = "accepted"
OUTCOMES: Final = (ACCEPTED, BOT, LATE, DEAD_LETTER)
"""By their names in shop_health."""

_UNREADABLE: Final = "_unreadable"

ITEM: Final = StructType(
    [
        StructField("product_id", StringType()),
        StructField("quantity", IntegerType()),
        StructField("price_cents", LongType()),
    ]
)
EVENT: Final = StructType(
    [
        StructField("event_id", StringType()),
        StructField("event_time", TimestampType()),
        StructField("user_id", StringType()),
        StructField("session_id", StringType()),
        StructField("device", StringType()),
        StructField("user_agent", StringType()),
        *ITEM.fields,
        StructField("order_id", StringType()),
        StructField("items", ArrayType(ITEM)),
        StructField("total_cents", LongType()),
        StructField(_UNREADABLE, StringType()),
    ]
)
"""Fields of all three kinds of events; which of them are needed depends on the topic."""


def plain_topic(names: Names) -> Column:
    """The topic's name without the shop's prefix."""
    return F.substring("topic", len(names.prefix) + 1, 1000).alias("topic")


def judged(records: DataFrame, names: Names) -> DataFrame:
    """Records of the connector with the event's fields, `outcome`, and `reason` if it is dead."""
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREADABLE}
    read = records.select(
        plain_topic(names),
        "partition",
        "offset",
        F.col("timestamp").alias("arrived"),
        text.alias("value"),
        F.from_json(text, EVENT, options).alias("event"),
    )
    flat = read.select("topic", "partition", "offset", "arrived", "value", "event.*")
    told = flat.withColumn("reason", _reason()).drop(_UNREADABLE)
    return told.withColumn("outcome", _outcome())


def accepted(records: DataFrame, names: Names) -> DataFrame:
    """The events that count; some of them may be there twice."""
    good = judged(records, names).where(F.col("outcome") == ACCEPTED)
    units = F.aggregate("items", F.lit(0), lambda total, item: total + item["quantity"])
    return good.select(
        "event_id",
        "event_time",
        "user_id",
        "session_id",
        "topic",
        "product_id",
        "order_id",
        "items",
        units.alias("units"),
        "total_cents",
    )


def _outcome() -> Column:
    late = F.col("arrived") - F.col("event_time") > F.expr(f"INTERVAL {interval(ALLOWED_LATENESS)}")
    return (
        F.when(F.col("reason").isNotNull(), DEAD_LETTER)
        .when(F.coalesce(F.col("user_agent").rlike(BOTS), F.lit(False)), BOT)
        .when(late, LATE)
        .otherwise(ACCEPTED)
    )


def _reason() -> Column:
    """Why nobody can use it: the first rule that it breaks, or null."""
    view = F.col("topic") == topics.PRODUCT_VIEWED
    cart = F.col("topic") == topics.ADD_TO_CART
    purchase = F.col("topic") == topics.PURCHASE_COMPLETED
    unreadable = F.col(_UNREADABLE).isNotNull() | F.col("value").isNull()
    ahead = F.col("event_time") > F.col("arrived") + F.expr(f"INTERVAL {interval(FROM_THE_FUTURE)}")
    rules: list[tuple[Column, str]] = [
        (unreadable & F.try_parse_json(F.col("value")).isNull(), "not JSON"),
        (unreadable, "a field has the wrong type"),
        *((_missing(name), f"{name} is missing") for name in ("event_id", "user_id")),
        (_missing("session_id"), "session_id is missing"),
        (F.col("event_time").isNull(), "event_time is missing"),
        (ahead, "event_time lies in the future"),
        ((view | cart) & _missing("product_id"), "product_id is missing"),
        (cart & _below("quantity", 1), "quantity is not above zero"),
        (cart & _below("price_cents", 0), "price_cents is missing or below zero"),
        (purchase & _missing("order_id"), "order_id is missing"),
        (purchase & (F.coalesce(F.size("items"), F.lit(0)) < 1), "items are missing"),
        (purchase & F.exists("items", _bad_item), "an item is not complete"),
        (purchase & ~F.equal_null("total_cents", _total()), "total_cents is not the sum of items"),
    ]
    return reduce(
        lambda told, rule: told.when(F.coalesce(rule[0], F.lit(False)), rule[1]),
        rules[1:],
        F.when(F.coalesce(rules[0][0], F.lit(False)), rules[0][1]),
    )


def _missing(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit("")) == ""


def _below(name: str, least: int) -> Column:
    return F.coalesce(F.col(name), F.lit(least - 1)) < least


def _bad_item(item: Column) -> Column:
    return (
        (F.coalesce(item["product_id"], F.lit("")) == "")
        | (F.coalesce(item["quantity"], F.lit(0)) < 1)
        | (F.coalesce(item["price_cents"], F.lit(-1)) < 0)
    )


def _total() -> Column:
    return F.aggregate(
        "items",
        F.lit(0).cast("long"),
        lambda total, item: total + item["quantity"] * item["price_cents"],
    )
