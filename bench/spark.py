"""The rows about Spark: its own connector and ours, reading topics and writing them back.

A row of ours holds `format("scriba")` and the exactly-once sink on Scriba against the official
connector, whose sink writes at least once, on Apache Kafka. The row beside it has the official
connector on both, so that ours can be held against it on either broker. Both are as they come: no
option is set but what says where to read and write. CPU is that of the driver, Java and the Python
workers, without the broker's; topics are made and deleted outside of the clock.

Most rows are warm: one session on two cores serves all of them, and what it compiles and starts at
first use is done before the first round, by runs of each row that do not count. A row with `cold`
in its key is the first query of a session of its own, in which Java has compiled none of it and no
Python process runs; the start of the session, the same for both, is not counted.
"""

import atexit
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.rows import Bench, Figures, Metric, Row
from scriba.client import NewTopic, SyncAdmin, SyncProducer
from tools.kafka import brokers
from tools.kafka.brokers import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
VALUE_BYTES, KEYS = 100, 5_000
PARTITIONS = 4
INPUT = "spark-input"
BATCHES, BATCH_ROWS = 12, 2_000
"""Micro-batches whose time is taken, after some that are not, and the rows of each."""
FIRST = 4
WIDE_INPUT = "spark-wide-input"
WIDE_PARTITIONS, WIDE_ROWS = 100, 200
"""Many partitions with few rows each."""
WARM_RUNS = 3

_filled: set[tuple[int, str]] = set()
"""Brokers that have an input, by process."""

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / ".cache" / "spark" / "lib"


@cache
def session() -> "SparkSession":
    from scriba.spark import end, session

    spark = session("bench", master="local[2]", connector="official", jars=JARS)
    spark.sparkContext.setLogLevel("OFF")
    atexit.register(end, spark)
    return spark


_workers: dict[int, int] = {}
"""Python workers that were ever seen, with the ticks they had by then: the daemon that forks them
waits for none, so what one has used is in nobody's account when it has ended."""


def cpu_seconds() -> float:
    """Of this process and all it started but brokers."""
    mine = set(brokers._tree(os.getpid()))
    for pid in filter(_is_broker, sorted(mine)):
        mine.difference_update(brokers._tree(pid))
    now = {pid: brokers._cpu_ticks(pid) for pid in mine}
    _workers.update({pid: now[pid] for pid in mine if b"pyspark.daemon" in _words(pid)})
    ended = sum(ticks for pid, ticks in _workers.items() if pid not in now)
    return (sum(now.values()) + ended) / os.sysconf("SC_CLK_TCK")


def _is_broker(pid: int) -> bool:
    words = _words(pid)
    return b"kafka.Kafka" in words or (b"scriba" in words and b"up" in words)


def _words(pid: int) -> list[bytes]:
    """The command of a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def fill(bench: Bench, topic: str, rows: int, partitions: int) -> None:
    """The same records on both sides, once; those of a key in one partition, all evenly filled."""
    if (bench.broker.pid, topic) in _filled:
        return
    with SyncAdmin(bootstrap_servers=bench.broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1, {})])
    value = bytes(33 + n % 90 for n in range(VALUE_BYTES))
    with SyncProducer(bootstrap_servers=bench.broker.bootstrap, linger_ms=20) as producer:
        for n in range(rows):
            key = n % KEYS
            producer.send_nowait(topic, value, key=b"key-%d" % key, partition=key % partitions)
        producer.flush()
    _filled.add((bench.broker.pid, topic))


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


def into_noop(bench: Bench, only: bool, folder: str, topic: str) -> None:
    rows_of(bench, only).write.format("noop").mode("overwrite").save()


def into_parquet(bench: Bench, only: bool, folder: str, topic: str) -> None:
    rows_of(bench, only).write.parquet(f"{folder}/rows")


def into_topic(bench: Bench, only: bool, folder: str, topic: str) -> None:
    """All there is as one micro-batch, started and ended with its query."""
    rows = rows_of(bench, only, startingOffsets="earliest").select("key", "value")
    writer = writer_to(bench, only, rows, topic).option(
        "checkpointLocation", f"{folder}/checkpoint"
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def writer_to(bench: Bench, only: bool, rows: "DataFrame", topic: str) -> Any:
    """A stream into a topic: exactly once with ours, at least once with the official connector."""
    from scriba.spark import ExactlyOnceSink

    broker = {"kafka.bootstrap.servers": bench.broker.bootstrap}
    if official(bench, only):
        return rows.writeStream.format("kafka").options(**broker, topic=topic)
    return rows.writeStream.foreachBatch(ExactlyOnceSink({**broker, "topic": topic}))


Work = Callable[[Bench, bool, str, str], None]
WORKS: Mapping[str, Work] = {"noop": into_noop, "parquet": into_parquet, "copy": into_topic}


def moved(work: str, only: bool, bench: Bench) -> Figures:
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder, target(bench) as topic:
        session()
        cpu, began = cpu_seconds(), time.monotonic()
        WORKS[work](bench, only, folder, topic)
        took, used = time.monotonic() - began, cpu_seconds() - cpu
    millions = bench.amount(ROWS) / 1e6
    return {"time": took / millions, "cpu": used / millions}


def moved_first(work: str, only: bool, bench: Bench) -> Figures:
    """The same in a process of its own, which has a session of its own."""
    side = "kafka" if isinstance(bench.broker, KafkaBroker) else "scriba"
    words = (work, only, side, bench.broker.port, bench.scale)
    command = [sys.executable, "-m", "bench.spark_cold", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# ---- micro-batches ----


def batches(work: str, only: bool, bench: Bench) -> Figures:
    """The median time from the trigger to the end of a batch, as Spark tells it."""
    most = min(BATCH_ROWS, bench.amount(ROWS) // (FIRST + BATCHES))
    rows = rows_of(bench, only, startingOffsets="earliest", maxOffsetsPerTrigger=str(most))
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder, target(bench) as topic:
        writer = BATCH_WORKS[work](bench, only, rows, topic)
        query = writer.option("checkpointLocation", folder).start()
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


def batches_into_noop(bench: Bench, only: bool, rows: "DataFrame", topic: str) -> Any:
    return rows.select("key", "value").writeStream.format("noop")


def batches_with_state(bench: Bench, only: bool, rows: "DataFrame", topic: str) -> Any:
    return rows.groupBy("key").count().writeStream.format("noop").outputMode("update")


def batches_into_topic(bench: Bench, only: bool, rows: "DataFrame", topic: str) -> Any:
    return writer_to(bench, only, rows.select("key", "value"), topic)


BATCH_WORKS: Mapping[str, Callable[[Bench, bool, "DataFrame", str], Any]] = {
    "noop": batches_into_noop,
    "state": batches_with_state,
    "copy": batches_into_topic,
}


# ---- many partitions ----


def wide(only: bool, bench: Bench) -> Figures:
    """A batch query over many partitions with few rows in each."""
    session()
    began = time.monotonic()
    rows_of(bench, only, WIDE_INPUT).write.format("noop").mode("overwrite").save()
    return {"time": time.monotonic() - began}


# ---- rows of the table ----


def prepare(run: Callable[[Bench], Figures], warm: int, bench: Bench) -> Callable[[], None]:
    """Fills the inputs once, and runs the row for what Java compiles and workers start."""
    fill(bench, INPUT, bench.amount(ROWS), PARTITIONS)
    fill(bench, WIDE_INPUT, WIDE_PARTITIONS * WIDE_ROWS, WIDE_PARTITIONS)
    for _ in range(warm):
        run(bench)
    return lambda: None


def moves(key: str, title: str, work: str, goal: float, cold: bool = False) -> tuple[Row, Row]:
    """Ours beside the official connector, and the official one on both."""
    run, warm = (moved_first, 0) if cold else (moved, WARM_RUNS)
    goals = (Metric("time", "s/M rows", goal), Metric("cpu", "CPU-s/M rows", goal))
    plain = (Metric("time", "s/M rows"), Metric("cpu", "CPU-s/M rows"))
    return (
        _row(key, f"Spark: {title}", goals, partial(run, work, False), warm),
        _row(
            f"{key}-official",
            "... official connector on both",
            plain,
            partial(run, work, True),
            warm,
        ),
    )


def _row(
    key: str, title: str, metrics: tuple[Metric, ...], run: Callable[[Bench], Figures], warm: int
) -> Row:
    """What a first query takes, and the official connector on both, which no goal is about, are
    measured once."""
    once = not warm or key.endswith("-official")
    ready = partial(prepare, run, warm)
    return Row(key, title, metrics, run, warms=False, prepare=ready, once=once)


def micro(key: str, title: str, work: str, goal: float) -> tuple[Row, Row]:
    """The time of a micro-batch, of ours and of the official connector on both."""
    return (
        _row(
            key,
            f"Spark: {title}",
            (Metric("ms", "ms/micro-batch", goal),),
            partial(batches, work, False),
            1,
        ),
        _row(
            f"{key}-official",
            "... official connector on both",
            (Metric("ms", "ms/micro-batch"),),
            partial(batches, work, True),
            1,
        ),
    )


_WIDE = f"Spark: a topic of {WIDE_PARTITIONS} partitions with {WIDE_ROWS} rows each is read"

SPARK = (
    *moves("spark-noop", "a topic of 1 M rows is read", "noop", 1.0),
    *moves("spark-parquet", "... into Parquet", "parquet", 1.0),
    *moves("spark-copy", "... into a topic; exactly once, at least once", "copy", 1.3),
    *moves("spark-cold-noop", "... read by a session's first query", "noop", 1.0, cold=True),
    *moves("spark-cold-copy", "... into a topic by the first query", "copy", 1.3, cold=True),
    *micro("spark-batch", "a stateless micro-batch", "noop", 1.5),
    *micro("spark-state", "a stateful micro-batch", "state", 1.5),
    *micro("spark-sink", "a micro-batch into a topic; exactly once, at least once", "copy", 2.0),
    _row("spark-wide", _WIDE, (Metric("time", "s", limit=1.0),), partial(wide, False), 2),
    _row(
        "spark-wide-official",
        "... official connector on both",
        (Metric("time", "s"),),
        partial(wide, True),
        2,
    ),
)
