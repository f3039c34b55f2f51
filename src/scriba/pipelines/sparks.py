"""Spark sessions of the pipelines, and where their queries keep state."""

import os
import tempfile
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from scriba.spark.ending import end
from scriba.spark.sessions import session

STATE: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

ENDS_WITHIN_S: Final = 12.0
"""Less than the demo gives its parts."""

_POOL: Final = """  <pool name="{}"><schedulingMode>FIFO</schedulingMode>
    <weight>{}</weight><minShare>{}</minShare></pool>
"""
POOLS: Final = "".join(
    (
        '<?xml version="1.0"?>\n<allocations>\n',
        _POOL.format("figures", 8, 2),
        _POOL.format("intake", 4, 0),
        "</allocations>\n",
    )
)
"""Whose tasks go first when several queries wait for a core: the figures, which somebody looks at.
Queries that are not named weigh 1."""

ON_A_CLUSTER: Final[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "8"}
"""Spark's own number is 200, each of which would be a store to commit in every micro-batch."""


def start(name: str, master: str | None, connector: str, config: Mapping[str, str]) -> SparkSession:
    """Queries share the cores by the pools, so that a long batch of one does not hold up others."""
    here = chosen(master).startswith("local")
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as pools:
        pools.write(POOLS)
        pools.flush()
        shared = {
            "spark.scheduler.mode": "FAIR",
            # As it is: Hadoop takes the %20 of an address for part of the name.
            "spark.scheduler.allocation.file": f"file://{pools.name}",
            **({} if here else ON_A_CLUSTER),
        }
        return session(name, master=master, connector=connector, config={**shared, **config})


def chosen(master: str | None) -> str:
    """The master of a session, as `session` chooses it."""
    return master or os.environ.get("MASTER") or "local[*]"


def stop(spark: SparkSession) -> None:
    """Within seconds, whatever its batches wait for."""
    end(spark, ENDS_WITHIN_S)
