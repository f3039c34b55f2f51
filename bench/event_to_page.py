"""`make page`: how long it takes from an event until the page's stream shows it.

    python -m bench.event_to_page [--probes 60] [--rate 50] [--warm 60] [--only figures]

Broker, pipeline with a trigger of one second and page run as for everyone else. This process is the
clients and a browser: it writes views at a steady rate and, now and then, one purchase, and listens
to the page's stream. Nobody else buys, so the n-th purchase has arrived with the first picture that
knows of n orders. What is measured begins before the purchase is handed to the producer and ends
when the picture was read.

It begins when every query has had a batch, and counts after `--warm` seconds, as Java compiles what
runs often. A figure's record says when it was written, which cuts the way in two: until then it is
the pipeline's, the trigger's wait included, and from there the broker's and the page's.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.shop_parts import Part, ends_with_its_parts, quick_java, shop_broker
from scriba.client import SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import time_name

PRODUCTS, USERS = 200, 500
PATIENCE = 600.0
"""Seconds for a start of Spark on a machine with much else to do; then it ends, and says so."""


class Clients:
    """Views in the background, and purchases when asked."""

    def __init__(self, bootstrap: str, rate: float) -> None:
        self._producer = SyncProducer(bootstrap_servers=bootstrap)
        self._random = random.Random(1)
        self._rate = rate
        self._number = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._views, daemon=True)
        self._thread.start()

    def _event(self) -> dict[str, Any]:
        with self._lock:
            self._number += 1
        user = self._random.randrange(USERS)
        return {
            "event_id": f"{self._number:016x}",
            "event_time": time_name(time.time_ns() // 1_000_000),
            "user_id": f"u{user}",
            "session_id": f"s{user}",
            "user_agent": "Firefox",
        }

    def _views(self) -> None:
        while not self._end.wait(1 / self._rate):
            product = f"p{self._random.randrange(PRODUCTS)}"
            self._send(topics.PRODUCT_VIEWED, {**self._event(), "product_id": product})

    def buy(self) -> None:
        item = {"product_id": "p1", "quantity": 1, "price_cents": 100}
        event = self._event()
        order = {"order_id": event["event_id"], "items": [item], "total_cents": 100}
        self._send(topics.PURCHASE_COMPLETED, {**event, **order})

    def _send(self, topic: str, event: dict[str, Any]) -> None:
        self._producer.send_nowait(topic, json.dumps(event).encode(), event["user_id"].encode())

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._producer.close()


@dataclass
class Seen:
    """What a picture says."""

    at: float
    """When it was read, by the clock."""
    orders: int
    written: float
    """When the newest figure was."""
    batches: dict[str, tuple[int, int]]
    """The last batch of each query that had one: its number, and the ms it took."""


def pictures(page: str) -> Iterator[Seen]:
    with urllib.request.urlopen(f"{page}/events", timeout=PATIENCE) as stream:
        for line in stream:
            if line.startswith(b"data:"):
                told = json.loads(line[5:])
                had = {q["query"]: (q["batch"], q["batch_ms"]) for q in told["queries"]}
                batches = {name: batch for name, batch in had.items() if batch[0] >= 0}
                written = (told["figures_at"] or 0) / 1000
                yield Seen(time.time(), told["hour"]["orders"], written, batches)


class Watch:
    """The page's stream, with an end to patience; remembers how long batches took."""

    def __init__(self, page: str, pipeline: Part) -> None:
        self._pictures = pictures(page)
        self._pipeline = pipeline
        self.batches: dict[str, dict[int, int]] = defaultdict(dict)
        self._before: dict[str, int] = {}

    def forget(self) -> None:
        """Batches so far do not count."""
        self._before = {name: max(found) for name, found in self.batches.items()}
        self.batches.clear()

    def until(self, what: str, found: Callable[[Seen], bool]) -> Seen:
        deadline = time.monotonic() + PATIENCE
        for seen in self._pictures:
            for name, (number, took) in seen.batches.items():
                if number > self._before.get(name, -1):
                    self.batches[name][number] = took
            if found(seen):
                return seen
            if time.monotonic() > deadline or self._pipeline.process.poll() is not None:
                break
        last = "\n".join(f"    {line}" for line in self._pipeline.lines[-8:])
        raise SystemExit(f"  {what} did not come; the pipeline said last:\n{last}")


def measure(clients: Clients, watch: Watch, warm: float, probes: int) -> list[tuple[float, float]]:
    """Seconds from each purchase until its figure was written, and from there to the page."""
    pause = random.Random(2)
    took: list[tuple[float, float]] = []
    counts_from = time.monotonic() + warm
    for number in itertools.count(2):
        time.sleep(pause.uniform(0.0, 1.5))  # at any moment between two triggers
        counts = time.monotonic() >= counts_from
        if counts and not took:
            watch.forget()
        began = time.time()
        clients.buy()
        seen = watch.until(f"purchase {number}", partial(_knows, number))
        if counts:
            took.append((seen.written - began, seen.at - seen.written))
        if len(took) == probes:
            break
    return took


def _knows(orders: int, seen: Seen) -> bool:
    return seen.orders >= orders


def spread(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.95)]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--probes", type=int, default=60)
    words.add_argument("--rate", type=float, default=50.0, help="views a second beside them")
    words.add_argument("--warm", type=float, default=60.0, help="seconds before it counts")
    words.add_argument("--only", action="append", default=[], help="run only this query")
    options = words.parse_args()
    ends_with_its_parts()
    only = [word for name in options.only for word in ("--only", name)]
    queries = set(options.only) or set(topics.QUERIES)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bootstrap, folder = stack.enter_context(shop_broker())
        place = ("-b", bootstrap, "--checkpoints", str(folder / "checkpoints"), "--trigger", "1")
        pipeline = Part("shop", "run", *place, *only, *quick_java())
        stack.callback(pipeline.kill)
        page = Part("shop", "dashboard", "-b", bootstrap, "--port", "0", ready=r"on (http\S+)")
        stack.callback(page.kill)
        clients = Clients(bootstrap, options.rate)
        stack.callback(clients.close)
        clients.buy()
        watch = Watch(page.found, pipeline)
        watch.until("the first figure", lambda seen: seen.orders >= 1)
        print(f"  first figure on the page after {time.monotonic() - began:.0f} s", flush=True)
        watch.until("a batch of each query", lambda seen: seen.batches.keys() >= queries)
        print(f"  all queries run after {time.monotonic() - began:.0f} s", flush=True)
        took = measure(clients, watch, options.warm, options.probes)
    report(took, watch.batches)


def report(took: list[tuple[float, float]], batches: dict[str, dict[int, int]]) -> None:
    parts = (
        ("event to page", [sum(each) for each in took]),
        ("  until written", [each[0] for each in took]),
        ("  from there", [each[1] for each in took]),
    )
    for name, values in parts:
        middle, late = spread(values)
        print(f"  {name:<16} p50 {middle:.2f} s, p95 {late:.2f} s, most {max(values):.2f} s")
    for name, found in sorted(batches.items()):
        middle, late = spread(found.values())
        print(f"  a batch of {name:<10} p50 {middle:.0f} ms, p95 {late:.0f} ms")
    print(f"  {len(took)} purchases; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
