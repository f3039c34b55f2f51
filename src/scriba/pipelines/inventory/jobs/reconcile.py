"""Recounts everything on Spark, and reports what does not agree.

    audit log   every item: versions without a gap, each stock the one before and the change, never
                below zero; every command as a whole; the commands numbered without a gap
    events      the compacted topic says of every item what the audit log says
    view        the table that Spark publishes agrees with the audit log at its version
    lake        files of the audit log hold the same records, each once

It may run while the inventory is written to. Topics are not read at one moment, so the order of
looking matters: the audit log's end is noted first (all before it must be in the compacted topic),
then that of the others, then the audit log's again (nothing may be ahead of it). A transaction's
markers reach partitions one by one: an end counts once all transactions before it have ended.
View and lake come later by nature; how far they are behind is told, and no difference.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from scriba.client import Admin, ClientError, Isolation, OffsetSpec, TimedOut, TopicPartition
from scriba.pipelines.inventory.jobs.view import EVENT, ROW, events, latest, parsed, reading
from scriba.pipelines.inventory.topics import Names, described

TOLD: Final = 1000
"""Most differences that are named; more are not counted."""
SETTLING_SECONDS: Final = 120.0
_MISSING: Final = "check --name; without a view say --no-view"

Ends = dict[TopicPartition, int]


@dataclass
class Report:
    items: int = 0
    events: int = 0
    commands: int = 0
    stock: int = 0
    """Of all items together."""
    behind: dict[str, int] = field(default_factory=dict)
    """Events that a source does not have yet."""
    differences: list[tuple[str, str]] = field(default_factory=list)
    """Source, and what is wrong with it."""

    @property
    def balanced(self) -> bool:
        return not self.differences

    def document(self) -> dict[str, Any]:
        return {
            "balanced": self.balanced,
            "items": self.items,
            "events": self.events,
            "commands": self.commands,
            "stock": self.stock,
            "behind": self.behind,
            "differences": [{"source": source, "what": what} for source, what in self.differences],
        }

    def lines(self) -> list[str]:
        counts = Counter(source for source, _ in self.differences)
        told = [f"{source}: {what}" for source, what in self.differences[:20]]
        if len(self.differences) > len(told):
            told.append(f"... {len(self.differences) - len(told)} more: {dict(counts)}")
        for source, count in self.behind.items():
            if count:
                told.append(f"{source} is {count} events behind")
        verdict = "the books balance" if self.balanced else "the books do NOT balance"
        return [
            *told,
            f"{verdict}: {self.events} events of {self.commands} commands, {self.items} items, "
            f"{self.stock} units",
        ]


def reconcile(
    spark: SparkSession,
    client: Mapping[str, Any],
    names: Names,
    *,
    lake: str | None = None,
    with_view: bool = True,
    settled: bool = False,
) -> Report:
    files = None if lake is None else spark.read.parquet(lake)
    ends = asyncio.run(_look(client, names, with_view))
    audit = events(_batch(spark, client, ends[names.audit])).persist()
    compacted = parse_events(latest(_batch(spark, client, ends[names.events]))).persist()
    kept = [audit, compacted]
    try:
        report = _counted(audit)
        found = [
            chain_breaks(audit),
            broken_commands(audit),
            differing(audit, compacted, "events", ends["before"]),
        ]
        if with_view:
            table = parse_rows(latest(_batch(spark, client, ends[names.stock]))).persist()
            kept.append(table)
            found += [differing(audit, table, "view", None), miscounted(table)]
            report.behind["view"] = behind(audit, table)
        if files is not None:
            held = files.where(F.col("topic") == names.audit)
            found.append(lake_differences(audit, held))
            distinct = held.select("partition", "offset").distinct().count()
            report.behind["lake"] = max(0, report.events - distinct)
        told = reduce(DataFrame.unionAll, found).limit(TOLD).collect()
        report.differences += [(row.source, row.what) for row in told]
    finally:
        for frame in kept:
            frame.unpersist()
    if settled:
        for source, count in report.behind.items():
            if count:
                report.differences.append((source, f"{count} events are missing"))
    return report


# -- where to read -------------------------------------------------------------------------------


async def _look(client: Mapping[str, Any], names: Names, with_view: bool) -> dict[str, Ends]:
    """The ends of the topics, in an order that makes them comparable (see above)."""
    wanted = [names.audit, names.events, *([names.stock] if with_view else [])]
    async with Admin(client) as admin:
        topics = await described(admin, wanted)
        for name in wanted:
            if name not in topics:
                raise ClientError(f"there is no topic {name}", fix=_MISSING)
        places = {
            name: [TopicPartition(name, p.partition) for p in topic.partitions]
            for name, topic in topics.items()
        }
        ends = {"before": await _stable_ends(admin, places[names.audit])}
        for name in reversed(wanted):
            ends[name] = await _stable_ends(admin, places[name])
    return ends


async def _stable_ends(admin: Admin, places: list[TopicPartition]) -> Ends:
    """The ends as they are now, once every transaction before them has ended."""
    now = await _ends(admin, places, Isolation.READ_UNCOMMITTED)
    deadline = time.monotonic() + SETTLING_SECONDS
    while True:
        stable = await _ends(admin, places, Isolation.READ_COMMITTED)
        if all(stable[where] >= end for where, end in now.items()):
            return stable
        if time.monotonic() > deadline:
            raise TimedOut(
                "a transaction stays open in the topics",
                fix="look at it with `scriba txn list --state Ongoing`",
            )
        await asyncio.sleep(0.05)


async def _ends(admin: Admin, places: list[TopicPartition], isolation: Isolation) -> Ends:
    wanted: dict[tuple[str, int], int] = dict.fromkeys(places, OffsetSpec.LATEST)
    found = await admin.list_offsets(wanted, isolation=isolation)
    return {where: place.offset for where, place in found.items() if place is not None}


def _batch(spark: SparkSession, client: Mapping[str, Any], ends: Ends) -> DataFrame:
    topic = next(iter(ends)).topic
    until = json.dumps({topic: {str(where.partition): end for where, end in ends.items()}})
    options = {**reading(client, topic), "endingOffsets": until}
    return spark.read.format("scriba").options(**options).load()


# -- what to compare: plain DataFrames -----------------------------------------------------------


def parse_events(records: DataFrame) -> DataFrame:
    return records.select(parsed(F.col("value"), EVENT).alias("event")).select("event.*")


def parse_rows(records: DataFrame) -> DataFrame:
    return records.select(parsed(F.col("value"), ROW).alias("row")).select("row.*")


def _counted(audit: DataFrame) -> Report:
    row = audit.agg(
        F.count_distinct("item"), F.count("*"), F.count_distinct("command"), F.sum("change")
    ).collect()[0]
    return Report(row[0], row[1], row[2], row[3] or 0)


def _found(rows: DataFrame, source: str, *what: Any) -> DataFrame:
    return rows.select(F.lit(source).alias("source"), F.concat(*what).alias("what"))


def chain_breaks(audit: DataFrame) -> DataFrame:
    """Events that do not follow from the one before."""
    order = Window.partitionBy("item").orderBy("version", "offset")
    rows = audit.withColumn("last_version", F.lag("version", 1, 0).over(order))
    rows = rows.withColumn("last_stock", F.lag("stock", 1, 0).over(order))
    wrong = rows.where(
        (F.col("version") != F.col("last_version") + 1)
        | (F.col("stock") != F.col("last_stock") + F.col("change"))
        | (F.col("stock") < 0)
        | (F.col("key") != F.col("item"))
        | ((F.col("type") == "StockReceived") & (F.col("change") <= 0))
        | ((F.col("type") == "StockDecreased") & (F.col("change") >= 0))
    )
    return _found(
        wrong,
        "audit",
        F.format_string(
            "%s: version %d with change %d and stock %d follows version %d with stock %d",
            "item",
            "version",
            "change",
            "stock",
            "last_version",
            "last_stock",
        ),
    )


def broken_commands(audit: DataFrame) -> DataFrame:
    """Commands that are not there as a whole, and numbers of commands that are missing."""
    commands = audit.groupBy("command").agg(
        F.count("*").alias("found"),
        F.count_distinct("line").alias("distinct"),
        F.max("lines").alias("lines"),
        F.min("sequence").alias("sequence"),
        F.max("sequence").alias("last"),
    )
    torn = commands.where(
        (F.col("found") != F.col("lines"))
        | (F.col("distinct") != F.col("lines"))
        | (F.col("sequence") != F.col("last"))
    )
    order = Window.orderBy("sequence", "command")
    gaps = commands.withColumn("previous", F.lag("sequence", 1, 0).over(order)).where(
        F.col("sequence") != F.col("previous") + 1
    )
    return _found(
        torn, "audit", F.format_string("command %s: %d of %d lines", "command", "found", "lines")
    ).unionAll(
        _found(
            gaps,
            "audit",
            F.format_string("command %s: number %d after %d", "command", "sequence", "previous"),
        )
    )


def differing(audit: DataFrame, table: DataFrame, source: str, before: Ends | None) -> DataFrame:
    """Rows of a table that are not what the audit log says at their version; with `before`, also
    those that are older than what the audit log held before these offsets."""
    spoken = table.select("item", F.col("stock").alias("theirs"), "version")
    ours = audit.select("item", "stock", "version")
    wrong = spoken.join(ours, ["item", "version"], "left").where(
        F.col("stock").isNull() | (F.col("stock") != F.col("theirs"))
    )
    found = _found(
        wrong,
        source,
        F.format_string("%s: stock %d at version %d", "item", "theirs", "version"),
        F.when(F.col("stock").isNull(), ", which the audit log does not have").otherwise(
            F.format_string(", where the audit log has %d", "stock")
        ),
    )
    if before is None:
        return found
    bounds = reduce(
        lambda one, other: one | other,
        [
            (F.col("partition") == w.partition) & (F.col("offset") < end)
            for w, end in before.items()
        ],
    )
    due = audit.where(bounds).groupBy("item").agg(F.max("version").alias("due"))
    late = due.join(spoken, "item", "left").where(
        F.col("version").isNull() | (F.col("version") < F.col("due"))
    )
    have = F.coalesce(F.col("version"), F.lit(0))
    return found.unionAll(
        _found(
            late.withColumn("have", have),
            source,
            F.format_string("%s: version %d is missing, %d is the last", "item", "due", "have"),
        )
    )


def miscounted(table: DataFrame) -> DataFrame:
    """Rows of the view whose sum, count and last word do not agree among themselves."""
    wrong = table.where((F.col("stock") != F.col("told")) | (F.col("events") != F.col("version")))
    return _found(
        wrong,
        "view",
        F.format_string(
            "%s: %d counted, %d told, from %d events at version %d",
            "item",
            "stock",
            "told",
            "events",
            "version",
        ),
    )


def behind(audit: DataFrame, table: DataFrame) -> int:
    """Events of the audit log that a table does not have yet."""
    ours = audit.groupBy("item").agg(F.max("version").alias("ours"))
    theirs = table.select("item", "version")
    late = F.greatest(F.lit(0), F.col("ours") - F.coalesce(F.col("version"), F.lit(0)))
    total = ours.join(theirs, "item", "left").agg(F.sum(late)).collect()[0][0]
    return int(total or 0)


def lake_differences(audit: DataFrame, lake: DataFrame) -> DataFrame:
    """Records that files lack, hold twice, or hold otherwise. Files end somewhere in each
    partition; what comes after is not missing yet."""
    held = lake.groupBy("partition", "offset").agg(
        F.count("*").alias("copies"), F.min("value").alias("theirs")
    )
    last = held.groupBy("partition").agg(F.max("offset").alias("last"))
    ours = audit.select("partition", "offset", "value").join(last, "partition", "left")
    both = ours.join(held, ["partition", "offset"], "full")
    text = (
        F.when(F.col("value").isNull(), "is not in the audit log")
        .when(F.col("theirs").isNull() & (F.col("offset") <= F.col("last")), "is missing")
        .when(F.col("copies") > 1, "is there twice")
        .when(F.col("theirs") != F.col("value"), "is another")
    )
    wrong = both.withColumn("why", text).where(F.col("why").isNotNull())
    return _found(
        wrong, "lake", F.format_string("partition %d, offset %d ", "partition", "offset"), "why"
    )
