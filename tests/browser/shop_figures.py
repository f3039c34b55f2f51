"""Figures of a shop as its pipeline would write them, for a page to show."""

import json
import math
import time
from datetime import UTC, datetime
from typing import Any

from scriba.client import SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.simulation.catalogue import name_of, product_id
from scriba.pipelines.shop.topics import Names

MINUTE = 60


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19] + "Z"


def this_minute() -> int:
    return int(time.time()) // MINUTE * MINUTE


def early_minute(left: int) -> int:
    """This minute, or the next where less is left of it: a page has one bar for each up to now."""
    rest = MINUTE - time.time() % MINUTE
    if rest < left:
        time.sleep(rest)
    return this_minute()


class Figures:
    """Writes to the aggregate topics of one shop; call `close` at the end."""

    def __init__(self, bootstrap: str, prefix: str = "", **settings: Any) -> None:
        self.names = Names(prefix)
        topics.create(bootstrap, self.names)
        self.producer = SyncProducer(bootstrap_servers=bootstrap, **settings)

    def close(self) -> None:
        self.producer.close()

    def say(self, topic: str, key: str, value: dict[str, Any], at_ms: int | None = None) -> None:
        body = json.dumps(value).encode()
        self.producer.send_nowait(self.names(topic), body, key=key.encode(), timestamp=at_ms)

    def window(self, start: int, minutes: int = 1) -> dict[str, str]:
        return {"window_start": iso(start), "window_end": iso(start + minutes * MINUTE)}

    def sales(self, start: int, orders: int, cents: int, at_ms: int | None = None) -> None:
        sold = {"orders": orders, "units": orders * 2, "revenue_cents": cents}
        value = {**self.window(start), **sold}
        self.say(topics.SALES_PER_MINUTE, iso(start), value, at_ms)

    def sliding(self, start: int, cents: int) -> None:
        sold = {"orders": 1, "units": 1, "revenue_cents": cents}
        self.say(topics.SALES_SLIDING, iso(start), {**self.window(start, 5), **sold})

    def funnel(self, start: int, views: int, carts: int, purchases: int) -> None:
        value = {**self.window(start), "views": views, "carts": carts, "purchases": purchases}
        self.say(topics.FUNNEL, iso(start), value)

    def sessions(self, start: int, sessions: int) -> None:
        self.say(topics.ACTIVE_SESSIONS, iso(start), {**self.window(start), "sessions": sessions})

    def top(self, views: dict[str, int]) -> None:
        products = [{"product_id": name, "views": count} for name, count in views.items()]
        start = this_minute() - 59 * MINUTE
        self.say(
            topics.TOP_VIEWED_PRODUCTS,
            topics.LATEST,
            {**self.window(start, 60), "products": products},
        )

    def product(self, product: str, name: str) -> None:
        self.say(topics.PRODUCTS, product, {"product_id": product, "name": name})

    def health(self, start: int, accepted: int, bots: int, late: int, dead: int) -> None:
        value = {
            "minute": iso(start),
            "events": accepted + bots + late + dead,
            "accepted": accepted,
            "bots": bots,
            "late": late,
            "dead_letters": dead,
            "query": "6b1b4b7c",
        }
        self.say(topics.HEALTH, iso(start), value)

    def progress(
        self, query: str, lag: int, delay: float, at_ms: int | None = None, **more: Any
    ) -> None:
        value = {
            "query": query,
            "state": "running",
            "updated": iso(time.time()),
            "batch": 17,
            "batch_ms": 640,
            "rows_per_second": 203.5,
            "watermark": iso(time.time() - delay),
            "watermark_delay_seconds": delay,
            "lag": lag,
            "dropped_by_watermark": 0,
            "restarts": 0,
            "trouble": None,
            "rows_written": 214,
            "transaction_ms": 12.5,
            "attempts_failed": 0,
            "batches_repeated": 0,
        }
        self.say(topics.PROGRESS, query, {**value, **more}, at_ms)

    def dead_letter(self, offset: int, reason: str, at: float | None = None) -> None:
        value = {
            "topic": topics.PRODUCT_VIEWED,
            "partition": 1,
            "offset": offset,
            "arrived": iso(time.time() if at is None else at),
            "reason": reason,
            "value": "{",
        }
        self.say(topics.DEAD_LETTERS, f"product_viewed-1-{offset}", value)

    # -- a whole hour ------------------------------------------------------------------------------

    def hour(self, minutes: int = 60) -> None:
        """A believable hour that ends with the running minute."""
        now = this_minute()
        for back in range(minutes):
            start = now - back * MINUTE
            part = (time.time() - now) / MINUTE if back == 0 else 1.0
            self.minute(start, part)
            day = 1 + 0.35 * math.sin((start // MINUTE) / 9)
            self.sliding(start - 4 * MINUTE, round(5 * 61_000 * day))
        places = [n * n % 97 for n in range(1, 11)]
        self.top({product_id(p): round(2400 / n**0.8) for n, p in enumerate(places, 1)})
        for number in places:
            self.product(product_id(number), name_of(number))
        self.news()
        reasons = ("not JSON", "user_id is missing", "not UTF-8", "event_time lies in the future")
        for n, reason in enumerate(reasons):
            self.dead_letter(800 + n, reason, time.time() - 40 - n * 171)
        self.producer.flush()

    def minute(self, start: int, part: float = 1.0) -> None:
        wave = 1 + 0.35 * math.sin((start // MINUTE) / 9) + 0.22 * math.sin(start // MINUTE * 2.4)
        size = wave * part
        orders = round(14 * size)
        self.sales(start, orders, round(orders * 4_350 * (1 + 0.2 * math.cos(start))))
        self.funnel(start, round(620 * size), round(118 * size), orders)
        self.sessions(start, round(170 * wave * (0.4 + 0.6 * part)))
        events = round(750 * size)
        self.health(start, events, round(events * 0.24), round(events * 0.002), round(part))

    def news(self) -> None:
        nothing = {"watermark": None, "watermark_delay_seconds": None}
        self.progress("intake", 96, 0.0, rows_per_second=204.0, batch_ms=310, **nothing)
        self.progress("figures", 118, 1203.0, rows_per_second=201.0, batch_ms=720)
        self.progress("sessions", 1480, 1207.0, rows_per_second=199.0, batch_ms=1410)
        self.progress("joined", 1391, 1209.0, rows_per_second=198.0, batch_ms=1650)
