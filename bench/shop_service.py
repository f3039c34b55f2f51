"""`shop run` as a service: minutes of events, one blow after the other, every figure against the
truth.

    python -m bench.shop_service [--minutes 6] [--rate 12] [--blows 3]

All four queries run while the generator writes, and the page is open. At even distances the
pipeline is killed with everything it started, is asked to end, or the broker is killed; each time
it is started again. When the generator has ended and nothing is left to read, each key of each
figure is compared, each late event, and each minute on the page, whose one stream must have lived
through all of it. A session or a purchase without a view is told when nothing can change it any
more, so those that are still open may be missing; what is told must be true.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.shop_parts import Part, broker_on, ends_with_its_parts, quick_java
from scriba.client import (
    OffsetAndTimestamp,
    OffsetSpec,
    SyncAdmin,
    SyncConsumer,
)
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import (
    LOOKED_BEFORE,
    MINUTE_MS,
    SESSION_GAP,
    WATERMARK,
    milliseconds,
    minute_name,
    time_ms,
)

OPEN = {
    topics.USER_SESSIONS: ("ended", WATERMARK + SESSION_GAP),
    topics.JOINED_PURCHASES: ("purchased", WATERMARK + LOOKED_BEFORE),
}
"""Rows that may be missing while they are younger than this."""
MARGIN = timedelta(minutes=2)
QUIET_SECONDS = 25.0
AWAY_SECONDS = 5.0
"""How long a broker stays dead."""
GROUPS = tuple(f"shop-{name}" for name in (*topics.QUERIES, "joined-purchases"))
BLOWS = ("kill -9 of the pipeline", "SIGTERM to the pipeline", "kill -9 of the broker")


class Service:
    """The parts, and what befalls them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broker = broker_on(folder)
        self.bootstrap = self._broker.found
        place = ("-b", self.bootstrap, "--checkpoints", str(folder / "checkpoints"))
        self._run = ("shop", "run", *place, *quick_java())
        self._pipeline = Part(*self._run, shown=True)
        reach = ("-b", self.bootstrap, "--port", "0")
        self._dashboard = Part("shop", "dashboard", *reach, ready=r"on (http\S+)")
        self.page = Page(self._dashboard.found)

    def befalls(self, blow: str) -> None:
        print(f"  {blow} at load {os.getloadavg()[0]:.0f}", flush=True)
        if blow == "kill -9 of the broker":
            self._broker.kill()
            time.sleep(AWAY_SECONDS)
            self._broker = broker_on(self._folder, urlsplit(f"//{self.bootstrap}").port or 0)
            return
        if blow == "SIGTERM to the pipeline":
            print(f"    exit code {self._pipeline.stop()}", flush=True)
        self._pipeline.kill()
        self._pipeline = Part(*self._run, shown=True)

    def end(self) -> None:
        for part in (self._pipeline, self._dashboard, self._broker):
            part.kill()


class Page:
    """A browser that stays."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pictures = 0
        self.unreachable = 0
        """Pictures that said that no broker answers."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with urllib.request.urlopen(f"{self.address}/events", timeout=60) as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    self.pictures += 1
                    self.unreachable += not json.loads(line[5:])["reading"]["connected"]

    def compare(self, sales: dict[str, Any]) -> bool:
        """Whether the orders of each minute on the page are the truth."""
        before = self.pictures
        with urllib.request.urlopen(f"{self.address}/picture", timeout=60) as answer:
            told = json.load(answer)
        first = told["first"] * 1000
        wrong = [
            name
            for n, orders in enumerate(told["minutes"]["orders"])
            if (name := minute_name(first + n * MINUTE_MS)) in sales
            and orders != sales[name]["orders"]
        ]
        time.sleep(3.0)
        alive = self.pictures > before
        seen = f"{self.pictures} pictures, {self.unreachable} of them without a broker"
        print(f"  the page: {seen}, {len(wrong)} minutes wrong, {'alive' if alive else 'dead'}")
        return alive and not wrong


def table(bootstrap: str, topic: str) -> dict[str, dict[str, Any]]:
    with SyncConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        places = consumer.partitions(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found = {}
        while any(consumer.position(place) < ends[place] for place in places):
            for record in consumer.poll(100):
                assert record.key is not None
                assert record.value is not None
                found[record.key.decode()] = json.loads(record.value)
    return found


def compare(bootstrap: str, truth: dict[str, Any]) -> bool:
    """Prints a line for each table; whether all are right."""
    newest = max(map(time_ms, (row["window_end"] for row in truth[topics.FUNNEL].values())))
    right = True
    for topic, wanted in truth.items():
        told = table(bootstrap, topic)
        for row in told.values():
            row.pop("query", None)
        wrong = [key for key, row in told.items() if wanted.get(key) != row]
        missing = wanted.keys() - told.keys()
        may = 0
        if topic in OPEN:
            field, age = OPEN[topic]
            limit = newest - milliseconds(age + MARGIN)
            still_open = {key for key in missing if time_ms(wanted[key][field]) >= limit}
            may, missing = len(still_open), missing - still_open
        right = right and not wrong and not missing
        waits = f", {may} still open" if may else ""
        print(
            f"  {topic:<20} {len(told):6} rows, {len(wrong)} wrong, {len(missing)} missing{waits}"
        )
        for key in sorted(wrong)[:2]:
            print(f"    {key}: {told[key]} instead of {wanted.get(key)}")
    return right


def compare_late(bootstrap: str, wanted: list[str]) -> bool:
    told = [row["event"]["event_id"] for row in table(bootstrap, topics.LATE_EVENTS).values()]
    right = sorted(set(told)) == sorted(set(wanted))
    print(f"  {topics.LATE_EVENTS:<20} {len(told):6} rows, {'as' if right else 'not as'} they were")
    return right


def settled(bootstrap: str) -> dict[str, dict[str, Any]]:
    """Waits until every query has read everything, by its group's offsets, and then some; says how
    each did."""
    since = time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        with SyncAdmin(bootstrap_servers=bootstrap) as admin:
            read = {group: admin.list_group_offsets(group) for group in GROUPS}
            places = {place for offsets in read.values() for place in offsets}
            ends = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
        behind = [
            group
            for group, offsets in read.items()
            if not offsets or any(_end(ends[p]) > at.offset for p, at in offsets.items())
        ]
        if behind:
            since = time.monotonic()
        time.sleep(1.0)
    return table(bootstrap, topics.PROGRESS)


def _end(found: OffsetAndTimestamp | None) -> int:
    assert found is not None
    return found.offset


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--minutes", type=float, default=6.0)
    words.add_argument("--rate", type=float, default=12.0)
    words.add_argument("--blows", type=int, default=3)
    options = words.parse_args()
    ends_with_its_parts()
    seconds = round(options.minutes * 60)
    with tempfile.TemporaryDirectory(prefix="scriba-shop-") as name:
        truth = Path(name) / "truth.json"
        service = Service(Path(name))
        reach = ("-b", service.bootstrap, "--rate", str(options.rate), "-q")
        past = ("--backfill", "70m", "--duration", f"{seconds}s", "--truth", str(truth))
        generator = Part("shop", "generate", *reach, *past)
        try:
            for blow in itertools.islice(itertools.cycle(BLOWS), options.blows):
                time.sleep(seconds / (options.blows + 1))
                service.befalls(blow)
            code = generator.wait()
            print(f"  {generator.lines[-1]}", flush=True)
            told = settled(service.bootstrap)
            for query, row in told.items():
                seen = {key: row[key] for key in ("batch", "batch_ms", "dropped_by_watermark")}
                print(f"  {query}: {seen}")
            known = json.loads(truth.read_text())
            right = [
                code == 0,
                compare(service.bootstrap, known["tables"]),
                compare_late(service.bootstrap, known["summary"]["late_ids"]),
                service.page.compare(known["tables"][topics.SALES_PER_MINUTE]),
            ]
        finally:
            generator.kill()
            service.end()
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
