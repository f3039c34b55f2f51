"""The Spark session of the shop."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from scriba.spark.sessions import session


def start(name: str, master: str | None, connector: str, config: Mapping[str, str]) -> SparkSession:
    """Queries share the cores fairly, so that a long batch of one does not hold up the others."""
    return session(
        name,
        master=master,
        connector=connector,
        config={"spark.scheduler.mode": "FAIR", **config},
    )
