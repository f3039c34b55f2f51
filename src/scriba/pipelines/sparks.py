"""Spark sessions of the pipelines, and where their queries keep state."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from scriba.spark.ending import end
from scriba.spark.sessions import ON_ONE_MACHINE, session

JAVA: Final = "spark.driver.extraJavaOptions"
DEEP: Final = "-Xss4m"
"""When a batch fails or is stopped, Spark looks through what Python said of it by a regular
expression that takes a megabyte of stack for a long story. Without it a query would end without a
word, as if all was well."""

STATE: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

ENDS_WITHIN_S: Final = 12.0
"""Less than the demo gives its parts."""


def start(name: str, master: str | None, connector: str, config: Mapping[str, str]) -> SparkSession:
    """Queries share the cores fairly, so that a long batch of one does not hold up the others."""
    java = config.get(JAVA, ON_ONE_MACHINE[JAVA])
    deep = java if "-Xss" in java else f"{java} {DEEP}"
    return session(
        name,
        master=master,
        connector=connector,
        config={"spark.scheduler.mode": "FAIR", **config, JAVA: deep},
    )


def stop(spark: SparkSession) -> None:
    """Within seconds, whatever its batches wait for."""
    end(spark, ENDS_WITHIN_S)
