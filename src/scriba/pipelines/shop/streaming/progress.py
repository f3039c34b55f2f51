"""How the queries do, told to whoever reads shop_progress: watermark, lag, speed, rows left out."""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from scriba.pipelines.shop.events.rules import time_ms, time_name
from scriba.pipelines.shop.topics import RUNNING, STARTING, Progress
from scriba.spark.progress import Figures, Outcome, figures

log = logging.getLogger(__name__)

Publish = Callable[[Progress], None]


class Listener(StreamingQueryListener):
    """Spark calls it after every batch of any query; those of others are left aside."""

    def __init__(
        self, names: dict[str, str], publish: Publish, idle: Callable[[str], None]
    ) -> None:
        self._names = names
        """What a query is called in the topic, by its name in Spark."""
        self._publish = publish
        self._tell_idle = idle
        self._sums: dict[str, Sums] = defaultdict(Sums)
        self.moved: set[str] = set()
        """Runs of queries that have had a batch."""
        self.idle: set[str] = set()
        """Runs that found nothing to read."""
        self.ended: set[str] = set()
        """Runs of queries of which no more will be heard."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is nothing to tell yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if str(event.runId) not in self.idle:
            self.idle.add(str(event.runId))
            self._tell_idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        spark = event.progress
        self.moved.add(str(spark.runId))
        name = self._names.get(spark.name or "")
        if name is None:
            return
        try:
            document = json.loads(spark.json)
            found = figures(spark)
            sums = self._sums[name]
            sums.add(document, found.sink)
            self._publish(progress(name, document, found, sums, time.time_ns() // 1_000_000))
        except Exception:
            log.exception("the progress of %s was not published", name)


@dataclass
class Sums:
    """Of a query, since the run began."""

    dropped: int = 0
    attempts_failed: int = 0
    batches_repeated: int = 0
    batch: int = -1

    def add(self, document: Mapping[str, Any], sink: Outcome | None) -> None:
        operators = document.get("stateOperators", [])
        self.dropped += sum(o.get("numRowsDroppedByWatermark", 0) for o in operators)
        if sink is not None and sink.batch != self.batch:
            self.batch = sink.batch
            self.attempts_failed += max(0, sink.attempts - 1)
            self.batches_repeated += sink.repeated


NOTHING: Final = Figures(None, (), None)


def progress(
    name: str, document: Mapping[str, Any], found: Figures, sums: Sums, now_ms: int
) -> Progress:
    """What Spark and the connector say of a batch, in the words of the topic."""
    watermark = document.get("eventTime", {}).get("watermark")
    at = None if watermark is None else time_ms(watermark)
    if at == 0:  # nothing was seen yet
        at = None
    sources = document.get("sources", [])
    sink = found.sink
    speed = sum(float(source.get("inputRowsPerSecond") or 0) for source in sources)
    return {
        "query": name,
        "updated": time_name(now_ms),
        "state": STARTING if document["batchId"] < 0 else RUNNING,
        "batch": document["batchId"],
        "batch_ms": document.get("batchDuration", 0),
        "rows_per_second": round(speed, 1) if math.isfinite(speed) else 0.0,
        "watermark": None if at is None else time_name(at),
        "watermark_delay_seconds": None if at is None else (now_ms - at) / 1000,
        "lag": found.lag,
        "dropped_by_watermark": sums.dropped,
        "restarts": 0,
        "trouble": None,
        "rows_written": None if sink is None else sink.rows,
        "transaction_ms": None if sink is None else round(sink.transaction_ms, 1),
        "attempts_failed": sums.attempts_failed,
        "batches_repeated": sums.batches_repeated,
    }


def unheard(name: str) -> Progress:
    """Of a query that has had no batch yet."""
    return progress(name, {"batchId": -1}, NOTHING, Sums(), time.time_ns() // 1_000_000)
