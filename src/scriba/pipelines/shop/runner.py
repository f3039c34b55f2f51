"""Keeps the queries of the shop running: starts them, publishes how they do, starts them again.

A query that fails, because a broker went away or an executor died, goes on from its checkpoint
after a pause that grows. One that keeps failing ends the run, with its reason.

Each query starts a handful of Python processes, to which Spark gives ten seconds. So the slow
queries begin when the quick ones have had a batch, and the first figures are there sooner.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from scriba.client import SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.progress import Listener
from scriba.pipelines.shop.queries import SLOW, Settings, Start
from scriba.pipelines.shop.topics import Progress

log = logging.getLogger(__name__)

FAILURES: Final = 8
"""In a row, until a run is given up."""
LONGEST_PAUSE: Final = 30.0
FIRST_BATCH: Final = 30.0
LAST_WORDS: Final = 5.0
WELL_AFTER: Final = 120.0
"""Seconds after which a query that was started again counts as well."""


class GivenUp(Exception):
    """A query cannot be kept running."""


@dataclass
class _Watched:
    query: StreamingQuery | None = None
    since: float = 0.0
    failures: int = 0
    again_at: float = 0.0


def reason(failure: BaseException) -> str:
    """The line of a long Java story that says what happened."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("scriba.", "pyspark.errors"))]
    return (python[-1] if python else lines[0] if lines else repr(failure))[:500]


class Runner:
    """`run` returns when `stop` is set, or at the end of the topics if that was asked for."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        queries: Mapping[str, Start],
        told: Callable[[str], None] = log.info,
    ) -> None:
        self.stop = threading.Event()
        self._spark = spark
        self._settings = settings
        self._queries = queries
        self._watched = {name: _Watched() for name in queries}
        self._told = told
        self._seen: set[str] = set()
        self._runs: set[str] = set()

    def run(self) -> None:
        with SyncProducer(bootstrap_servers=self._settings.bootstrap) as producer:

            def publish(row: Progress) -> None:
                name = self._settings.names(topics.PROGRESS)
                producer.send_nowait(name, json.dumps(row).encode(), row["query"].encode())
                if row["query"] not in self._seen:
                    self._seen.add(row["query"])
                    self._told(f"{row['query']}: first batch in {row['batch_ms']} ms")

            names = {self._settings.group(name): name for name in self._queries}
            listener = Listener(names, publish)
            self._spark.streams.addListener(listener)
            try:
                self._watch()
            finally:
                self._end()
                self._hear_out(listener)
                self._spark.streams.removeListener(listener)

    def _hear_out(self, listener: Listener) -> None:
        """Spark tells of batches a little later; what it has to say is waited for."""
        deadline = time.monotonic() + LAST_WORDS
        while not listener.ended >= self._runs and time.monotonic() < deadline:
            time.sleep(0.05)

    def _watch(self) -> None:
        while not self.stop.is_set():
            open_ones = 0
            for name, watched in self._watched.items():
                open_ones += self._look_after(name, watched)
            if open_ones == 0:
                return
            self.stop.wait(0.2)

    def _look_after(self, name: str, watched: _Watched) -> bool:
        """Whether there is more to do for the query."""
        now = time.monotonic()
        if watched.query is None:
            waits = watched.since == 0.0 and name in SLOW and not self._quick_ones_run(now)
            if not waits and now >= watched.again_at:
                self._start(name, watched)
            return True
        if watched.query.isActive:
            if now - watched.since > WELL_AFTER:
                watched.failures = 0
            return True
        failure = watched.query.exception()
        if failure is not None:
            self._failed(name, watched, failure)
            return True
        return False  # it has read everything, as it was asked to

    def _quick_ones_run(self, now: float) -> bool:
        """Whether each has had a batch, or long enough a time for one."""
        return all(
            name in self._seen or 0.0 < watched.since < now - FIRST_BATCH
            for name, watched in self._watched.items()
            if name not in SLOW
        )

    def _start(self, name: str, watched: _Watched) -> None:
        watched.since = time.monotonic()
        try:
            watched.query = self._queries[name]()
            self._runs.add(watched.query.runId)
        except Exception as failure:
            self._failed(name, watched, failure)

    def _failed(self, name: str, watched: _Watched, failure: BaseException) -> None:
        watched.query = None
        watched.failures += 1
        if watched.failures >= FAILURES:
            raise GivenUp(f"{name} failed {FAILURES} times in a row: {reason(failure)}")
        pause = min(LONGEST_PAUSE, 2.0 ** (watched.failures - 1))
        watched.again_at = time.monotonic() + pause
        self._told(f"{name}: {reason(failure)}; it goes on in {pause:.0f} s")

    def _end(self) -> None:
        for watched in self._watched.values():
            if watched.query is not None:
                try:
                    watched.query.stop()
                except StreamingQueryException as failure:
                    log.info("a query that was stopped says: %s", reason(failure))
