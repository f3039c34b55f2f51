"""One Spark session and one broker for all tests; tests keep apart by topics and checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scriba.spark import end, session
from tests.spark.desk import JARS, JAVA, Desk, Topics
from tools.kafka.broker_fixtures import cluster, new_topic, own_cluster, topic
from tools.kafka.brokers import Broker

__all__ = ["cluster", "new_topic", "own_cluster", "topic"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    spark = session(
        "tests",
        master="local[2]",
        connector="official",
        jars=JARS,
        config={
            "spark.driver.extraJavaOptions": JAVA,
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.streaming.stopTimeout": "300s",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    end(spark)


@pytest.fixture
def topics(cluster: Broker) -> Topics:
    return Topics(cluster)


@pytest.fixture
def desk(spark: SparkSession, cluster: Broker, tmp_path: Path) -> Iterator[Desk]:
    yield Desk(spark, cluster, tmp_path)
    for query in spark.streams.active:  # of a test that failed
        query.stop()
