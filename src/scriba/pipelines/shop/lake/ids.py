"""The index of ids: which events are in which hours of a lake, and which of them came twice.

A copy of an event is a record of its own and lies in the hour in which it arrived, however late
that is. So an hour can be read without a shuffle only where it is known which events are in the
others. The index says that, and compaction keeps it beside the data:

    PATH/_ids/NUMBER-ID/repeated=.../*.parquet    a row for each record that is an event
    PATH/_ids/NUMBER-ID.json                      of which files; written last

It holds all events of the hours it names and nothing else of them, and in each of these hours
every record once. `repeated` is true of the rows whose `event_id` another row has too.

What an index says cannot become wrong, only too little. It is about files, which never change and
whose names never come again: an hour is **known** while its files, by name and size, are exactly
those that the index was made from. Where anything came since, was compacted since, or is being
compacted, the hour is not known. An index that is not whole, or that other rules judged, is none.

`each_event_once` reads known hours without a shuffle. Of an event that is in several of their
records, all but the first are left out by their names; exactly one stays. The hours that are not
known are shuffled, and from what they give are left out the events that known hours have.
"""

import hashlib
import inspect
import json
import platform
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from scriba.pipelines.shop.events import checks, rules
from scriba.pipelines.shop.events.checks import ACCEPTED, LATE
from scriba.pipelines.shop.events.events import EVENT, judged
from scriba.pipelines.shop.lake.files import Files
from scriba.pipelines.shop.lake.lake import NAME, ROW, Hour, HourKey, Lake
from scriba.pipelines.shop.lake.lake import PLACE as HOUR
from scriba.pipelines.shop.topics import Names

FOLDER: Final = "_ids"
ID: Final = "event_id"
RECORD: Final = [ID, *NAME]
"""A record that is an event; only together with its id does its name stand for it for certain,
since a topic that is made anew counts from 0 again."""
COLUMNS: Final = [ID, *HOUR, "partition", "offset"]
ROWS: Final = StructType(
    [
        StructField(ID, StringType()),
        *(ROW[name] for name in COLUMNS[1:]),
        StructField("repeated", BooleanType()),
    ]
)
COUNT: Final = (ACCEPTED, LATE)
"""What counts in answers; late events too, as nobody is waiting."""
KEPT: Final = 2
"""How many indexes stay: the newest, and the one that a running query may have begun with."""
WORTH: Final = 4
"""How much smaller what is not known must be than what is, for it is judged twice."""


def events(records: DataFrame, columns: Sequence[str] = EVENT, *carried: str) -> DataFrame:
    """The records that count; of an event that came twice, both."""
    return judged(records, Names(), columns, COUNT, carried)


def each_event_once(spark: SparkSession, lake: Lake, hours: Sequence[Hour]) -> DataFrame:
    """The events in these hours; of which record, where there are several, is not said."""
    index = newest(spark, lake)
    known = [hour for hour in hours if index is not None and index.knows(hour)]
    rest = [hour for hour in hours if index is None or not index.knows(hour)]
    if index is None or _size(rest) * WORTH >= _size(known):
        return events(lake.rows(hours)).dropDuplicates([ID])
    once = events(lake.rows(known))
    copies = index.copies(known)
    if copies is not None:
        once = once.join(copies, RECORD, "left_anti")
    if not rest:
        return once
    others = events(lake.rows(rest)).dropDuplicates([ID])
    there = index.rows(known).select(ID).join(others.select(ID), ID, "left_semi")
    return once.unionByName(others.join(there, ID, "left_anti"))


def _size(hours: Iterable[Hour]) -> int:
    return sum(hour.size for hour in hours)


@dataclass(frozen=True)
class Index:
    """One that is whole, with what it was made from."""

    spark: SparkSession
    number: int
    folder: str
    files: tuple[str, ...]
    hours: dict[HourKey, dict[str, int]]

    def knows(self, hour: Hour) -> bool:
        return hour.once and self.hours.get(hour.place) == hour.sizes

    def rows(self, hours: Sequence[Hour]) -> DataFrame:
        return self._of(hours, self.files)

    def copies(self, hours: Sequence[Hour]) -> DataFrame | None:
        """Of events that several records of these hours are, all records but one."""
        files = [file for file in self.files if "/repeated=true/" in file]
        if not files:
            return None
        of_one = Window.partitionBy(ID).orderBy(*NAME)
        numbered = self._of(hours, files).withColumn("number", F.row_number().over(of_one))
        return numbered.where("number > 1").select(*RECORD)

    def _of(self, hours: Sequence[Hour], files: Sequence[str]) -> DataFrame:
        if not files:
            return self.spark.createDataFrame([], ROWS)
        reader = self.spark.read.schema(ROWS).option("basePath", self.folder)
        rows = reader.parquet(*(f"{self.folder}{file}" for file in files))
        wanted = [hour.place for hour in hours]
        places = self.spark.createDataFrame(wanted, StructType([ROW[name] for name in HOUR]))
        return rows.join(F.broadcast(places), HOUR, "left_semi")


# -- what is kept ----------------------------------------------------------------------------------


def newest(spark: SparkSession, lake: Lake) -> Index | None:
    files = Files(spark, lake.path)
    for path in _manifests(files, f"{lake.path}/{FOLDER}"):
        index = _whole(spark, files, path)
        if index is not None:
            return index
    return None


def _manifests(files: Files, folder: str) -> list[str]:
    """The newest first."""
    names = [file.name for file in files.of(folder) if file.name.endswith(".json")]
    return [f"{folder}/{name}" for name in sorted(names, reverse=True)]


def _whole(spark: SparkSession, files: Files, path: str) -> Index | None:
    """None unless the rules are those of now, and all of its files are there in their length."""
    folder = path.removesuffix(".json")
    try:
        told: dict[str, Any] = json.loads(files.read(path))
    except (ValueError, Py4JJavaError):  # cut off, or gone since it was listed
        return None
    if told["rules"] != rules_of_now() or told["files"] != _files(files, folder):
        return None
    hours = {HourKey(*place): sizes for place, sizes in told["hours"]}
    number = int(path.rpartition("/")[2].partition("-")[0])
    return Index(spark, number, folder, tuple(told["files"]), hours)


def _files(files: Files, folder: str) -> dict[str, int]:
    return {
        f"/{inside.name}/{file.name}": file.size
        for inside in files.of(folder)
        if inside.is_folder
        for file in files.parquet(inside.address)
    }


def rules_of_now() -> str:
    """By what records are judged: the text of the rules, and the Python that reads JSON. An index
    that others made says nothing of what counts now."""
    texts = [*map(inspect.getsource, (checks, rules)), *COUNT, *ROWS.names]
    python = f"{platform.python_version()} {sys.get_int_max_str_digits()}"
    return f"{python} {hashlib.sha256(json.dumps(texts).encode()).hexdigest()}"


# -- making one ------------------------------------------------------------------------------------


def keep(spark: SparkSession, lake: Lake) -> None:
    """Makes an index of all hours, if there is any that the newest one does not know."""
    hours = lake.hours()
    before = newest(spark, lake)
    old = [hour for hour in hours if before is not None and before.knows(hour)]
    new = [hour for hour in hours if hour.once and hour not in old]
    if not new:
        return
    rows = events(lake.rows(new), [ID], "date", "hour").select(*COLUMNS)
    if before is not None:
        rows = rows.unionByName(before.rows(old).select(*COLUMNS))
    number = 1 if before is None else before.number + 1
    home = f"{lake.path}/{FOLDER}"
    folder = f"{home}/{number:08}-{uuid.uuid4().hex}"
    repeated: Column = F.count("*").over(Window.partitionBy(ID)) > 1
    rows.withColumn("repeated", repeated).write.partitionBy("repeated").parquet(folder)
    files = Files(spark, lake.path)
    made = {hour.place: hour.sizes for hour in (*old, *new)}
    index = Index(spark, number, folder, tuple(_files(files, folder)), made)
    doubtful = _doubtful(index, [*old, *new])
    told = {
        "rules": rules_of_now(),
        "hours": [each for each in made.items() if each[0] not in doubtful],
        "files": _files(files, folder),
    }
    files.write(f"{folder}.json", json.dumps(told).encode())
    _clean(files, home)


def _doubtful(index: Index, hours: Sequence[Hour]) -> set[HourKey]:
    """Hours that hold a record twice, which nothing that the archive does can bring about."""
    rows = index.rows(hours).where("repeated")
    twice = rows.groupBy(*RECORD).count().where("count > 1")
    found = rows.join(twice, RECORD, "left_semi").select(*HOUR).distinct().collect()
    return {HourKey(*row) for row in found}


def _clean(files: Files, home: str) -> None:
    kept = _manifests(files, home)[:KEPT]
    names = {path.rpartition("/")[2].removesuffix(".json") for path in kept}
    for file in files.of(home):
        if file.name.removesuffix(".json") not in names:
            files.delete(file.address)
