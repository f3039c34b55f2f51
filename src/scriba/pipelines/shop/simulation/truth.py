"""What the figures must be: worked out from what was delivered, in plain Python, without Spark.

`tables()` gives, by topic, what a reader of the pipeline's topics must hold at the end, key by key.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import (
    ALLOWED_LATENESS,
    HOUR_MS,
    LOOKED_BEFORE,
    MINUTE_MS,
    SESSION_GAP,
    SLIDING,
    TOP,
    milliseconds,
    minute_name,
    time_name,
)
from scriba.pipelines.shop.simulation.generator import Delivery, Event

Table = dict[str, dict[str, Any]]

STEPS = {
    topics.PRODUCT_VIEWED: "views",
    topics.ADD_TO_CART: "carts",
    topics.PURCHASE_COMPLETED: "purchases",
}


class Truth:
    """Is told every delivery, and holds all events that count: a few hundred bytes for each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.late: list[Event] = []
        self.duplicates = 0
        self.dead_letters: Counter[str] = Counter()
        self._health: dict[int, Counter[str]] = defaultdict(Counter)

    def add(self, delivery: Delivery) -> None:
        event = delivery.event
        counts = self._health[_minute(delivery.arrival_ms)]
        counts["events"] += 1
        if delivery.broken:
            counts["dead_letters"] += 1
            self.dead_letters[delivery.broken] += 1
        elif event.bot:
            counts["bots"] += 1
        elif delivery.arrival_ms - event.time_ms > milliseconds(ALLOWED_LATENESS):
            counts["late"] += 1
            if not delivery.copy:
                self.late.append(event)
        else:
            counts["accepted"] += 1
            self.duplicates += delivery.copy
            if not delivery.copy:
                self.events.append(event)

    def tables(self) -> dict[str, Table]:
        return {
            topics.SALES_PER_MINUTE: self._sales(MINUTE_MS),
            topics.SALES_SLIDING: self._sales(milliseconds(SLIDING)),
            topics.FUNNEL: self._funnel(),
            topics.ACTIVE_SESSIONS: self._active(),
            topics.PRODUCT_VIEWS: self._views(),
            topics.TOP_VIEWED_PRODUCTS: self._top(),
            topics.USER_SESSIONS: dict(sessions(self.events)),
            topics.JOINED_PURCHASES: dict(joined(self.events)),
            topics.HEALTH: self._health_table(),
        }

    def summary(self) -> dict[str, Any]:
        """Small enough to look at."""
        return {
            "counted": len(self.events),
            "late": len(self.late),
            "duplicates": self.duplicates,
            "bots": sum(counts["bots"] for counts in self._health.values()),
            "dead_letters": dict(sorted(self.dead_letters.items())),
            "revenue_cents": sum(event.cents for event in self._of(topics.PURCHASE_COMPLETED)),
            "late_ids": sorted(event.id for event in self.late),
        }

    def _of(self, topic: str) -> Iterable[Event]:
        return (event for event in self.events if event.topic == topic)

    def _sales(self, length: int) -> Table:
        sums: dict[int, Counter[str]] = defaultdict(Counter)
        for event in self._of(topics.PURCHASE_COMPLETED):
            last = _minute(event.time_ms)
            for start in range(last - length + MINUTE_MS, last + 1, MINUTE_MS):
                sums[start] += Counter(orders=1, units=event.units, revenue_cents=event.cents)
        return {minute_name(at): {**_window(at, length), **sums[at]} for at in sorted(sums)}

    def _funnel(self) -> Table:
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        for event in self.events:
            counts[_minute(event.time_ms)][STEPS[event.topic]] += 1
        return {
            minute_name(at): {
                **_window(at),
                **{step: counts[at][step] for step in STEPS.values()},
            }
            for at in sorted(counts)
        }

    def _active(self) -> Table:
        seen: dict[int, set[str]] = defaultdict(set)
        for event in self.events:
            seen[_minute(event.time_ms)].add(event.session)
        return {minute_name(at): {**_window(at), "sessions": len(seen[at])} for at in sorted(seen)}

    def _minute_views(self) -> Mapping[tuple[int, str], int]:
        return Counter(
            (_minute(event.time_ms), event.items[0][0]) for event in self._of(topics.PRODUCT_VIEWED)
        )

    def _views(self) -> Table:
        return {
            f"{minute_name(at)}/{product}": {**_window(at), "product_id": product, "views": views}
            for (at, product), views in self._minute_views().items()
        }

    def _top(self) -> Table:
        minutes = self._minute_views()
        newest = max((at for at, _ in minutes), default=0)
        starts = {minute_name(at): at for at in {at - at % HOUR_MS for at, _ in minutes}}
        if minutes:
            starts[topics.LATEST] = newest + MINUTE_MS - HOUR_MS
        table: Table = {}
        for key, start in starts.items():
            sums: Counter[str] = Counter()
            for (at, product), views in minutes.items():
                if start <= at < start + HOUR_MS:
                    sums[product] += views
            first = sorted(sums.items(), key=lambda found: (-found[1], found[0]))[:TOP]
            products = [{"product_id": product, "views": views} for product, views in first]
            table[key] = {**_window(start, HOUR_MS), "products": products}
        return table

    def _health_table(self) -> Table:
        fields = ("events", "accepted", "bots", "late", "dead_letters")
        return {
            minute_name(at): {
                "minute": minute_name(at),
                **{field: counts[field] for field in fields},
            }
            for at, counts in sorted(self._health.items())
        }


def sessions(events: Iterable[Event]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Events of a user belong together until there is a gap."""
    by_user: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_user[event.user].append(event)
    for user, own in by_user.items():
        own.sort(key=lambda event: event.time_ms)
        first = 0
        for index in range(1, len(own) + 1):
            at_end = index == len(own)
            if at_end or own[index].time_ms - own[index - 1].time_ms > milliseconds(SESSION_GAP):
                yield _session(user, own[first:index])
                first = index


def _session(user: str, events: list[Event]) -> tuple[str, dict[str, Any]]:
    started = time_name(events[0].time_ms)
    steps = Counter(STEPS[event.topic] for event in events)
    bought = [event for event in events if event.topic == topics.PURCHASE_COMPLETED]
    return f"{user}/{started}", {
        "user_id": user,
        "started": started,
        "ended": time_name(events[-1].time_ms),
        **{step: steps[step] for step in STEPS.values()},
        "revenue_cents": sum(event.cents for event in bought),
    }


def joined(events: list[Event]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Every bought product with every view of it by the buyer in the hour before."""
    views: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.topic == topics.PRODUCT_VIEWED:
            views[event.user, event.items[0][0]].append(event)
    for event in events:
        if event.topic != topics.PURCHASE_COMPLETED:
            continue
        for product, quantity, price in event.items:
            bought = {
                "order_id": event.order,
                "user_id": event.user,
                "product_id": product,
                "purchased": time_name(event.time_ms),
                "quantity": quantity,
                "price_cents": price,
            }
            before = milliseconds(LOOKED_BEFORE)
            led = [
                view
                for view in views[event.user, product]
                if 0 <= event.time_ms - view.time_ms <= before
            ]
            for view in led:
                seconds = (event.time_ms - view.time_ms) / 1000
                yield (
                    f"{event.order}/{product}/{view.id}",
                    bought
                    | {"view_id": view.id, "viewed": time_name(view.time_ms), "seconds": seconds},
                )
            if not led:
                nothing = {"view_id": None, "viewed": None, "seconds": None}
                yield f"{event.order}/{product}/-", bought | nothing


def _minute(time_ms: int) -> int:
    return time_ms - time_ms % MINUTE_MS


def _window(start: int, length: int = MINUTE_MS) -> dict[str, str]:
    return {"window_start": minute_name(start), "window_end": minute_name(start + length)}
