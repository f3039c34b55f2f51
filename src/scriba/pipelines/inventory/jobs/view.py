"""The books on Spark: the current stock of every item as a table, and the audit log as files.

The table is counted anew from the changes in the audit log, so it is a second opinion and not a
copy of what the writer says. Its state is in RocksDB; every change of a row is published, exactly
once, to a compacted topic, from which anyone has the table. A lost checkpoint is no loss: the query
reads the audit log again and publishes the same rows.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from scriba.client import Admin
from scriba.client.settings import ConsumerSettings, ProducerSettings
from scriba.pipelines.attempts import Attempts, reason
from scriba.pipelines.inventory.topics import Names, prepare_view
from scriba.pipelines.sparks import STATE
from scriba.spark import ExactlyOnceSink

EVENT: Final = (
    "type string, item string, change long, stock long, version long, command string, "
    "digest string, sequence long, line int, lines int, at long, reason string"
)

ROW: Final = "item string, stock long, version long, events long, told long"
"""A row of the table: the sum of all changes, the last version, how many events, and the stock as
the last event tells it."""


# -- transforms ----------------------------------------------------------------------------------


def parsed(value: Column, schema: str) -> Column:
    """JSON of a record; a record that is none ends the job, since nothing may be left out."""
    return F.from_json(value.cast("string"), schema, {"mode": "FAILFAST"})


def events(records: DataFrame) -> DataFrame:
    """The audit log, or the compacted topic, as one row for each event."""
    rows = records.withColumn("event", parsed(F.col("value"), EVENT))
    key = F.col("key").cast("string").alias("key")
    return rows.select("event.*", key, "value", "partition", "offset")


def current(events: DataFrame) -> DataFrame:
    """The table: one row for each item."""
    return events.groupBy("item").agg(
        F.sum("change").alias("stock"),
        F.max("version").alias("version"),
        F.count("*").alias("events"),
        F.max_by("stock", "version").alias("told"),
    )


def published(table: DataFrame) -> DataFrame:
    """The table as records of its topic."""
    row = F.to_json(F.struct("item", "stock", "version", "events", "told"))
    return table.select(F.col("item").alias("key"), row.alias("value"))


def latest(records: DataFrame) -> DataFrame:
    """What is left of a compacted topic: the last record of each key."""
    last = F.max_by(F.struct("value", "partition"), F.struct("offset", "partition"))
    return records.groupBy("key").agg(last.alias("last")).select("key", "last.value")


# -- queries -------------------------------------------------------------------------------------


def reading(client: Mapping[str, Any], topic: str) -> dict[str, str]:
    """Options that read what is committed of a topic."""
    given = {f"kafka.{k}": str(v) for k, v in client.items() if k in ConsumerSettings.table}
    return {**given, "subscribe": topic, "kafka.isolation.level": "read_committed"}


async def prepare_topic(client: Mapping[str, Any], names: Names, allow_single_node: bool) -> None:
    async with Admin(client) as admin:
        await prepare_view(admin, names, allow_single_node)


def start(
    spark: SparkSession,
    client: Mapping[str, Any],
    names: Names,
    checkpoint: str,
    trigger_ms: int | None,
) -> StreamingQuery:
    """Keeps the table; without a trigger only up to the present end."""
    options = {
        **reading(client, names.audit),
        "startingOffsets": "earliest",
        "groupId": f"{names.name}-view",
    }
    audit = spark.readStream.format("scriba").options(**options).load()
    given = {f"kafka.{k}": str(v) for k, v in client.items() if k in ProducerSettings.table}
    sink = ExactlyOnceSink({**given, "topic": names.stock, "sinkId": f"{names.name}-view"})
    writer = (
        published(current(events(audit)))
        .writeStream.outputMode("update")
        .queryName(f"{names.name}-view")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(sink)
    )
    if trigger_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    with _state_in_rocksdb(spark):
        return writer.start()


def archive(
    spark: SparkSession, client: Mapping[str, Any], names: Names, path: str, checkpoint: str
) -> StreamingQuery:
    """Copies the audit log to Parquet files, exactly once, up to the present end."""
    options = {**reading(client, names.audit), "startingOffsets": "earliest"}
    records = spark.readStream.format("scriba").options(**options).load()
    rows = records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        F.to_date("timestamp").alias("date"),
    )
    return (
        rows.writeStream.format("parquet")
        .option("path", path)
        .option("checkpointLocation", checkpoint)
        .partitionBy("topic", "date")
        .trigger(availableNow=True)
        .start()
    )


def keep(begin: Callable[[], StreamingQuery], told: Callable[[str], None]) -> None:
    """Until the query has ended; one that fails goes on from its checkpoint, with patience."""
    attempts = Attempts()
    while True:
        try:
            query = begin()
            query.awaitTermination()
            return
        except PySparkException as failure:
            pause = attempts.failed(failure, time.monotonic())
            if pause is None:
                raise
            told(f"{reason(failure)}; it goes on in {pause:.0f} s")
            time.sleep(pause)


@contextmanager
def _state_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """A query keeps the settings with which it was started."""
    before = {name: spark.conf.get(name, None) for name in STATE}
    for name, value in STATE.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
