"""Questions to the lake, answered with Spark SQL over everything that ever arrived.

The views are `records`, as they are kept, and `events`: read and judged like those of the live
figures and counted once, but late events count too, as nobody is waiting.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from scriba.pipelines.attempts import reason
from scriba.pipelines.shop.lake.ids import each_event_once
from scriba.pipelines.shop.lake.lake import Lake

QUESTIONS: Final[Mapping[str, str]] = {
    "top-products": """
        SELECT day, rank, product_id, views FROM (
            SELECT day, product_id, views,
                   row_number() OVER (PARTITION BY day ORDER BY views DESC, product_id) AS rank
            FROM (SELECT day, product_id, count(*) AS views FROM events
                  WHERE topic = 'product_viewed' GROUP BY day, product_id))
        WHERE rank <= 10 ORDER BY day, rank""",
    "conversion": """
        SELECT day, count(*) AS sessions, count_if(carts > 0) AS with_cart,
               count_if(purchases > 0) AS with_purchase,
               round(100 * count_if(purchases > 0) / count(*), 2) AS percent
        FROM (SELECT min(day) AS day, session_id,
                     count_if(topic = 'add_to_cart') AS carts,
                     count_if(topic = 'purchase_completed') AS purchases
              FROM events GROUP BY session_id)
        GROUP BY day ORDER BY day""",
    "revenue": """
        SELECT date_format(event_time, 'yyyy-MM-dd HH:00') AS hour, count(*) AS orders,
               try_sum(units) AS units, try_sum(total_cents) AS revenue_cents
        FROM events WHERE topic = 'purchase_completed' GROUP BY hour ORDER BY hour""",
}


class NoRecords(Exception):
    """The lake is empty, or lies elsewhere."""


class NotAnswered(Exception):
    """Spark refuses the question, for the reason given."""


WRONG: Final = (PySparkException, Py4JJavaError)
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where pyspark tells it as well, on standard error and at length, with what Java says."""


def ask(
    spark: SparkSession, lake: Lake, sql: str, since: str | None = None, until: str | None = None
) -> DataFrame:
    """The answer to SQL over `records` and `events` that arrived on these days."""
    hours = lake.hours()
    if not hours:
        raise NoRecords("the lake holds no records")
    if since is not None:
        hours = [hour for hour in hours if hour.place.date >= since]
    if until is not None:
        hours = [hour for hour in hours if hour.place.date <= until]
    lake.rows(hours).createOrReplaceTempView("records")
    once = each_event_once(spark, lake, hours)
    days = once.withColumn("day", F.date_format("event_time", "yyyy-MM-dd"))
    days.createOrReplaceTempView("events")
    with _refused_in_short():
        return spark.sql(sql)


def answer(asked: DataFrame) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows; some of what is wrong with a question shows only when it is answered."""
    with _refused_in_short():
        return asked.columns, [tuple(row) for row in asked.collect()]


@contextlib.contextmanager
def _refused_in_short() -> Iterator[None]:
    """What Spark refuses is told once, in a line."""
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except WRONG as wrong:
        raise NotAnswered(reason(wrong).rstrip(";")) from wrong
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
