"""The lake: every record as it came, kept in files by topic, day and hour of its arrival.

A record is known by (topic, partition, offset). That makes the archive exactly-once on any file
system, without a table format: after a restart, and when its checkpoint was lost, the archive asks
the lake how far it goes and leaves out what is there already, row by row. The same names heal what
a crash in the middle of a compaction leaves: a record in two files is read once, and written once
by the next compaction.

    PATH/topic=.../date=.../hour=.../*.parquet

Only a compaction that has not ended can leave a record in two files. What it makes is named after
it (`compacted-ID-...`), so that the files of an hour tell whether it may hold repeats: when what
one compaction made lies beside other files. Only such hours are shuffled to read each record once.

With `delta` the same rows are a Delta table; a batch is one commit that carries its number.
"""

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.streaming.queries import Settings, Shop, query_id
from scriba.pipelines.shop.topics import Names

NAME: Final = ["topic", "partition", "offset"]
PLACE: Final = ["topic", "date", "hour"]
ROW: Final = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
        StructField("topic", StringType()),
        StructField("date", StringType()),
        StructField("hour", IntegerType()),
    ]
)

COMPACTED: Final = "compacted-"
"""What names of files begin with that a compaction made; its id follows."""
KEEP: Final = timedelta(days=7)
"""How long files stay that no newer version of a Delta table needs, for those who read an older."""
FILE_BYTES: Final = 128 * 1024 * 1024
"""About what one file holds after compaction."""
OVER_AFTER: Final = timedelta(minutes=15)
"""How long after its end an hour gets no more records."""


def placed(records: DataFrame, names: Names) -> DataFrame:
    """Records of the connector as rows of the lake."""
    plain = F.substring("topic", len(names.prefix) + 1, 1000)
    rows = records.withColumn("topic", plain)
    rows = rows.withColumn("date", F.date_format("timestamp", "yyyy-MM-dd"))
    return rows.withColumn("hour", F.hour("timestamp")).select(*ROW.names)


@dataclass(frozen=True)
class Compacted:
    files_before: int
    files_after: int


class Lake(Protocol):
    def read(self) -> DataFrame | None:
        """All rows; None before the first."""

    def append(self, rows: DataFrame, query: str, batch: int) -> None:
        """Adds the rows of a micro-batch."""

    def compact(self, now: datetime, keep: timedelta = KEEP) -> Compacted:
        """Makes few files of many, in hours that are over; what only versions need that are older
        than `keep` goes."""


def open_lake(spark: SparkSession, path: str, form: str) -> Lake:
    return ParquetLake(spark, path) if form == "parquet" else DeltaLake(spark, path)


class Archive:
    """Given to foreachBatch: adds to the lake what is not there yet."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[tuple[str, int], int] | None = None
        """Up to which offset the lake had records when the run began, where it still matters."""

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self._lake.append(self._new(rows), query_id(rows), batch)

    def _new(self, rows: DataFrame) -> DataFrame:
        if self._known is None:
            self._known = self._ends()
        known = self._known
        if not known:
            return rows
        found = rows.groupBy("topic", "partition").agg(F.min("offset"), F.min("date")).collect()
        old = False
        for topic, partition, first, _ in found:
            if first > known.get((topic, partition), -1):
                known.pop((topic, partition), None)  # what comes later is later still
            else:
                old = True
        there = self._lake.read() if old else None
        if there is None:
            return rows
        since = min(date for *_, date in found)
        there = there.where(F.col("date") >= since).select(*NAME)
        return rows.join(there, NAME, "left_anti").select(*ROW.names)

    def _ends(self) -> dict[tuple[str, int], int]:
        there = self._lake.read()
        if there is None:
            return {}
        ends = there.groupBy("topic", "partition").agg(F.max("offset")).collect()
        return {(topic, partition): last for topic, partition, last in ends}


def stream(spark: SparkSession, settings: Settings, lake: Lake, seconds: float) -> StreamingQuery:
    """Starts the archive of all input topics."""
    shop = Shop(spark, settings)
    rows = placed(shop.read("archive", topics.INPUTS, headers=True), settings.names)
    writer = (
        rows.writeStream.queryName(settings.group("archive"))
        .option("checkpointLocation", f"{settings.checkpoints}/archive")
        .foreachBatch(Archive(lake))
    )
    if settings.to_the_end:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start()


class ParquetLake:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        jvm: Any = spark._jvm
        self._new_path = jvm.org.apache.hadoop.fs.Path
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._new_path(path).getFileSystem(hadoop)

    def read(self) -> DataFrame | None:
        sure, unsure = list[str](), list[str]()
        for folder, _ in self._hours():
            files = [status.getPath() for status in self._parquet(folder)]
            repeats = may_hold_repeats([file.getName() for file in files])
            (unsure if repeats else sure).extend(file.toString() for file in files)
        if not unsure:
            return self._rows(sure) if sure else None
        once = self._rows(unsure).dropDuplicates(NAME)
        return once.unionByName(self._rows(sure)) if sure else once

    def _rows(self, files: list[str]) -> DataFrame:
        return self._spark.read.schema(ROW).option("basePath", self._path).parquet(*files)

    def append(self, rows: DataFrame, query: str, batch: int) -> None:
        one_file_each = rows.repartition(*(F.col(name) for name in PLACE))
        one_file_each.write.mode("append").partitionBy(*PLACE).parquet(self._path)

    def compact(self, now: datetime, keep: timedelta = KEEP) -> Compacted:
        aside = f"{self._path}/_compacting"
        self._files.delete(self._new_path(aside), True)  # what a crash left
        before = after = 0
        for folder, hour in list(self._hours()):
            files = self._parquet(folder)
            before += len(files)
            if len(files) > 1 and now - hour >= timedelta(hours=1) + OVER_AFTER:
                after += self._compact_hour(folder, files, f"{aside}/{uuid.uuid4().hex}")
            else:
                after += len(files)
        self._files.delete(self._new_path(aside), True)
        return Compacted(before, after)

    def _compact_hour(self, folder: str, files: list[Any], aside: str) -> int:
        """The new files are in place before the old ones go, so nothing is ever missing."""
        size = sum(status.getLen() for status in files)
        count = max(1, round(size / FILE_BYTES))
        inside = [name for name in ROW.names if name not in PLACE]
        rows = self._spark.read.schema(ROW).option("basePath", self._path).parquet(folder)
        rows = rows.dropDuplicates(["partition", "offset"]).select(*inside)
        rows = rows.repartitionByRange(count, "partition", "offset")
        rows.sortWithinPartitions("partition", "offset").write.parquet(aside)
        made = self._parquet(aside)
        compaction = f"{COMPACTED}{uuid.uuid4().hex}-"
        for status in made:
            name = compaction + status.getPath().getName()
            if not self._files.rename(status.getPath(), self._new_path(f"{folder}/{name}")):
                raise OSError(f"{status.getPath()} could not be moved to {folder}")
        for status in files:
            self._files.delete(status.getPath(), False)
        return len(made)

    def _hours(self) -> Iterator[tuple[str, datetime]]:
        for topic in self._folders(self._path, "topic="):
            for date in self._folders(topic, "date="):
                for hour in self._folders(date, "hour="):
                    day = datetime.strptime(date.rpartition("date=")[2], "%Y-%m-%d")
                    number = int(hour.rpartition("hour=")[2])
                    yield hour, day.replace(hour=number, tzinfo=UTC)

    def _folders(self, path: str, prefix: str) -> Iterator[str]:
        place = self._new_path(path)
        if self._files.exists(place):
            for status in self._files.listStatus(place):
                if status.isDirectory() and status.getPath().getName().startswith(prefix):
                    yield status.getPath().toString()

    def _parquet(self, folder: str) -> list[Any]:
        found = self._files.listStatus(self._new_path(folder))
        return [status for status in found if status.getPath().getName().endswith(".parquet")]


def may_hold_repeats(files: list[str]) -> bool:
    """Whether a record may be in two of these files of an hour."""
    ids = {name[: len(COMPACTED) + 32] for name in files if name.startswith(COMPACTED)}
    others = any(not name.startswith(COMPACTED) for name in files)
    return len(ids) + others > 1 if ids else False


class DeltaLake:
    """A Delta table by the library `deltalake`, which needs no jar; rows go through the driver."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.replace("s3a://", "s3://", 1)
        self._delta: Any = import_module("deltalake")

    def _table(self) -> Any | None:
        table = self._delta.DeltaTable
        return table(self._path) if table.is_deltatable(self._path) else None

    def read(self) -> DataFrame | None:
        table = self._table()
        files = [] if table is None else table.file_uris()
        if not files:
            return None
        files = [file.replace("s3://", "s3a://", 1) for file in files]
        base = self._path.replace("s3://", "s3a://", 1)
        return self._spark.read.schema(ROW).option("basePath", base).parquet(*files)

    def append(self, rows: DataFrame, query: str, batch: int) -> None:
        table = self._table()
        done = None if table is None else table.transaction_version(query)
        if done is not None and done >= batch:
            return
        found = rows.toArrow()
        if found.num_rows == 0:
            return
        mark = self._delta.Transaction(app_id=query, version=batch)
        properties = self._delta.CommitProperties(app_transactions=[mark])
        self._delta.write_deltalake(
            self._path,
            found,
            mode="append",
            partition_by=PLACE,
            schema_mode="merge",  # a table of before headers were kept gets the column
            commit_properties=properties,
        )

    def compact(self, now: datetime, keep: timedelta = KEEP) -> Compacted:
        """All hours at once: readers hold on to the version they began with."""
        table = self._table()
        if table is None:
            return Compacted(0, 0)
        before = len(table.file_uris())
        table.optimize.compact(target_size=FILE_BYTES)
        hours = math.ceil(keep / timedelta(hours=1))
        table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        table.cleanup_metadata()
        return Compacted(before, len(table.file_uris()))
