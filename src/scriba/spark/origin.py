"""Which query, and which run of it, a function of `foreachBatch` is called for.

In a classic session the driver calls the function, in a thread whose local properties name both.
With Spark Connect a process beside the server calls it, with a session of its own, and nothing
there names the query. But the query's checkpoint does: Spark keeps its id in the file `metadata`.
Every run of a query has a process of its own there, so that the run needs no name.

When a query is stopped, Spark cancels the jobs of its batch. What the function then raises decides
how the query ends: if it tells of the cancelled job group, Spark takes it for the end that was
asked for, and for a failure otherwise.
"""

import json
import logging
import re
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException, PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession

from scriba.spark.options import OptionError

QUERY: Final = "sql.streaming.queryId"
RUN: Final = "spark.jobGroup.id"
"""Local properties in which Spark tells who runs a batch; the run's id is its job group."""

_INTERRUPTED: Final = re.compile(
    r"^:? ?java\.(lang\.InterruptedException|io\.InterruptedIOException|"
    r"nio\.channels\.ClosedByInterruptException)",
    re.MULTILINE,
)
_SPLITS: Final = re.compile(r"splits=(?:Some\()?(\d+)")


class Origin(NamedTuple):
    query: str
    run: str | None


class BatchStopped(Exception):
    """The batch was cancelled, as when its query is stopped; nothing of it stays."""

    def __init__(self, run: str | None) -> None:
        # Spark looks for these words.
        super().__init__(
            f"the batch was stopped: org.apache.spark.SparkException: job group {run} is cancelled"
        )


def origin(session: SparkSession, checkpoint: str | None, batch: int) -> Origin:
    """OptionError when there is no telling."""
    context = context_of(session)
    told = None if context is None else context.getLocalProperty(QUERY)
    run = None if context is None else context.getLocalProperty(RUN)
    if checkpoint is not None:
        kept = _kept(session, checkpoint, batch)
        if told is not None and told != kept:
            raise OptionError(
                f"option checkpointLocation: {checkpoint} is the checkpoint of query {kept}, and "
                f"this is query {told}; give the sink the checkpoint of its own query"
            )
        return Origin(kept, run)
    if told is not None:
        return Origin(str(told), run)
    if context is None:
        raise OptionError(
            "option checkpointLocation: is needed with Spark Connect, which does not say what "
            "query a batch belongs to; give the sink the location that the query is given"
        )
    raise OptionError("the exactly-once sink works only in writeStream.foreachBatch(sink)")


def context_of(session: SparkSession) -> Any:
    """None with Spark Connect, which has none."""
    try:
        return session.sparkContext
    except (AttributeError, PySparkNotImplementedError):
        return None


def _kept(session: SparkSession, checkpoint: str, batch: int) -> str:
    """The id of the query whose checkpoint this is, and which has begun this batch."""
    place = checkpoint.rstrip("/")
    try:
        (line,) = session.read.text(f"{place}/metadata").collect()
        session.read.text(f"{place}/offsets/{batch}").limit(1).collect()
        return str(json.loads(line.value)["id"])
    except (PySparkException, ValueError, KeyError) as wrong:
        raise OptionError(
            f"option checkpointLocation: {checkpoint} is not the checkpoint of a query that is at "
            f"batch {batch}; give the sink the location that its query is given"
        ) from wrong


def cores(session: SparkSession) -> int:
    """How many tasks run at the same time, by the number of parts that Spark gives a range."""
    (row,) = session.sql("EXPLAIN SELECT id FROM range(1)").collect()
    found = _SPLITS.search(row[0])
    return int(found[1]) if found else 1


def shuffled(rows: DataFrame) -> bool:
    """Whether tasks of this batch begin with what others left behind, as after a `groupBy`.

    Spark Connect does not tell; with it they may.
    """
    try:
        lineage = rows.rdd.toDebugString() or b""
    except (AttributeError, PySparkNotImplementedError):
        return True
    return b"ShuffledRowRDD" in lineage


def stopped(failure: BaseException, run: str | None) -> bool:
    """Whether a job failed because its query is being stopped."""
    told = str(failure)
    cancelled = run is not None and "cancelled" in told and run in told
    return cancelled or _INTERRUPTED.search(told) is not None


def _expected(record: logging.LogRecord) -> bool:
    """Py4J logs what a function raises, with all its lines; a stop is no news."""
    return record.exc_info is None or not isinstance(record.exc_info[1], BatchStopped)


logging.getLogger("py4j.clientserver").addFilter(_expected)
