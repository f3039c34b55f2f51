"""The streaming queries of the shop, each with its own checkpoint, transactional id and group.

    intake     every record is judged; dead letters and late events go to their topics, all are
               counted by minute (shop_health)
    figures    all figures by the minute, and from the views of products the most viewed ones
    sessions   sessions of users, when they have ended
    joined     bought products with the views that led to them

All of them read the input topics themselves: what is computed depends only on the topics, so a
checkpoint that is lost is made anew by reading from the beginning. Results are keyed, and the
second time they are the same.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events import events
from scriba.pipelines.shop.events.rules import time_ms
from scriba.pipelines.shop.streaming import figures
from scriba.pipelines.shop.streaming.ranking import KEEP_MS as RANKED_MS
from scriba.pipelines.shop.streaming.ranking import Ranking
from scriba.pipelines.shop.streaming.tally import KEEP_MS as COUNTED_MS
from scriba.pipelines.shop.streaming.tally import Counts, Tally
from scriba.pipelines.shop.topics import Names
from scriba.pipelines.sparks import STATE
from scriba.spark.origin import QUERY
from scriba.spark.writing.exactly_once import ExactlyOnceSink

FORMATS: Final = {"scriba": "scriba", "official": "kafka"}

CONFIG: Final[Mapping[str, str]] = {
    **STATE,
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
"""The last one lets a query begin again whose very first batch failed and left some state, which
that batch then replaces."""

RECORD: Final = pa.schema([(name, pa.string()) for name in ("topic", "key", "value")])
Record = tuple[str, str, str]
View = tuple[int, str, int]
"""Minute in ms, product, how often it was viewed."""

Batch = Callable[[DataFrame, int], None]
Output = Callable[[Callable[[], pa.Table], int, SparkSession], bool]
"""Writes what a function makes, as one batch; False when that was written before."""
Start = Callable[[], StreamingQuery]


@dataclass(frozen=True)
class Settings:
    bootstrap: str
    checkpoints: str
    """A folder for all queries, anywhere Spark can write."""
    names: Names = field(default_factory=Names)
    connector: str = "scriba"
    trigger_seconds: float = 1.0
    """How often figures are brought up to date."""
    slow_trigger_seconds: float = 10.0
    """The same for sessions and joins, which take their time anyway."""
    max_offsets: int = 200_000
    """Records in a micro-batch: what a backlog is cut into."""
    to_the_end: bool = False
    """Whether to stop when everything that is there now was read."""

    @property
    def broker(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap}

    def group(self, name: str) -> str:
        """What a query is called in Spark, and its group, whose committed offsets show its lag."""
        return f"{self.names('shop')}-{name}"


class Shop:
    """Starts queries, in a session that knows the connector."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        for key, value in CONFIG.items():
            spark.conf.set(key, value)

    def queries(self, names: Iterable[str] | None = None) -> dict[str, Start]:
        """How to start each query, in the order of their starts; all of them unless some are
        named."""
        chosen = set(names or topics.QUERIES)
        return {name: partial(_QUERIES[name], self) for name in topics.QUERIES if name in chosen}

    # -- queries -----------------------------------------------------------------------------------

    def intake(self) -> StreamingQuery:
        names = self.settings.names
        rows = figures.outcome_records(
            events.judged(self.read("intake", topics.INPUTS), names, figures.OUTCOME), names
        )
        targets = (topics.HEALTH, topics.LATE_EVENTS, topics.DEAD_LETTERS)
        return self._write("intake", rows, "append", Intake(self, self.output("intake", targets)))

    def figures(self) -> StreamingQuery:
        names = self.settings.names
        good = events.accepted(self.read("figures", topics.INPUTS), names)
        targets = (
            topics.SALES_PER_MINUTE,
            topics.SALES_SLIDING,
            topics.FUNNEL,
            topics.ACTIVE_SESSIONS,
            topics.PRODUCT_VIEWS,
            topics.TOP_VIEWED_PRODUCTS,
        )
        batch = Figures(self, self.output("figures", targets))
        rows = figures.minute_records(figures.by_minute(good), names)
        return self._write("figures", rows, "update", batch)

    def sessions(self) -> StreamingQuery:
        good = events.accepted(self.read("sessions", topics.INPUTS), self.settings.names)
        ended = figures.session_records(figures.sessions(good), self.settings.names)
        sink = self.sink("sessions", (topics.USER_SESSIONS,))
        return self._write("sessions", ended, "append", sink)

    def joined(self) -> StreamingQuery:
        names = self.settings.names
        views = events.accepted(self.read("joined", (topics.PRODUCT_VIEWED,)), names)
        bought = events.accepted(self.read("joined-purchases", (topics.PURCHASE_COMPLETED,)), names)
        pairs = figures.joined_records(figures.joined(views, bought), names)
        sink = self.sink("joined", (topics.JOINED_PURCHASES,))
        return self._write("joined", pairs, "append", sink)

    # -- what they share ---------------------------------------------------------------------------

    def read(self, name: str, inputs: Iterable[str], headers: bool = False) -> DataFrame:
        settings = self.settings
        reader = self.spark.readStream.format(FORMATS[settings.connector]).options(
            **settings.broker,
            subscribe=",".join(settings.names.all(inputs)),
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(settings.max_offsets),
            includeHeaders=str(headers).lower(),
        )
        reader = reader.option("kafka.isolation.level", "read_committed")
        if settings.connector == "scriba":
            reader = reader.option("groupId", settings.group(name))
            reader = reader.option("alignByTimestamp", "true")
        return reader.load()

    def sink(self, name: str, targets: Iterable[str]) -> Batch:
        """For rows of Spark."""
        if self.settings.connector == "official":
            return _official(self.settings.broker)
        return self._exactly_once(name, targets)

    def output(self, name: str, targets: Iterable[str]) -> Output:
        """For rows that the driver has."""
        if self.settings.connector == "official":
            return _official_output(self.settings.broker)
        return self._exactly_once(name, targets).write

    def _exactly_once(self, name: str, targets: Iterable[str]) -> ExactlyOnceSink:
        settings = self.settings
        written = ",".join(settings.names.all(targets))
        return ExactlyOnceSink(
            {
                **settings.broker,
                "topics": written,
                "sinkId": settings.group(name),
                "tasks": "1",
            }
        )

    def table(self, session: SparkSession, topic: str, since_ms: int) -> list[dict[str, Any]]:
        """What a compacted topic says now: the last value of each key, of those written since."""
        settings = self.settings
        records = (
            session.read.format(FORMATS[settings.connector])
            .options(**settings.broker, subscribe=settings.names(topic))
            .option("kafka.isolation.level", "read_committed")
            .option("startingTimestamp", str(max(0, since_ms)))
            .option("startingOffsetsByTimestampStrategy", "latest")
            .load()
        )
        last = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
        return [json.loads(row.value) for row in last.collect()]

    def _write(self, name: str, rows: DataFrame, mode: str, batch: Batch) -> StreamingQuery:
        settings = self.settings
        seconds = settings.slow_trigger_seconds if name in SLOW else settings.trigger_seconds
        writer = (
            rows.writeStream.queryName(settings.group(name))
            .outputMode(mode)
            .option("checkpointLocation", f"{settings.checkpoints}/{name}")
            .foreachBatch(batch)
        )
        if settings.to_the_end:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds")
        # The query's thread takes the pool over; those in one pool would wait for each other.
        context = self.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", name)
        try:
            return writer.start()
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


SLOW: Final = ("sessions", "joined")
_QUERIES: Final[Mapping[str, Callable[[Shop], StreamingQuery]]] = {
    "intake": Shop.intake,
    "figures": Shop.figures,
    "sessions": Shop.sessions,
    "joined": Shop.joined,
}


def _official(broker: Mapping[str, str]) -> Batch:
    """Spark's own sink, which may write a batch twice: upserts bear it."""

    def write(records: DataFrame, batch: int) -> None:
        records.write.format("kafka").options(**broker).save()

    return write


def _official_output(broker: Mapping[str, str]) -> Output:
    write = _official(broker)

    def output(make: Callable[[], pa.Table], batch: int, session: SparkSession) -> bool:
        write(session.createDataFrame(make()), batch)
        return True

    return output


def table(records: list[Record]) -> pa.Table:
    columns = zip(*records, strict=True) if records else ((), (), ())
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=RECORD)


def records_of(rows: pa.Table) -> pa.Table:
    """Without what is not written; Spark says of some columns that they are never null."""
    return rows.select(RECORD.names).cast(RECORD)


def query_id(rows: DataFrame) -> str:
    """Of the query whose batch this is."""
    found = rows.sparkSession.sparkContext.getLocalProperty(QUERY)
    assert found is not None
    return str(found)


class Figures:
    """Writes what changed in a batch, and the most viewed products that follow from it.

    The driver needs the views anyway, so it takes all that changed and writes it: a batch is one
    job. What changes is of the order of what came in, of which `max_offsets` is the most.
    """

    def __init__(self, shop: Shop, output: Output) -> None:
        self._shop = shop
        self._output = output
        self._ranking: Ranking | None = None

    def __call__(self, changed: DataFrame, batch: int) -> None:
        found = changed.toArrow()
        viewed = found.filter(pc.is_valid(found["minute"])).select(["minute", "about", "views"])
        views = list(zip(*(column.to_pylist() for column in viewed.columns), strict=True))
        session = changed.sparkSession

        def records() -> pa.Table:
            tops = self._tops(session, batch, views) if views else []
            return pa.concat_tables([records_of(found), table(tops)])

        self._output(records, batch, session)

    def _tops(self, session: SparkSession, batch: int, views: list[View]) -> list[Record]:
        ranking = self._ranking or self._restored(session, batch, min(views)[0])
        self._ranking = ranking
        for view in views:
            ranking.put(*view)
        topic = self._shop.settings.names(topics.TOP_VIEWED_PRODUCTS)
        return [(topic, key, json.dumps(value)) for key, value in ranking.changed()]

    def _restored(self, session: SparkSession, batch: int, minute: int) -> Ranking:
        ranking = Ranking()
        if batch > 0:
            for row in self._shop.table(session, topics.PRODUCT_VIEWS, minute - RANKED_MS):
                ranking.put(time_ms(row["window_start"]), row["product_id"], row["views"])
            ranking.restored()
        return ranking


class Intake:
    """Writes what was rejected in a batch, and counts all of it; the driver does, as above."""

    def __init__(self, shop: Shop, output: Output) -> None:
        self._shop = shop
        self._output = output
        self._tally: Tally | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found = rows.toArrow()
        groups = found.group_by(["minute", "outcome"]).aggregate([([], "count_all")])
        counts = {(row["minute"], row["outcome"]): row["count_all"] for row in groups.to_pylist()}

        def records() -> pa.Table:
            rejected = records_of(found.filter(pc.is_valid(found["topic"])))
            health = self._health(rows, batch, counts) if counts else []
            return pa.concat_tables([rejected, table(health)])

        if self._output(records, batch, rows.sparkSession) and self._tally is not None:
            self._tally.add(counts)

    def _health(self, rows: DataFrame, batch: int, counts: Counts) -> list[Record]:
        tally = self._tally or self._restored(rows, batch, min(counts)[0])
        self._tally = tally
        topic = self._shop.settings.names(topics.HEALTH)
        return [(topic, row["minute"], json.dumps(row)) for row in tally.with_batch(counts)]

    def _restored(self, rows: DataFrame, batch: int, minute: int) -> Tally:
        tally = Tally(query_id(rows))
        if batch > 0:
            there = self._shop.table(rows.sparkSession, topics.HEALTH, minute - COUNTED_MS)
            tally.restore(there)  # type: ignore[arg-type]
        return tally
