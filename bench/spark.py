"""The rows about Spark: its own connector and ours, reading topics and writing them back.

A row of ours holds `format("scriba")` and the exactly-once sink on Scriba against the official
connector, whose sink writes at least once, on Apache Kafka. The row beside it has the official
connector on both. One session on two cores serves all of them; its CPU is that of the driver, Java
and the Python workers, without the broker's. What a session compiles and starts at first use is
done before the first round.
"""

import atexit
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import brokers
from brokers import KafkaBroker
from rows import Bench, Figures, Metric, Row

from scriba.client import NewTopic, SyncAdmin, SyncProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
VALUE_BYTES, KEYS = 100, 5_000
PARTITIONS = 4
INPUT = "spark-input"
BATCHES, BATCH_ROWS = 12, 2_000
"""Micro-batches whose time is taken, after some that are not, and the rows of each."""
FIRST = 4
WARM_RUNS = 3

_filled: set[int] = set()
"""Brokers that have the input, by process."""

JARS = Path(__file__).resolve().parents[1] / ".cache" / "spark" / "lib"


@cache
def session() -> "SparkSession":
    from scriba.spark import end, session

    spark = session("bench", master="local[2]", connector="official", jars=JARS)
    spark.sparkContext.setLogLevel("OFF")
    atexit.register(end, spark)
    return spark


def cpu_seconds() -> float:
    """Of this process and all it started but brokers."""
    mine = brokers._tree(os.getpid())
    others = {pid for pid in mine if _is_broker(pid)}
    for pid in list(others):
        others.update(brokers._tree(pid))
    ticks = sum(brokers._cpu_ticks(pid) for pid in mine if pid not in others)
    return ticks / os.sysconf("SC_CLK_TCK")


def _is_broker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"kafka.Kafka" in words or (b"scriba" in words and b"up" in words)
    return False


def fill(bench: Bench, topic: str, rows: int, partitions: int) -> None:
    """The same records on both sides."""
    with SyncAdmin(bootstrap_servers=bench.broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1, {})])
    value = bytes(33 + n % 90 for n in range(VALUE_BYTES))
    with SyncProducer(bootstrap_servers=bench.broker.bootstrap, linger_ms=20) as producer:
        for n in range(rows):
            producer.send_nowait(topic, value, key=b"key-%d" % (n % KEYS))
        producer.flush()


def official(bench: Bench, only: bool) -> bool:
    return only or isinstance(bench.broker, KafkaBroker)


def rows_of(bench: Bench, only: bool, topic: str = INPUT, **options: str) -> "DataFrame":
    reader: Any = session().readStream if options else session().read
    given = {"kafka.bootstrap.servers": bench.broker.bootstrap, "subscribe": topic, **options}
    found: DataFrame = (
        reader.format("kafka" if official(bench, only) else "scriba").options(**given).load()
    )
    return found


@contextlib.contextmanager
def target(bench: Bench) -> Iterator[str]:
    """A topic to write to, deleted afterwards."""
    name = f"spark-output-{time.monotonic_ns()}"
    with SyncAdmin(bootstrap_servers=bench.broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1, {"file.delete.delay.ms": "100"})])
        yield name
        admin.delete_topics([name])


# ---- what is done with the rows ----


def into_noop(bench: Bench, only: bool, folder: str) -> None:
    rows_of(bench, only).write.format("noop").mode("overwrite").save()


def into_parquet(bench: Bench, only: bool, folder: str) -> None:
    rows_of(bench, only).write.parquet(f"{folder}/rows")


def into_topic(bench: Bench, only: bool, folder: str) -> None:
    """All there is as one micro-batch, started and ended with its query."""
    from scriba.spark import ExactlyOnceSink

    broker = {"kafka.bootstrap.servers": bench.broker.bootstrap}
    with target(bench) as topic:
        rows = rows_of(bench, only, startingOffsets="earliest").select("key", "value")
        writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        if official(bench, only):
            writer = writer.format("kafka").options(**broker, topic=topic)
        else:
            writer = writer.foreachBatch(ExactlyOnceSink({**broker, "topic": topic}))
        writer.trigger(availableNow=True).start().awaitTermination()


Work = Callable[[Bench, bool, str], None]


def moved(work: Work, only: bool, bench: Bench) -> Figures:
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder:
        cpu, began = cpu_seconds(), time.monotonic()
        work(bench, only, folder)
        took, used = time.monotonic() - began, cpu_seconds() - cpu
    millions = bench.amount(ROWS) / 1e6
    return {"time": took / millions, "cpu": used / millions}


# ---- micro-batches ----


def batches(stateful: bool, only: bool, bench: Bench) -> Figures:
    """The median time from the trigger to the end of a batch, as Spark tells it."""
    most = min(BATCH_ROWS, bench.amount(ROWS) // (FIRST + BATCHES))
    rows = rows_of(bench, only, startingOffsets="earliest", maxOffsetsPerTrigger=str(most))
    counted = rows.groupBy("key").count() if stateful else rows.select("key", "value")
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder:
        writer = counted.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.outputMode("update").start()
        try:
            wanted = FIRST + BATCHES
            while len(query.recentProgress) < wanted:
                if (failure := query.exception()) is not None:
                    raise failure
                time.sleep(0.05)
        finally:
            query.stop()
    taken = [progress["durationMs"] for progress in query.recentProgress[FIRST:wanted]]
    return {"ms": statistics.median(each["triggerExecution"] for each in taken)}


# ---- rows of the table ----


def prepare(run: Callable[[Bench], Figures], bench: Bench) -> Callable[[], None]:
    """Fills the input once, and runs the row for what Java compiles and workers start."""
    if bench.broker.pid not in _filled:
        fill(bench, INPUT, bench.amount(ROWS), PARTITIONS)
        _filled.add(bench.broker.pid)
    for _ in range(WARM_RUNS):
        run(bench)
    return lambda: None


def moves(key: str, title: str, work: Work, goal: float) -> tuple[Row, Row]:
    """Ours beside the official connector, and the official one on both."""
    goals = (Metric("time", "s/M rows", goal), Metric("cpu", "CPU-s/M rows", goal))
    plain = (Metric("time", "s/M rows"), Metric("cpu", "CPU-s/M rows"))
    return (
        _row(key, f"Spark: {title}", goals, partial(moved, work, False)),
        _row(f"{key}-official", "... its own connector on both", plain, partial(moved, work, True)),
    )


def _row(key: str, title: str, metrics: tuple[Metric, ...], run: Callable[[Bench], Figures]) -> Row:
    return Row(key, title, metrics, run, warms=False, prepare=partial(prepare, run))


_LATENCY = (Metric("ms", "ms/micro-batch"),)

SPARK = (
    *moves("spark-noop", "a topic of 1 M rows is read", into_noop, 1.0),
    *moves("spark-parquet", "... into Parquet", into_parquet, 1.0),
    *moves("spark-copy", "... into a topic; exactly once, at least once", into_topic, 1.3),
    _row("spark-batch", "Spark: a stateless micro-batch", _LATENCY, partial(batches, False, False)),
    _row("spark-state", "Spark: a stateful micro-batch", _LATENCY, partial(batches, True, False)),
)
