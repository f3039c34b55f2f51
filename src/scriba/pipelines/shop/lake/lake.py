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
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

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
from scriba.pipelines.shop.lake.files import File, Files
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


class HourKey(NamedTuple):
    """Of an hour of a topic, as its folder is named."""

    topic: str
    date: str
    hour: int


@dataclass(frozen=True)
class Hour:
    """The files of an hour that hold what arrived in it, as they were when somebody looked."""

    place: HourKey
    files: tuple[File, ...]
    once: bool
    """Whether each record lies in one of them only."""

    @property
    def sizes(self) -> dict[str, int]:
        """By their names."""
        return {file.name: file.size for file in self.files}

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Lake(Protocol):
    @property
    def path(self) -> str:
        """As Spark reads it."""

    def hours(self) -> list[Hour]:
        """All that hold rows."""

    def rows(self, hours: Sequence[Hour]) -> DataFrame:
        """The rows in these files, each record once."""

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
        self.path = path
        self._files = Files(spark, path)

    def read(self) -> DataFrame | None:
        hours = self.hours()
        return self.rows(hours) if hours else None

    def rows(self, hours: Sequence[Hour]) -> DataFrame:
        sure = self._rows(hour for hour in hours if hour.once)
        if all(hour.once for hour in hours):
            return sure
        once = self._rows(hour for hour in hours if not hour.once).dropDuplicates(NAME)
        return once.unionByName(sure) if any(hour.once for hour in hours) else once

    def _rows(self, hours: Iterable[Hour]) -> DataFrame:
        return rows_of(self._spark, self.path, hours)

    def append(self, rows: DataFrame, query: str, batch: int) -> None:
        one_file_each = rows.repartition(*(F.col(name) for name in PLACE))
        one_file_each.write.mode("append").partitionBy(*PLACE).parquet(self.path)

    def compact(self, now: datetime, keep: timedelta = KEEP) -> Compacted:
        aside = f"{self.path}/_compacting"
        self._files.delete(aside)  # what a crash left
        before = after = 0
        for folder, place in self._folders():
            day = datetime.strptime(place.date, "%Y-%m-%d")
            began = day.replace(hour=place.hour, tzinfo=UTC)
            files = self._files.parquet(folder)
            before += len(files)
            if len(files) > 1 and now - began >= timedelta(hours=1) + OVER_AFTER:
                after += self._compact_hour(folder, files, f"{aside}/{uuid.uuid4().hex}")
            else:
                after += len(files)
        self._files.delete(aside)
        return Compacted(before, after)

    def _compact_hour(self, folder: str, files: list[File], aside: str) -> int:
        """The new files are in place before the old ones go, so nothing is ever missing."""
        size = sum(file.size for file in files)
        count = max(1, round(size / FILE_BYTES))
        inside = [name for name in ROW.names if name not in PLACE]
        rows = self._spark.read.schema(ROW).option("basePath", self.path).parquet(folder)
        rows = rows.dropDuplicates(["partition", "offset"]).select(*inside)
        rows = rows.repartitionByRange(count, "partition", "offset")
        rows.sortWithinPartitions("partition", "offset").write.parquet(aside)
        made = self._files.parquet(aside)
        compaction = f"{COMPACTED}{uuid.uuid4().hex}-"
        for file in made:
            self._files.move(file.address, f"{folder}/{compaction}{file.name}")
        for file in files:
            self._files.delete(file.address)
        return len(made)

    def hours(self) -> list[Hour]:
        found = []
        for folder, place in self._folders():
            files = self._files.parquet(folder)
            if files:
                once = not may_hold_repeats([file.name for file in files])
                found.append(Hour(place, tuple(files), once))
        return found

    def _folders(self) -> Iterator[tuple[str, HourKey]]:
        for topic in self._inside(self.path, "topic="):
            for date in self._inside(topic.address, "date="):
                for hour in self._inside(date.address, "hour="):
                    values = [file.name.partition("=")[2] for file in (topic, date, hour)]
                    yield hour.address, HourKey(values[0], values[1], int(values[2]))

    def _inside(self, folder: str, prefix: str) -> list[File]:
        found = self._files.of(folder)
        return [file for file in found if file.is_folder and file.name.startswith(prefix)]


def rows_of(spark: SparkSession, path: str, hours: Iterable[Hour]) -> DataFrame:
    files = [file.address for hour in hours for file in hour.files]
    if not files:
        return spark.createDataFrame([], ROW)
    return spark.read.schema(ROW).option("basePath", path).parquet(*files)


def may_hold_repeats(files: list[str]) -> bool:
    """Whether a record may be in two of these files of an hour."""
    ids = {name[: len(COMPACTED) + 32] for name in files if name.startswith(COMPACTED)}
    others = any(not name.startswith(COMPACTED) for name in files)
    return len(ids) + others > 1 if ids else False


_FOLDER: Final = re.compile(r"topic=([^/]+)/date=([^/]+)/hour=(\d+)/([^/]+)$")


class DeltaLake:
    """A Delta table by the library `deltalake`, which needs no jar; rows go through the driver."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._uri = path.replace("s3a://", "s3://", 1)
        self.path = self._uri.replace("s3://", "s3a://", 1)
        self._delta: Any = import_module("deltalake")

    def _table(self) -> Any | None:
        table = self._delta.DeltaTable
        return table(self._uri) if table.is_deltatable(self._uri) else None

    def read(self) -> DataFrame | None:
        hours = self.hours()
        return self.rows(hours) if hours else None

    def rows(self, hours: Sequence[Hour]) -> DataFrame:
        return rows_of(self._spark, self.path, hours)

    def hours(self) -> list[Hour]:
        table = self._table()
        if table is None:
            return []
        told = table.get_add_actions(flatten=True)
        sizes = zip(told["path"].to_pylist(), told["size_bytes"].to_pylist(), strict=True)
        size_of = {path.rpartition("/")[2]: size for path, size in sizes}
        found = dict[HourKey, list[File]]()
        for uri in table.file_uris():
            place = _FOLDER.search(uri)
            assert place is not None, uri
            topic, date, hour, name = place.groups()
            file = File(uri.replace("s3://", "s3a://", 1), name, size_of[name], False)
            found.setdefault(HourKey(topic, date, int(hour)), []).append(file)
        return [Hour(place, tuple(files), True) for place, files in found.items()]

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
            self._uri,
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
