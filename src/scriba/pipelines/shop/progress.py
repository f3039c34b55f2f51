"""How the queries do, told to whoever reads shop_progress: watermark, lag, speed, rows left out."""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from scriba.pipelines.shop.rules import time_ms, time_name
from scriba.pipelines.shop.topics import RUNNING, STARTING, Progress

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
        self._dropped: Counter[str] = Counter()
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
            operators = document.get("stateOperators", [])
            self._dropped[name] += sum(o.get("numRowsDroppedByWatermark", 0) for o in operators)
            self._publish(
                progress(name, document, self._dropped[name], time.time_ns() // 1_000_000)
            )
        except Exception:
            log.exception("the progress of %s was not published", name)


def progress(name: str, document: dict[str, Any], dropped: int, now_ms: int) -> Progress:
    """What Spark says of a batch, in the words of the topic."""
    watermark = document.get("eventTime", {}).get("watermark")
    at = None if watermark is None else time_ms(watermark)
    if at == 0:  # nothing was seen yet
        at = None
    sources = document.get("sources", [])
    speed = sum(float(source.get("inputRowsPerSecond") or 0) for source in sources)
    lags = [lag(source.get("endOffset"), source.get("latestOffset")) for source in sources]
    known = [found for found in lags if found is not None]
    return {
        "query": name,
        "updated": time_name(now_ms),
        "state": STARTING if document["batchId"] < 0 else RUNNING,
        "batch": document["batchId"],
        "batch_ms": document.get("batchDuration", 0),
        "rows_per_second": round(speed, 1) if math.isfinite(speed) else 0.0,
        "watermark": None if at is None else time_name(at),
        "watermark_delay_seconds": None if at is None else (now_ms - at) / 1000,
        "lag": sum(known) if known else None,
        "dropped_by_watermark": dropped,
        "restarts": 0,
        "trouble": None,
        "rows_written": None,
        "transaction_ms": None,
        "attempts_failed": 0,
        "batches_repeated": 0,
    }


def unheard(name: str) -> Progress:
    """Of a query that has had no batch yet."""
    return progress(name, {"batchId": -1}, 0, time.time_ns() // 1_000_000)


def lag(end: Any, latest: Any) -> int | None:
    """Records between two places as either connector writes them."""
    here, there = offsets(end), offsets(latest)
    if here is None or there is None:
        return None
    return sum(max(0, offset - here.get(place, 0)) for place, offset in there.items())


def offsets(places: Any) -> dict[tuple[str, str], int] | None:
    if isinstance(places, str):
        places = json.loads(places)
    if not isinstance(places, dict):
        return None
    topics = places.get("topics", places)
    found = {}
    for topic, spot in topics.items():
        for partition, offset in spot.get("offsets", spot).items():
            found[topic, partition] = int(offset)
    return found
