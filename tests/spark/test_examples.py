"""The examples for Spark do what they say, on the session of the tests."""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scriba.client import SyncProducer
from tests.spark.desk import ROOT, Desk

EXAMPLES = ROOT / "examples" / "spark"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[dict[str, Any]]:
    found = example("running_totals.py")
    (name,) = found["STATE"]
    spark.conf.set(name, found["STATE"][name])
    yield found
    spark.conf.unset(name)


def fill(desk: Desk, topic: str, records: list[tuple[str, str]]) -> None:
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        for key, value in records:
            producer.send(topic, value.encode(), key=key.encode())


def written(desk: Desk, topic: str) -> list[tuple[str, str]]:
    rows = desk.read(topic, **{"kafka.isolation.level": "read_committed"}).orderBy("offset")
    return [(row.key.decode(), row.value.decode()) for row in rows.collect()]


def test_orders_in_avro_come_back_and_rubbish_ends_no_query(desk: Desk, topic: str) -> None:
    avro = example("avro_orders.py")
    desk.create(topic)
    orders = desk.spark.createDataFrame([("ada", 1250)], "customer string, cents long")
    avro["put"](orders, desk.kafka, topic)
    desk.fill(topic, {0: ["\x7f"]})
    found = avro["orders"](desk.read(topic)).orderBy("offset").collect()
    assert [(row.customer, row.cents) for row in found] == [("ada", 1250), (None, None)]


def test_running_totals_are_kept_from_run_to_run(
    desk: Desk, new_topic: Callable[[], str], rocksdb: dict[str, Any]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source)
    desk.create(target)
    place = desk.checkpoint()
    for records in ([("ada", "5"), ("ada", "7"), ("bob", "rubbish")], [("ada", "1")]):
        fill(desk, source, records)
        rocksdb["start"](desk.stream(source), desk.kafka, target, place).awaitTermination()
    assert written(desk, target) == [("ada", "5"), ("ada", "12"), ("ada", "13")]


def test_outliers_are_found_sensor_by_sensor(desk: Desk, new_topic: Callable[[], str]) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source)
    desk.create(target)
    kitchen = [("kitchen", text) for text in ("21.5", "21.7", "21.4", "85.0", "21.6")]
    fill(desk, source, [*kitchen, ("oven", "180.0"), ("oven", "rubbish")])
    outliers = example("outliers.py")
    query = outliers["start"](desk.stream(source), desk.kafka, target, desk.checkpoint())
    query.awaitTermination()
    assert written(desk, target) == [("kitchen", "85.0")]


def test_every_example_is_tried_here() -> None:
    told = Path(__file__).read_text()
    assert all(f'"{path.name}"' in told for path in EXAMPLES.glob("*.py"))
