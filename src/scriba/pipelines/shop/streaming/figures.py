"""The figures: from events that count to what the aggregate topics say.

`by_minute` is one aggregation for all figures that are kept by the minute, so that two cores keep
up: an event is spread into the measures it belongs to, and one group is one measure of one window.

*Windows.* Every window is five minutes long and ends with a minute. Sales are put into all five
windows they belong to; summed over all of a window they are the sliding sales, summed over its last
minute those of that minute. Everything else counts only in the window whose last minute it is.

*Duplicates.* An event is known by its id. A session that is active in a minute is known by its name
and the minute: dropping duplicates of both kinds of names at once removes repeated events and
leaves one row for each active session, which then only need counting.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.checks import DEAD_LETTER, LATE
from scriba.pipelines.shop.events.rules import (
    LOOKED_BEFORE,
    MINUTE_MS,
    SESSION_GAP,
    SLIDE,
    SLIDING,
    WATERMARK,
    interval,
)
from scriba.pipelines.shop.topics import Names

SALES: Final = "sales"
FUNNEL: Final = "funnel"
VIEWS: Final = "views"
ACTIVE: Final = "active"

_EVENT: Final = "e"
_SESSION: Final = "s"
"""What names begin with."""

LARGEST: Final = 2**63 - 1

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_WINDOW: Final = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def once(events: DataFrame) -> DataFrame:
    """Without the copies of events that were sent again."""
    return _distinct(events.withWatermark("event_time", interval(WATERMARK)), "event_id")


def _distinct(rows: DataFrame, name: str) -> DataFrame:
    """One row of each name; a stream forgets names with the watermark, a table needs not."""
    if rows.isStreaming:
        return rows.dropDuplicatesWithinWatermark([name])
    return rows.dropDuplicates([name])


def by_minute(events: DataFrame) -> DataFrame:
    """Measures by window; in update mode, every row that changed with its new sums."""
    minute = F.unix_timestamp(F.date_trunc("minute", "event_time"))
    session = F.concat_ws("@", F.concat(F.lit(_SESSION), "session_id"), minute)
    event = F.concat(F.lit(_EVENT), "event_id")
    named = events.withColumn("name", F.explode(F.array(event, session)))
    marked = named.withWatermark("event_time", interval(WATERMARK))
    spread = _distinct(marked, "name").withColumn("of", F.explode(_measures()))
    windowed = spread.select(
        F.window("event_time", interval(SLIDING), interval(SLIDE)).alias("window"),
        "event_time",
        "topic",
        "units",
        "total_cents",
        F.col("of.measure").alias("measure"),
        F.col("of.about").alias("about"),
    )
    last = F.col("event_time") >= F.col("window.end") - F.expr(f"INTERVAL {interval(SLIDE)}")
    counted = windowed.withColumn("last", last).where(F.col("last") | (F.col("measure") == SALES))
    return counted.groupBy("window", "measure", "about").agg(
        F.count("*").alias("rows"),
        _sum(F.col("units")).alias("units"),
        _sum(F.col("total_cents")).alias("cents"),
        F.count_if("last").alias("last_rows"),
        _sum(F.when(F.col("last"), F.col("units"))).alias("last_units"),
        _sum(F.when(F.col("last"), F.col("total_cents"))).alias("last_cents"),
        *(
            F.count_if(F.col("topic") == topic).alias(step)
            for topic, step in zip(topics.INPUTS, ("views", "carts", "purchases"), strict=True)
        ),
    )


def _sum(amounts: Column) -> Column:
    """Of what is there, 0 of nothing. A sum that no longer fits says the largest number there is,
    rather than that it ends the query."""
    none = F.count(amounts) == 0
    return F.when(none, F.lit(0)).otherwise(F.coalesce(F.try_sum(amounts), F.lit(LARGEST)))


def _measures() -> Column:
    def one(measure: str, about: Column) -> Column:
        return F.struct(F.lit(measure).alias("measure"), about.alias("about"))

    nothing, topic = F.lit(""), F.col("topic")
    funnel = one(FUNNEL, nothing)
    return (
        F.when(F.col("name").startswith(_SESSION), F.array(one(ACTIVE, nothing)))
        .when(topic == topics.PRODUCT_VIEWED, F.array(funnel, one(VIEWS, F.col("product_id"))))
        .when(topic == topics.PURCHASE_COMPLETED, F.array(funnel, one(SALES, nothing)))
        .otherwise(F.array(funnel))
    )


def minute_records(changed: DataFrame, names: Names) -> DataFrame:
    """What `by_minute` found, as records for the topics; those that say how often a product was
    viewed also with the minute, in ms, and the number, for the ranking."""
    measure = F.col("measure")
    end = F.date_format("window.end", _WINDOW).alias("window_end")
    minute = F.date_format(F.col("window.end") - F.expr(f"INTERVAL {interval(SLIDE)}"), _WINDOW)
    start = F.date_format("window.start", _WINDOW)

    def record(topic: str, key: Column, first: Column, *fields: Column) -> Column:
        value = F.to_json(F.struct(first.alias("window_start"), end, *fields))
        return F.struct(F.lit(names(topic)).alias("topic"), key.alias("key"), value.alias("value"))

    def sales(topic: str, first: Column, prefix: str) -> Column:
        sums = ("rows", "orders"), ("units", "units"), ("cents", "revenue_cents")
        fields = [F.col(prefix + column).alias(name) for column, name in sums]
        return record(topic, first, first, *fields)

    views = F.concat_ws("/", minute, "about")
    product = F.col("about").alias("product_id")
    minute_sales = sales(topics.SALES_PER_MINUTE, minute, "last_")
    sliding = sales(topics.SALES_SLIDING, start, "")
    made = (
        F.when(
            measure == VIEWS,
            F.array(record(topics.PRODUCT_VIEWS, views, minute, product, F.col("views"))),
        )
        .when(
            measure == FUNNEL,
            F.array(record(topics.FUNNEL, minute, minute, *map(F.col, _STEPS))),
        )
        .when(
            measure == ACTIVE,
            F.array(
                record(topics.ACTIVE_SESSIONS, minute, minute, F.col("rows").alias("sessions"))
            ),
        )
        .when(F.col("last_rows") > 0, F.array(sliding, minute_sales))
        .otherwise(F.array(sliding))
    )
    of_views = measure == VIEWS
    return changed.select(
        F.explode(made).alias("record"),
        F.when(of_views, _start_ms()).alias("minute"),
        "about",
        F.when(of_views, F.col("views")).alias("views"),
    ).select("record.*", "minute", "about", "views")


def _start_ms() -> Column:
    """Of a window's last minute."""
    return F.unix_millis("window.end") - F.lit(MINUTE_MS)


_STEPS: Final = ("views", "carts", "purchases")


def sessions(events: DataFrame) -> DataFrame:
    """Sessions of users; in append mode, each when nothing can be added to it any more."""
    topic = F.col("topic")
    gap = F.session_window("event_time", interval(SESSION_GAP))
    return (
        once(events)
        .groupBy("user_id", gap.alias("session"))
        .agg(
            F.min("event_time").alias("started"),
            F.max("event_time").alias("ended"),
            *(
                F.count_if(topic == name).alias(step)
                for name, step in zip(topics.INPUTS, _STEPS, strict=True)
            ),
            _sum(F.col("total_cents")).alias("revenue_cents"),
        )
    )


def session_records(ended: DataFrame, names: Names) -> DataFrame:
    started = F.date_format("started", _TIME)
    value = F.struct(
        "user_id",
        started.alias("started"),
        F.date_format("ended", _TIME).alias("ended"),
        *_STEPS,
        "revenue_cents",
    )
    return ended.select(
        F.lit(names(topics.USER_SESSIONS)).alias("topic"),
        F.concat_ws("/", "user_id", started).alias("key"),
        F.to_json(value).alias("value"),
    )


def joined(views: DataFrame, purchases: DataFrame) -> DataFrame:
    """Bought products with the views before; copies of events give the same rows again."""
    looked = views.withWatermark("event_time", interval(WATERMARK)).select(
        F.col("user_id").alias("viewer"),
        F.col("product_id").alias("viewed_product"),
        F.col("event_id").alias("view_id"),
        F.col("event_time").alias("viewed"),
    )
    bought = (
        purchases.withWatermark("event_time", interval(WATERMARK))
        .withColumn("item", F.explode("items"))
        .select("order_id", "user_id", F.col("event_time").alias("purchased"), "item.*")
    )
    before = F.expr(f"INTERVAL {interval(LOOKED_BEFORE)}")
    same = (
        (F.col("viewer") == F.col("user_id"))
        & (F.col("viewed_product") == F.col("product_id"))
        & (F.col("viewed") <= F.col("purchased"))
        & (F.col("viewed") >= F.col("purchased") - before)
    )
    return bought.join(looked, same, "left_outer")


def joined_records(pairs: DataFrame, names: Names) -> DataFrame:
    took = F.unix_millis("purchased") - F.unix_millis("viewed")
    value = F.struct(
        "order_id",
        "user_id",
        "product_id",
        F.date_format("purchased", _TIME).alias("purchased"),
        "quantity",
        "price_cents",
        "view_id",
        F.date_format("viewed", _TIME).alias("viewed"),
        (took / 1000).alias("seconds"),
    )
    view = F.coalesce(F.col("view_id"), F.lit("-"))
    return pairs.select(
        F.lit(names(topics.JOINED_PURCHASES)).alias("topic"),
        F.concat_ws("/", "order_id", "product_id", view).alias("key"),
        F.to_json(value, {"ignoreNullFields": "false"}).alias("value"),
    )


OUTCOME: Final = ("outcome", "reason", "rejected", "event_time")
"""What `outcome_records` needs to know of a judged record."""


def outcome_records(rows: DataFrame, names: Names) -> DataFrame:
    """What became of every record in which minute of arrival, in ms; and for late events and dead
    letters a record, keyed by where it came from, so that each is there once."""
    arrived = F.date_format("arrived", _TIME).alias("arrived")
    place = [F.col("topic"), F.col("partition"), F.col("offset"), arrived]
    seconds = (F.unix_millis("arrived") - F.unix_millis("event_time")) / 1000
    head = F.to_json(F.struct(*place, seconds.alias("seconds")))
    sent = F.col("rejected")
    late = F.concat(F.substring_index(head, "}", 1), F.lit(',"event":'), sent, F.lit("}"))
    letter = F.struct(*place, "reason", sent.alias("value"))
    dead = F.to_json(letter, {"ignoreNullFields": "false"})
    is_late = F.col("outcome") == LATE
    is_dead = F.col("outcome") == DEAD_LETTER
    target = F.when(is_late, names(topics.LATE_EVENTS)).when(is_dead, names(topics.DEAD_LETTERS))
    return rows.select(
        F.unix_millis(F.date_trunc("minute", "arrived")).alias("minute"),
        "outcome",
        target.alias("topic"),
        F.when(is_late | is_dead, F.concat_ws("-", "topic", "partition", "offset")).alias("key"),
        F.when(is_late, late).when(is_dead, dead).alias("value"),
    )
