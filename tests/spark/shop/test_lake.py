"""The lake: every record once, whatever is lost or repeated, in few files."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import HOUR_MS
from scriba.pipelines.shop.lake.lake import NAME, Archive, Lake, open_lake, placed, stream
from scriba.pipelines.shop.lake.questions import QUESTIONS, NoRecords, NotAnswered, answer, ask
from scriba.pipelines.shop.simulation.generator import Delivery, Generator, Shape
from scriba.pipelines.shop.simulation.truth import Truth
from scriba.pipelines.shop.streaming.runner import Runner
from scriba.pipelines.shop.topics import Names
from scriba.spark.origin import QUERY
from tests.spark.desk import Desk
from tests.spark.shop.store import Store

LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
START = 1_793_000_000_000
LATER = datetime(2030, 1, 1, tzinfo=UTC)
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


@pytest.fixture(params=["parquet", "delta"])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return open_lake(spark, str(tmp_path / "lake"), request.param)


@contextmanager
def logged_by_spark() -> Iterator[list[logging.LogRecord]]:
    """What pyspark writes about refused questions, past what it raises."""
    logged: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    handler = Kept()
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield logged
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def some(shape: Shape, minutes: int) -> list[Delivery]:
    return list(Generator(shape, START, START + minutes * HOUR_MS // 60).deliveries())


def records(spark: SparkSession, deliveries: list[Delivery], first: int = 0) -> DataFrame:
    """As a connector reads them, all from one partition of each topic."""
    rows = []
    for offset, delivery in enumerate(deliveries, first):
        event = delivery.event
        at = datetime.fromtimestamp(delivery.arrival_ms / 1000, UTC)
        topic = f"eu-{event.topic}"
        headers = [("trace", b"\xff"), ("nothing", None)] if offset % 2 else None
        rows.append((event.user.encode(), delivery.value, topic, 0, offset, at, headers))
    return placed(spark.createDataFrame(rows, COLUMNS), Names("eu-"))


def names(lake: Lake) -> list[tuple[str, int, int]]:
    found = lake.read()
    assert found is not None
    return sorted(tuple(row) for row in found.select(*NAME).collect())


@pytest.fixture
def as_query(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Says of which query batches are, as Spark does."""

    def say(query: str) -> None:
        spark.sparkContext.setLocalProperty(QUERY, query)

    yield say
    spark.sparkContext.setLocalProperty(QUERY, None)  # type: ignore[arg-type]


def test_what_is_written_again_is_there_once(
    spark: SparkSession, lake: Lake, as_query: Callable[[str], None]
) -> None:
    as_query("first")
    shape = Shape(rate=0.2, users=20)
    deliveries = some(shape, 30)
    half = len(deliveries) // 2
    first, second = records(spark, deliveries[:half]), records(spark, deliveries[half:], half)
    archive = Archive(lake)
    archive(first, 0)
    archive(second, 1)
    whole = names(lake)
    assert len(whole) == len(deliveries) == len(set(whole))
    # Another run, whose checkpoint knows nothing of the last batch, or of any.
    Archive(lake)(second, 1)
    as_query("second")
    anew = Archive(lake)
    anew(records(spark, deliveries), 0)
    more = records(spark, deliveries[:5], len(deliveries))
    anew(more, 1)
    assert len(names(lake)) == len(deliveries) + 5

    done = lake.compact(LATER)
    assert done.files_after < done.files_before
    assert len(names(lake)) == len(deliveries) + 5
    assert lake.compact(LATER).files_after == done.files_after
    kept = lake.read()
    assert kept is not None
    (row,) = kept.where("offset = 1").select("headers").collect()
    assert [(header.key, header.value) for header in row.headers] == [
        ("trace", b"\xff"),
        ("nothing", None),
    ]


def test_the_archive_holds_what_the_topics_hold(desk: Desk, topic: str) -> None:
    store = Store(desk, f"{topic}-")
    lake = open_lake(desk.spark, str(desk.folder / "lake"), "parquet")
    settings = store.settings()
    start = partial(stream, desk.spark, settings, lake, 1.0)
    whole = some(Shape(rate=0.2, users=20, broken=0.1), 20)
    half = len(whole) // 2
    for part in (whole[:half], whole[half:]):
        store.take(part)
        Runner(desk.spark, settings, {"archive": start}).run()
    kept = lake.read()
    assert kept is not None
    rows = kept.select("key", "value", "timestamp").collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == sorted(
        (delivery.event.user.encode(), delivery.value) for delivery in whole
    )
    assert store.table(topics.PROGRESS)["archive"]["lag"] == 0


def test_an_hour_that_is_not_over_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    lake = open_lake(spark, str(tmp_path / "lake"), "parquet")
    deliveries = some(Shape(rate=0.1, users=20), 10)
    for batch in range(2):
        lake.append(records(spark, deliveries, batch * 1000), "q", batch)
    now = datetime.fromtimestamp(deliveries[0].arrival_ms / 1000, UTC)
    done = lake.compact(now)
    assert done.files_after == done.files_before > 1


def test_a_crash_in_a_compaction_neither_loses_nor_doubles(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The new files of an hour are there and the old ones too; only such hours are shuffled."""
    path = tmp_path / "lake"
    lake = open_lake(spark, str(path), "parquet")
    deliveries = some(Shape(rate=0.1, users=20), 10)
    half = len(deliveries) // 2
    lake.append(records(spark, deliveries[:half]), "q", 0)
    lake.append(records(spark, deliveries[half:], half), "q", 1)
    whole = names(lake)
    assert not shuffles(lake)
    old = list(path.rglob("*.parquet"))
    shutil.copytree(path, tmp_path / "before")
    lake.compact(LATER)
    assert not shuffles(lake)
    for file in old:
        shutil.copy(tmp_path / "before" / file.relative_to(path), file)
    assert names(lake) == whole
    assert shuffles(lake)
    lake.compact(LATER)
    assert names(lake) == whole
    assert not shuffles(lake)


def shuffles(lake: Lake) -> bool:
    rows = lake.read()
    assert rows is not None
    return "Exchange" in rows._jdf.queryExecution().executedPlan().toString()


def test_files_that_only_old_versions_of_a_table_need_go_when_their_time_is_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    lake = open_lake(spark, str(path), "delta")
    deliveries = some(Shape(rate=0.1, users=20), 10)
    for batch in range(3):
        lake.append(records(spark, deliveries, batch * 1000), "q", batch)

    def files() -> int:
        return len(list(path.rglob("*.parquet"))) - len(list(path.glob("_delta_log/*.parquet")))

    written = files()
    done = lake.compact(LATER, timedelta(days=7))
    assert files() == written + done.files_after
    done = lake.compact(LATER, timedelta(0))
    assert files() == done.files_after
    assert len(names(lake)) == 3 * len(deliveries)


def test_a_table_of_before_headers_were_kept_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    lake = open_lake(spark, str(tmp_path / "lake"), "delta")
    rows = records(spark, some(Shape(rate=0.1, users=20), 5))
    lake.append(rows.drop("headers"), "q", 0)
    lake.append(rows.withColumn("offset", rows["offset"] + 1000), "q", 1)
    kept = lake.read()
    assert kept is not None
    count = rows.count()
    assert kept.count() == 2 * count
    assert kept.where("offset < 1000 and headers is null").count() == count


def test_answers_are_the_truth_with_late_events(spark: SparkSession, tmp_path: Path) -> None:
    lake = open_lake(spark, str(tmp_path / "lake"), "parquet")
    with pytest.raises(NoRecords):
        ask(spark, lake, "SELECT 1")
    deliveries = some(Shape(rate=0.5, users=40, very_late=0.05, duplicates=0.05, broken=0.02), 40)
    truth = Truth()
    for delivery in deliveries:
        truth.add(delivery)
    lake.append(records(spark, deliveries), "q", 0)
    counted = [*truth.events, *truth.late]
    bought = [event for event in counted if event.topic == topics.PURCHASE_COMPLETED]

    revenue = ask(spark, lake, QUESTIONS["revenue"]).collect()
    assert sum(row.revenue_cents for row in revenue) == sum(event.cents for event in bought)
    assert sum(row.orders for row in revenue) == len(bought)
    assert sum(row.units for row in revenue) == sum(event.units for event in bought)
    (conversion,) = ask(spark, lake, QUESTIONS["conversion"]).collect()
    assert conversion.sessions == len({event.session for event in counted})
    assert conversion.with_purchase == len({event.session for event in bought})
    first, *_ = ask(spark, lake, QUESTIONS["top-products"]).collect()
    views = [e.items[0][0] for e in counted if e.topic == topics.PRODUCT_VIEWED]
    assert (first.rank, first.product_id, first.views) == (1, "p0000", views.count("p0000"))
    with pytest.raises(NoRecords):
        ask(spark, open_lake(spark, str(tmp_path / "elsewhere"), "parquet"), "SELECT 1")
    for sql, why in (
        ("SELEC 1", r"\[PARSE_SYNTAX_ERROR\].*'SELEC'"),
        ("SELECT * FROM nowhere", r"\[TABLE_OR_VIEW_NOT_FOUND\].*nowhere"),
        ("SELECT nothing FROM events", r"\[UNRESOLVED_COLUMN.*nothing"),
        ("SELECT 1 / (offset - offset) FROM events", r"\[DIVIDE_BY_ZERO\]"),
    ):
        with pytest.raises(NotAnswered, match=why) as refused, logged_by_spark() as logged:
            answer(ask(spark, lake, sql))
        assert "\n" not in str(refused.value)
        assert not str(refused.value).endswith(";")
        assert logged == []
