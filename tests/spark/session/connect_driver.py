"""A program on Spark Connect: copies a topic, and tells what it did as JSON.

    python connect_driver.py BOOTSTRAP SOURCE ONCE OFTEN FOLDER JAVA-OPTIONS

It starts a server of its own, which runs in a Java process as a cluster's would.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

import scriba.spark
from scriba.spark import ExactlyOnceSink, register
from scriba.spark.reasons import busy

T = TypeVar("T")
ATTEMPTS = 5
LAUNCHER = Path(scriba.spark.__file__).with_name("python.sh")
"""Spark gives a Python process ten seconds to answer; this one is up in half the time."""


class CrashOnce:
    """Raises after the first commit, before Spark has noted the end of the batch."""

    def __init__(self, scar: str) -> None:
        self.scar = scar

    def __call__(self, step: str) -> None:
        if step == "committed" and not os.path.exists(self.scar):
            Path(self.scar).touch()
            raise RuntimeError("crashed after the commit")


class Copies:
    def __init__(self, spark: SparkSession, bootstrap: str, source: str, folder: str) -> None:
        self.broker = {"kafka.bootstrap.servers": bootstrap}
        self.folder = folder
        reader = spark.readStream.format("scriba")
        self.rows = reader.options(
            **self.broker, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="20"
        ).load()

    def once(self, target: str, checkpoint: str, tasks: str, **options: str) -> str | None:
        """Runs to the end; what it ended with."""
        given = {**self.broker, "topic": target, "tasks": tasks, **options}
        sink = ExactlyOnceSink(given, watch=CrashOnce(f"{self.folder}/scar"))
        noted = f"{self.folder}/on-driver"

        def write(rows: DataFrame, batch: int) -> None:
            sink(rows, batch)
            if sink.last is not None and sink.last.on_driver:
                Path(noted).touch()

        return self.run(self.rows.writeStream.foreachBatch(write), checkpoint)

    def often(self, target: str, checkpoint: str) -> str | None:
        rows = self.rows.select("key", "value")
        return self.run(
            rows.writeStream.format("scriba").options(**self.broker, topic=target), checkpoint
        )

    def run(self, writer: Any, checkpoint: str) -> str | None:
        stream = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        try:
            patiently(lambda: stream.start().awaitTermination())
        except Exception as failure:
            return str(failure)
        return None


def patiently(work: Callable[[], T]) -> T:
    """Does it again when a Python process of Spark was not up within ten seconds."""
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except Exception as failure:
            if not busy(failure):
                raise
    return work()


def main(bootstrap: str, source: str, once: str, often: str, folder: str, java: str) -> None:
    os.environ |= {"SCRIBA_SPARK_PYTHON": sys.executable, "PYSPARK_PYTHON": str(LAUNCHER)}
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", java)
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    register(spark)
    copies = Copies(spark, bootstrap, source, folder)
    mine = f"{folder}/mine"
    told: dict[str, Any] = {
        "without a checkpoint": copies.once(once, f"{folder}/other", "1"),
        "crashed": copies.once(once, mine, "2", checkpointLocation=mine),
        "again": copies.once(once, mine, "2", checkpointLocation=mine),
        "often": copies.often(often, f"{folder}/often"),
    }
    reader = spark.read.format("scriba").options(**copies.broker, subscribe=once)
    rows = reader.option("kafka.isolation.level", "read_committed").load()
    found = patiently(rows.select("value").collect)
    told["values"] = sorted(row.value.decode() for row in found)
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
