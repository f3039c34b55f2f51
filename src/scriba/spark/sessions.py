"""Spark sessions that start quickly on one machine and run unchanged on a cluster."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from scriba.spark.origin import context_of
from scriba.spark.reading.source import ScribaDataSource

SCALA: Final = "2.13"
OFFICIAL: Final = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}"
JARS_VARIABLE: Final = "SCRIBA_SPARK_JARS"
"""A folder with the jars of the official connector, for machines that reach no Maven."""

CONNECTORS: Final = ("scriba", "official")

CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The default forks a process for each file on a local disk; this one halves a micro-batch."""

JAVA: Final = "spark.driver.extraJavaOptions"
DEEP: Final = "-Xss16m"
"""When a batch fails or is stopped, Spark looks through what Python said of it by a regular
expression that takes megabytes of stack for a long story. Without it a query would end without a
word, as if all was well."""

EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}

ON_ONE_MACHINE: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    JAVA: "-XX:+UseSerialGC",
}
"""Two shuffle partitions are what two cores need; the number is frozen into a stateful query's
checkpoint, so set it before the first run of a query that will grow."""


def session(
    name: str = "scriba",
    *,
    master: str | None = None,
    connector: str = "scriba",
    jars: str | os.PathLike[str] | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session in which `format("scriba")` works, and with `connector="official"` also
    `format("kafka")`.

    `master` is `local[*]` unless given or set by `spark-submit`. `config` wins over what is set
    here. The official connector's jars come from the folder `jars` or SCRIBA_SPARK_JARS, else Spark
    brings them from Maven when it starts.
    """
    if connector not in CONNECTORS:
        raise ValueError(f"connector must be one of {', '.join(CONNECTORS)}, not {connector!r}")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(EVERYWHERE)
    master = master or os.environ.get("MASTER") or "local[*]"
    if master.startswith("local"):
        settings |= ON_ONE_MACHINE
        _start_workers_quickly()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if connector == "official":
        settings |= official(jars or os.environ.get(JARS_VARIABLE))
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in with_deep_stack(settings | dict(config or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def with_deep_stack(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with Java's threads as deep as Spark needs them, unless they say how deep."""
    java = settings.get(JAVA, "")
    return {**settings, JAVA: java if "-Xss" in java else f"{java} {DEEP}".strip()}


def _start_workers_quickly() -> None:
    """Spark gives a Python process ten seconds to answer, however busy the machine is."""
    launcher = Path(__file__).with_name("python.sh")
    if "SPARK_HOME" not in os.environ and os.access(launcher, os.X_OK):
        os.environ.setdefault("SCRIBA_SPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_PYTHON", str(launcher))


def register(spark: SparkSession) -> None:
    """Makes `format("scriba")` known to a session that was made elsewhere."""
    cores = local_cores(spark)
    spark.dataSource.register(
        ScribaDataSource if cores is None else ScribaDataSource.knowing(cores)
    )


def local_cores(spark: SparkSession) -> int | None:
    """How many tasks run at the same time, on one machine; the executors of a cluster come and
    go, and with Spark Connect nothing is told."""
    context = context_of(spark)
    if context is None or not re.fullmatch(r"local(\[.*\])?", context.master):
        return None
    return int(context.defaultParallelism)


def official(folder: str | os.PathLike[str] | None) -> dict[str, str]:
    """What gives a session Spark's own connector."""
    if folder is None:
        return {"spark.jars.packages": f"{OFFICIAL}:{pyspark.__version__}"}
    found = sorted(Path(folder).glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in found):
        raise FileNotFoundError(f"no spark-sql-kafka jar in {folder}")
    return {"spark.jars": ",".join(str(jar.resolve()) for jar in found)}
