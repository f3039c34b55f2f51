"""Keeps the queries of the shop running: starts them, publishes how they do, starts them again.

    waits ──▶ begins ──first batch──▶ runs ──▶ has read everything, if that was asked for
      ▲          │                      │
      └──────────┴──── it failed ◀──────┘      again after a pause; given up when it keeps failing

A query that fails, because a broker went away, an executor died or the machine was too busy, goes
on from its checkpoint. What went wrong is said in a line and in shop_progress. One that keeps
failing ends the run, with its reason.

One query begins at a time. Each starts a handful of Python processes and compiles its plan, which
keeps two cores busy; the figures, which begin first, are there sooner, and no start makes another
miss Spark's limit of time.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from scriba.client import SyncProducer
from scriba.pipelines.attempts import Attempts, reason
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import time_name
from scriba.pipelines.shop.streaming.progress import Listener, unheard
from scriba.pipelines.shop.streaming.queries import Settings, Start
from scriba.pipelines.shop.topics import RESTARTING, RUNNING, STARTING, Progress

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
FIRST_BATCH: Final = 30.0
"""Seconds that others wait for the first batch of a query that begins."""
LAST_WORDS: Final = 5.0
WELL_AFTER: Final = 120.0
"""Seconds after which a query that finds nothing to read counts as well."""


GONE: Final = (ConnectionError, Py4JNetworkError)
"""What calls end with when Java is no longer there."""
SIGNALS_APART: Final = 1.0


class GivenUp(Exception):
    """A query cannot be kept running."""


@dataclass
class _Watched:
    name: str
    start: Start
    query: StreamingQuery | None = None
    run: str = ""
    since: float = 0.0
    done: bool = False
    attempts: Attempts = field(default_factory=Attempts)


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
        self._watched = {name: _Watched(name, start) for name, start in queries.items()}
        self._told = told
        self._last: dict[str, Progress] = {}
        self._runs: set[str] = set()
        names = {settings.group(name): name for name in queries}
        self._listener = Listener(names, self._heard, self._idle)

    def run(self) -> None:
        with SyncProducer(bootstrap_servers=self._settings.bootstrap) as producer:
            self._producer = producer
            self._spark.streams.addListener(self._listener)
            try:
                try:
                    for name in self._watched:
                        self._publish(unheard(name))
                    self._watch()
                finally:
                    self._end()
            except GONE as gone:
                # Unless a signal to end reached Java as well: then there is nothing left to end.
                if not self.stop.wait(SIGNALS_APART):
                    raise GivenUp("Spark's Java process has ended by itself") from gone

    # -- what is published -------------------------------------------------------------------------

    def _heard(self, row: Progress) -> None:
        """A query had a batch."""
        name = row["query"]
        if name not in self._last or self._last[name]["batch"] < 0:
            self._told(f"{name}: first batch in {row['batch_ms']} ms")
        self._publish({**row, "restarts": self._watched[name].attempts.restarts})

    def _idle(self, run: str) -> None:
        """A query has found nothing to read; before its first batch that is news."""
        for watched in self._watched.values():
            last = self._last.get(watched.name)
            if watched.run == run and last is not None and last["state"] == STARTING:
                now = time_name(time.time_ns() // 1_000_000)
                self._publish({**last, "state": RUNNING, "updated": now})

    def _trouble(self, watched: _Watched, why: str) -> None:
        name = watched.name
        self._publish(
            {
                **self._last.get(name, unheard(name)),
                "updated": time_name(time.time_ns() // 1_000_000),
                "state": RESTARTING,
                "restarts": watched.attempts.restarts,
                "trouble": why,
            }
        )

    def _publish(self, row: Progress) -> None:
        self._last[row["query"]] = row
        topic = self._settings.names(topics.PROGRESS)
        self._producer.send_nowait(topic, json.dumps(row).encode(), row["query"].encode())

    def _hear_out(self) -> None:
        """Spark tells of batches a little later; what it has to say is waited for."""
        deadline = time.monotonic() + LAST_WORDS
        while not self._listener.ended >= self._runs and time.monotonic() < deadline:
            time.sleep(0.05)

    # -- queries -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self.stop.is_set():
            for watched in self._watched.values():
                self._look_after(watched)
            if all(watched.done for watched in self._watched.values()):
                return
            self.stop.wait(LOOK_SECONDS)

    def _look_after(self, watched: _Watched) -> None:
        if watched.done:
            return
        now = time.monotonic()
        if watched.query is None:
            if now >= watched.attempts.again_at and not self._one_begins(now):
                self._begin(watched, now)
        elif watched.query.isActive:
            if watched.run in self._listener.moved or now - watched.since > WELL_AFTER:
                watched.attempts.well()
        elif (failure := watched.query.exception()) is not None:
            self._failed(watched, failure)
        elif self._settings.to_the_end:
            watched.done = True
        else:
            self._failed(watched, RuntimeError("the query ended without a word"))

    def _one_begins(self, now: float) -> bool:
        settled = self._listener.moved | self._listener.idle | self._listener.ended
        return any(
            watched.query is not None
            and not watched.done
            and watched.run not in settled
            and now - watched.since < FIRST_BATCH
            for watched in self._watched.values()
        )

    def _begin(self, watched: _Watched, now: float) -> None:
        watched.since = now
        try:
            watched.query = watched.start()
            watched.run = str(watched.query.runId)
            self._runs.add(watched.run)
        except GONE:
            raise
        except Exception as failure:
            self._failed(watched, failure)

    def _failed(self, watched: _Watched, failure: BaseException) -> None:
        watched.query = None
        if watched.run in self._listener.moved:
            watched.attempts.well()
        watched.run = ""
        why = reason(failure)
        pause = watched.attempts.failed(failure, time.monotonic())
        if pause is None:
            failures = watched.attempts.failures
            raise GivenUp(f"{watched.name} failed {failures} times in a row: {why}")
        self._told(f"{watched.name}: {why}; it goes on in {pause:.0f} s")
        self._trouble(watched, f"{why}; it goes on in {pause:.0f} s")

    def _end(self) -> None:
        """Ends the queries, and hears what Spark still has to say of them."""
        for watched in self._watched.values():
            if watched.query is not None:
                try:
                    watched.query.stop()
                except StreamingQueryException as failure:
                    log.info("a query that was stopped says: %s", reason(failure))
        self._hear_out()
        self._spark.streams.removeListener(self._listener)
