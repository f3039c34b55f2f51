"""`make page`: how long it takes from an event until the page's stream shows it.

    python bench/event_to_page.py [--probes 60] [--rate 50] [--only figures]

Broker, pipeline with a trigger of one second and page run as for everyone else. This process is the
clients and a browser: it writes views at a steady rate and, now and then, one purchase, and listens
to the page's stream. Nobody else buys, so the n-th purchase has arrived with the first picture that
knows of n orders. What is measured begins before the purchase is handed to the producer and ends
when the picture was read.
"""

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from shop_parts import Part, quick_java, shop_broker  # noqa: E402

from scriba.client import SyncProducer  # noqa: E402
from scriba.pipelines.shop import topics  # noqa: E402
from scriba.pipelines.shop.rules import time_name  # noqa: E402

PRODUCTS, USERS = 200, 500
WARM = 12
"""Purchases before those that count: the pipeline compiles its code while it runs."""
PATIENCE = 240.0


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


def orders(page: str) -> Iterator[tuple[int, float]]:
    """How many orders each picture of the stream knows, and when it was read."""
    with urllib.request.urlopen(f"{page}/events", timeout=PATIENCE) as stream:
        for line in stream:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])["hour"]["orders"], time.monotonic()


def measure(clients: Clients, page: str, probes: int) -> list[float]:
    """Seconds from each purchase to the page."""
    pictures = orders(page)
    pause = random.Random(2)
    took = []
    for number in range(1, WARM + probes + 1):
        time.sleep(pause.uniform(0.0, 1.5))  # at any moment between two triggers
        began = time.monotonic()
        clients.buy()
        arrived = next(at for known, at in pictures if known >= number)
        took.append(arrived - began)
        if number == 1:
            print(f"  the first after {took[0]:.0f} s", flush=True)
    return took[WARM:]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--probes", type=int, default=60)
    words.add_argument("--rate", type=float, default=50.0, help="views a second beside them")
    words.add_argument("--only", action="append", default=[], help="run only this query")
    options = words.parse_args()
    only = [word for name in options.only for word in ("--only", name)]
    with shop_broker() as (bootstrap, folder):
        place = ("-b", bootstrap, "--checkpoints", str(folder / "checkpoints"), "--trigger", "1")
        pipeline = Part("shop", "run", *place, *only, *quick_java())
        page = Part("shop", "dashboard", "-b", bootstrap, "--port", "0", ready=r"on (http\S+)")
        clients = Clients(bootstrap, options.rate)
        try:
            took = sorted(measure(clients, page.found, options.probes))
        finally:
            clients.close()
            page.kill()
            pipeline.kill()
    late = took[int(len(took) * 0.95)]
    print(
        f"  event to page: p50 {statistics.median(took):.2f} s, p95 {late:.2f} s, "
        f"most {took[-1]:.2f} s of {len(took)}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
