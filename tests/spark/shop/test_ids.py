"""The index of ids: answers are those of the full shuffle, and known hours are not shuffled."""

import inspect
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events import rules
from scriba.pipelines.shop.lake import ids
from scriba.pipelines.shop.lake.ids import FOLDER, ID, each_event_once, events, keep, newest
from scriba.pipelines.shop.lake.lake import Hour, Lake, open_lake, placed
from scriba.pipelines.shop.lake.questions import ask
from scriba.pipelines.shop.topics import Names

BEGAN = datetime(2026, 1, 30, 22, 10, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)
KINDS = (topics.PRODUCT_VIEWED, topics.ADD_TO_CART)
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
SAID = (ID, "topic", "user_id", "product_id", "event_time")
"""What all copies of an event agree on, unless its client lies."""


@pytest.fixture(params=["parquet", "delta"])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return open_lake(spark, str(tmp_path / "lake"), request.param)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Lake:
    """Where one format shows it."""
    return open_lake(spark, str(tmp_path / "lake"), "parquet")


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[None]:
    """Plans as they are made, before Spark changes them while they run."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is known, the index is used: files of these tests are too small to tell."""
    monkeypatch.setattr(ids, "WORTH", 0)


class Clients:
    """They send events, some of them again, hours or days later; what they send is archived."""

    def __init__(self, spark: SparkSession, lake: Lake, seed: int = 1) -> None:
        self.spark = spark
        self.lake = lake
        self.any = random.Random(seed)
        self.sent: list[tuple[str, bytes]] = []
        self.batches = 0
        self.offset = 0

    def fresh(self, at: datetime) -> tuple[str, bytes]:
        topic = self.any.choice(KINDS)
        number = len(self.sent)
        machine = {"user_agent": "a bot"} if self.any.random() < 0.05 else {}
        happened = at + timedelta(hours=self.any.choice((-1, 0, 0, 0, 2)))
        said: dict[str, Any] = {
            "event_id": f"e{number}",
            "user_id": f"u{number % 7}",
            "session_id": "s",
            "product_id": f"p{number % 11}",
            "event_time": happened.strftime("%Y-%m-%dT%H:%M:%SZ"),
            **machine,
        }
        if topic == topics.ADD_TO_CART:
            said |= {"quantity": 1, "price_cents": 5}
        if self.any.random() < 0.1:
            del said["session_id"]
        self.sent.append((topic, json.dumps(said).encode()))
        return self.sent[-1]

    def arrive(self, at: datetime, count: int = 8, again: float = 0.2, lies: float = 0.0) -> None:
        """As a micro-batch of the archive."""
        batch = []
        for _ in range(count):
            old = bool(self.sent) and self.any.random() < again
            topic, value = self.any.choice(self.sent) if old else self.fresh(at)
            if self.any.random() < lies:
                topic, value = KINDS[0], value.replace(b'"user_id": "u', b'"user_id": "other')
            batch.append((topic, value, at + timedelta(seconds=self.any.randrange(60))))
        self.archive(batch)

    def archive(self, batch: Sequence[tuple[str, bytes, datetime]]) -> None:
        rows = []
        for topic, value, at in batch:
            rows.append((b"k", value, topic, self.offset % 2, self.offset, at, None))
            self.offset += 1
        made = placed(self.spark.createDataFrame(rows, COLUMNS), Names(""))
        self.lake.append(made, "q", self.batches)
        self.batches += 1


def shuffled(lake: Lake, hours: Sequence[Hour]) -> DataFrame:
    """The oracle: what there was before there was an index."""
    return events(lake.rows(hours)).dropDuplicates([ID])


def same(spark: SparkSession, lake: Lake, hours: Sequence[Hour]) -> int:
    found = each_event_once(spark, lake, hours).select(*SAID).collect()
    assert sorted(found) == sorted(shuffled(lake, hours).select(*SAID).collect())
    return len(found)


def exchanges(spark: SparkSession, lake: Lake, hours: Sequence[Hour]) -> set[str]:
    """The files whose rows a query shuffles, by name; those of the index left out."""
    plan = each_event_once(spark, lake, hours)._jdf.queryExecution().executedPlan()
    return {name for name in _shuffled(plan, False) if name.endswith(".parquet")}


def _shuffled(plan: Any, under: bool) -> Iterator[str]:
    under = under or plan.nodeName() == "Exchange"
    children = plan.children()
    if under and children.isEmpty() and plan.nodeName().startswith("Scan parquet"):
        paths = plan.relation().location().rootPaths()
        for index in range(paths.size()):
            if f"/{FOLDER}/" not in str(paths.apply(index)):
                yield paths.apply(index).getName()
    for index in range(children.size()):
        yield from _shuffled(children.apply(index), under)


def names(hours: Sequence[Hour]) -> set[str]:
    return {name for hour in hours for name in hour.sizes}


@pytest.mark.usefixtures("plain", "eager")
def test_only_hours_that_are_not_known_are_shuffled(spark: SparkSession, lake: Lake) -> None:
    clients = Clients(spark, lake)
    for hour in range(3):
        clients.arrive(BEGAN + timedelta(hours=hour), 40)
    hours = lake.hours()
    assert exchanges(spark, lake, hours) == names(hours)
    lake.compact(LATER)
    keep(spark, lake)
    known = lake.hours()
    assert same(spark, lake, known) == len(set(events(lake.rows(known)).select(ID).collect()))
    assert exchanges(spark, lake, known) == set()
    # Copies of what is known, in an hour that nobody knows yet.
    clients.arrive(BEGAN + timedelta(hours=30), 6, again=0.5)
    hours = lake.hours()
    rest = [hour for hour in hours if hour not in known]
    assert exchanges(spark, lake, hours) == names(rest) != set()
    same(spark, lake, hours)
    assert exchanges(spark, lake, known) == set()
    # A record more in an hour that was known.
    clients.arrive(BEGAN, 1)
    grown = [hour for hour in lake.hours() if hour not in hours]
    assert len(grown) == 1
    assert names([*rest, *grown]) == exchanges(spark, lake, lake.hours())
    keep(spark, lake)
    assert exchanges(spark, lake, lake.hours()) == set()
    same(spark, lake, lake.hours())


@pytest.mark.usefixtures("eager")
def test_answers_are_those_of_the_full_shuffle(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Whatever came late, again, between two compactions, or was cut off by a crash."""
    clients = Clients(spark, lake)
    chance = clients.any
    old, used = tmp_path / "old", 0
    for step in range(10):
        at = BEGAN + timedelta(hours=chance.randrange(6))
        clients.arrive(at, chance.choice((2, 8, 20)), again=0.3)
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(lake.path, old)
        what = chance.choice(("compact", "index", "both", "killed", "nothing"))
        if what in ("compact", "both", "killed"):
            lake.compact(LATER)
        if what == "killed":  # of files that were to go, one was still there
            file = chance.choice(sorted(old.glob("topic=*/**/*.parquet")))
            shutil.copy(file, Path(lake.path) / file.relative_to(old))
        if what in ("index", "both", "killed"):
            keep(spark, lake)
        if step % 2:
            hours = lake.hours()
            day = chance.choice(hours).place.date
            since = [hour for hour in hours if hour.place.date >= day]
            asked = chance.choice((hours, since, hours[::2]))
            index = newest(spark, lake)
            used += index is not None and any(index.knows(hour) for hour in asked)
            same(spark, lake, asked)
    assert used > 0


def test_an_event_is_counted_once_also_where_its_copies_differ(
    spark: SparkSession, files: Lake
) -> None:
    clients = Clients(spark, files)
    for hour in range(3):
        clients.arrive(BEGAN + timedelta(hours=hour), 30, again=0.5, lies=0.3)
    keep(spark, files)
    clients.arrive(BEGAN + timedelta(hours=3), 5, again=0.8, lies=0.5)
    hours = files.hours()
    found = each_event_once(spark, files, hours).select(*ids.RECORD).collect()
    told = events(files.rows(hours)).select(*ids.RECORD).collect()
    assert set(found) <= set(told)
    assert sorted(row.event_id for row in found) == sorted({row.event_id for row in told})


def test_days_that_are_asked_about_count_their_own_copies(spark: SparkSession, files: Lake) -> None:
    """The first record of an event may lie before the days that are asked about."""
    clients = Clients(spark, files)
    clients.arrive(BEGAN, 10, again=0)
    again = [(topic, value, BEGAN + timedelta(hours=12)) for topic, value in clients.sent]
    clients.archive(again)
    keep(spark, files)
    asked = "SELECT count(*) AS events, count(DISTINCT event_id) AS ids FROM events"

    def told(since: str | None, until: str | None) -> tuple[int, int]:
        (row,) = ask(spark, files, asked, since, until).collect()
        return row.events, row.ids

    second = told("2026-01-31", None)
    assert second == told(None, None)
    assert second[0] == second[1] > 0
    first = told(None, "2026-01-30")
    assert first[0] == first[1] > 0
    assert told("2026-02-01", None) == (0, 0)


def test_an_index_that_is_not_whole_is_none(
    spark: SparkSession, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(spark, files)
    home = Path(files.path) / FOLDER

    def made() -> tuple[Path, Path]:
        shutil.rmtree(home, ignore_errors=True)
        keep(spark, files)
        (manifest,) = home.glob("*.json")
        return manifest, next(home.glob("*/repeated=false/*.parquet"))

    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:-1])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    for hour in range(2):
        clients.arrive(BEGAN + timedelta(hours=hour), 20)
    manifest, _ = made()
    manifest.rename(manifest.with_suffix(".json.unfinished"))  # killed before it had its name
    assert newest(spark, files) is None
    for harm in (cut, Path.unlink):
        for which in (0, 1):
            harm(made()[which])
            assert newest(spark, files) is None
    manifest, _ = made()
    assert newest(spark, files) is not None
    monkeypatch.setattr(ids, "rules_of_now", lambda: "others")
    assert newest(spark, files) is None
    keep(spark, files)
    assert newest(spark, files) is not None


def test_the_rules_are_known_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ids.rules_of_now()
    assert now == ids.rules_of_now()
    text = inspect.getsource(rules)
    monkeypatch.setattr(inspect, "getsource", lambda module: text)
    assert ids.rules_of_now() != now


def test_the_newest_index_and_the_one_before_stay(spark: SparkSession, lake: Lake) -> None:
    clients = Clients(spark, lake)
    home = Path(lake.path) / FOLDER
    for hour in range(4):
        clients.arrive(BEGAN + timedelta(hours=hour), 5)
        (home / "00000009-of-a-run-that-was-killed").mkdir(parents=True, exist_ok=True)
        keep(spark, lake)
        keep(spark, lake)  # nothing is new
        kept = sorted(path.name for path in home.iterdir() if not path.name.startswith("."))
        numbers = [name[:8] for name in kept]
        assert numbers == [f"{n + 1:08}" for n in range(max(0, hour - 1), hour + 1) for _ in "12"]
    lake.compact(LATER, timedelta(0))
    assert newest(spark, lake) is not None


@pytest.mark.usefixtures("eager")
def test_an_hour_in_which_somebody_replaced_a_file_is_not_known(
    spark: SparkSession, files: Lake
) -> None:
    clients = Clients(spark, files)
    clients.arrive(BEGAN, 20, again=0)
    clients.arrive(BEGAN + timedelta(hours=1), 4, again=0)
    keep(spark, files)
    found = sorted(Path(files.path).glob("topic=*/**/*.parquet"), key=lambda f: f.stat().st_size)
    shutil.copy(found[-1], found[0])
    found[0].with_name(f".{found[0].name}.crc").unlink()
    same(spark, files, files.hours())


def test_an_hour_that_holds_a_record_twice_is_not_known(spark: SparkSession, files: Lake) -> None:
    """Nothing does that but somebody who copies files, or who writes a batch again by hand."""
    clients = Clients(spark, files)
    clients.arrive(BEGAN, 20, again=0)
    clients.arrive(BEGAN + timedelta(hours=1), 20, again=0)
    first = files.hours()
    clients.offset = 0
    clients.archive([(topic, value, BEGAN) for topic, value in clients.sent[:20]])
    keep(spark, files)
    hours = files.hours()
    index = newest(spark, files)
    assert index is not None
    assert {hour.place for hour in hours if not index.knows(hour)} == {
        hour.place for hour in hours if hour not in first
    }
    same(spark, files, hours)
    keep(spark, files)
    same(spark, files, hours)
