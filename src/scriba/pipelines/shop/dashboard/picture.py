"""What the page shows, kept from the records of the shop's topics.

    records of compacted topics ──take──▶ tables by key ──draw(now)──▶ one document for the page

A later record replaces an earlier one with its key, so the tables are right whatever part of the
topics was read, and however often. The document is the whole picture: a page that joins late, or
comes back, needs nothing else. Minutes are numbered since the epoch. Between the first and the last
known minute nothing said means nothing happened (0); outside, nobody knows
(null).
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from scriba.pipelines.shop import topics

MINUTE_MS: Final = 60_000
SHOWN: Final = 60
"""Minutes on the page."""
KEPT: Final = 24 * 60
"""Minutes in the tables; older ones go, as there may be a month of them in the topics."""
SLACK: Final = 60
SLIDING_MINUTES: Final = 5
LETTERS: Final = 5
MOST_NAMES: Final = 100_000
"""Of products; those told first go when there are more."""
HEALTH: Final = ("events", "accepted", "bots", "late", "dead_letters")
FUTURE: Final = 2
"""Minutes by which clocks may differ before an event from the future stops being believed."""

READ: Final = (
    topics.SALES_PER_MINUTE,
    topics.SALES_SLIDING,
    topics.FUNNEL,
    topics.ACTIVE_SESSIONS,
    topics.TOP_VIEWED_PRODUCTS,
    topics.HEALTH,
    topics.PROGRESS,
    topics.DEAD_LETTERS,
    topics.PRODUCTS,
)
"""The topics that a picture is made of."""

BY_EVENT: Final = (topics.SALES_PER_MINUTE, topics.FUNNEL, topics.ACTIVE_SESSIONS)
"""Those by the minute in which something happened, and not in which it was heard of."""

Value = Mapping[str, Any]
Document = dict[str, Any]
Column = list[int | None]


def minute_of(text: str) -> int:
    """The minute of a time such as 2026-11-15T12:34:00Z."""
    return milliseconds(text) // MINUTE_MS


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


class Minutes:
    """One topic's figures by minute."""

    def __init__(self, time: str, *fields: str) -> None:
        self._time = time
        self._fields = fields
        self._rows: dict[int, dict[str, int]] = {}

    def take(self, value: Value) -> None:
        row = {name: int(value[name]) for name in self._fields}
        self._rows[minute_of(value[self._time])] = row
        if len(self._rows) > KEPT + SLACK:
            for old in heapq.nsmallest(len(self._rows) - KEPT, self._rows):
                del self._rows[old]

    def drop(self, key: str) -> None:
        self._rows.pop(minute_of(key), None)

    def column(self, name: str, minutes: range, known: range) -> Column:
        return [
            self._rows.get(minute, {}).get(name, 0) if minute in known else None
            for minute in minutes
        ]

    def sum(self, name: str, minutes: range) -> int:
        return sum(row[name] for minute, row in self._rows.items() if minute in minutes)

    def until(self, limit: int) -> list[int]:
        return [minute for minute in self._rows if minute <= limit]


def span(*tables: Minutes, until: int) -> range:
    """The minutes of which something is known."""
    found = [minute for table in tables for minute in table.until(until)]
    return range(min(found), max(found) + 1) if found else range(0)


@dataclass
class Reading:
    """How the page's own reading goes: what the connection badge tells."""

    connected: bool = False
    trouble: str = ""
    """What kept it from reading last; empty when all is well."""
    missing: tuple[str, ...] = ()
    caught_up: bool = False
    """Whether all that was in the topics when reading began has been read."""
    lags: dict[str, int] = field(default_factory=dict)
    """Records that wait, by query, from the offsets of its group."""


def shown(now: int, known: range) -> range:
    """The hour on the page: the last one, or the last with figures when these are older."""
    last = known[-1] if known and not now - SHOWN < known[-1] <= now else now
    return range(last - SHOWN + 1, last + 1)


class Picture:
    def __init__(self) -> None:
        self.strange = 0
        """Records that could not be understood."""
        self._minutes = {
            topics.SALES_PER_MINUTE: Minutes("window_start", "orders", "units", "revenue_cents"),
            topics.SALES_SLIDING: Minutes("window_start", "revenue_cents"),
            topics.FUNNEL: Minutes("window_start", "views", "carts", "purchases"),
            topics.ACTIVE_SESSIONS: Minutes("window_start", "sessions"),
            topics.HEALTH: Minutes("minute", *HEALTH),
        }
        self._top: Document | None = None
        self._queries: dict[str, Document] = {}
        self._letters: dict[str, Document] = {}
        self._names: dict[str, str] = {}
        self._figures_ms = 0
        self._progress_ms = 0
        self._takers: dict[str, Callable[[str, Value], None]] = {
            topics.TOP_VIEWED_PRODUCTS: self._take_top,
            topics.PROGRESS: self._take_progress,
            topics.DEAD_LETTERS: self._take_letter,
            topics.PRODUCTS: self._take_name,
        }

    # -- in --------------------------------------------------------------------------------------

    def take(self, topic: str, key: str, value: Value, timestamp_ms: int) -> None:
        """One record, by its topic's plain name. ValueError when it is not what the topic holds;
        the picture stays as it was."""
        try:
            if topic in self._minutes:
                self._minutes[topic].take(value)
            else:
                self._takers[topic](key, value)
        except (KeyError, TypeError, ValueError, OverflowError) as wrong:
            self.strange += 1
            raise ValueError(f"{topic}: {wrong!r} in the record {key}") from wrong
        if topic == topics.PROGRESS:
            self._progress_ms = max(self._progress_ms, timestamp_ms)
        elif topic not in (topics.DEAD_LETTERS, topics.PRODUCTS):
            self._figures_ms = max(self._figures_ms, timestamp_ms)

    def drop(self, topic: str, key: str) -> None:
        """A record without a value: what was said under its key holds no more."""
        if topic in self._minutes:
            self._minutes[topic].drop(key)
        elif topic == topics.PROGRESS:
            self._queries.pop(key, None)
        elif topic == topics.DEAD_LETTERS:
            self._letters.pop(key, None)
        elif topic == topics.PRODUCTS:
            self._names.pop(key, None)
        elif key == topics.LATEST:
            self._top = None

    def _take_top(self, key: str, value: Value) -> None:
        if key != topics.LATEST:
            return
        products = [
            {"id": str(product["product_id"]), "views": int(product["views"])}
            for product in value["products"]
        ]
        start, end = milliseconds(value["window_start"]), milliseconds(value["window_end"])
        self._top = {"from": start, "to": end, "products": products[:10]}

    def _take_progress(self, key: str, value: Value) -> None:
        delay = value["watermark_delay_seconds"]
        lag = value["lag"]
        self._queries[key] = {
            "query": str(value["query"]),
            "updated": milliseconds(value["updated"]),
            "state": str(value.get("state", "running")),
            "batch": int(value["batch"]),
            "batch_ms": int(value["batch_ms"]),
            "rows_per_second": float(value["rows_per_second"]),
            "delay": None if delay is None else float(delay),
            "lag": None if lag is None else int(lag),
            "restarts": int(value.get("restarts", 0)),
            "trouble": value.get("trouble"),
            "written": value.get("rows_written"),
            "transaction_ms": value.get("transaction_ms"),
            "attempts_failed": int(value.get("attempts_failed", 0)),
            "batches_repeated": int(value.get("batches_repeated", 0)),
        }

    def _take_name(self, key: str, value: Value) -> None:
        self._names.pop(key, None)
        self._names[key] = str(value["name"])
        while len(self._names) > MOST_NAMES:
            del self._names[next(iter(self._names))]

    def _take_letter(self, key: str, value: Value) -> None:
        self._letters[key] = {
            "key": key,
            "topic": str(value["topic"]),
            "reason": str(value["reason"]),
            "arrived": milliseconds(value["arrived"]),
        }
        while len(self._letters) > LETTERS:
            del self._letters[min(self._letters, key=lambda k: self._letters[k]["arrived"])]

    # -- out -------------------------------------------------------------------------------------

    def draw(self, now_ms: int, reading: Reading) -> Document:
        now = now_ms // MINUTE_MS
        known = span(*(self._minutes[topic] for topic in BY_EVENT), until=now + FUTURE)
        minutes = shown(now, known)
        return {
            "at": now_ms,
            "reading": {
                "connected": reading.connected,
                "trouble": reading.trouble,
                "missing": list(reading.missing),
                "caught_up": reading.caught_up,
                "strange": self.strange,
            },
            "figures_at": self._figures_ms or None,
            "progress_at": self._progress_ms or None,
            "first": minutes.start * 60,
            "minutes": dict(self._columns(minutes, known)),
            "partial": self._partial(now, minutes, known),
            "hour": self._hour(minutes),
            "top": self._named_top(),
            "queries": [self._query(key, reading) for key in sorted(self._queries)],
            "letters": sorted(self._letters.values(), key=lambda each: -int(each["arrived"])),
        }

    def _columns(self, minutes: range, known: range) -> Iterator[tuple[str, Column]]:
        yield (
            "revenue",
            self._minutes[topics.SALES_PER_MINUTE].column("revenue_cents", minutes, known),
        )
        yield "orders", self._minutes[topics.SALES_PER_MINUTE].column("orders", minutes, known)
        yield "sessions", self._minutes[topics.ACTIVE_SESSIONS].column("sessions", minutes, known)
        arrivals = span(self._minutes[topics.HEALTH], until=minutes.stop)
        yield "events", self._minutes[topics.HEALTH].column("events", minutes, arrivals)
        back = SLIDING_MINUTES - 1
        earlier = range(minutes.start - back, minutes.stop - back)
        # The first minute was not whole, so that no window with it is.
        full = range(known.start + 1, known.stop - back)
        sums = self._minutes[topics.SALES_SLIDING].column("revenue_cents", earlier, full)
        # The window that ends with the running minute is not full yet.
        means = [None if cents is None else round(cents / SLIDING_MINUTES) for cents in sums[:-1]]
        yield "average", [*means, None]

    def _partial(self, now: int, minutes: range, known: range) -> dict[str, list[int]]:
        """Minutes by their place that are not whole: the running one, and the very first, before
        the middle of which nothing was known."""
        arrivals = span(self._minutes[topics.HEALTH], until=minutes.stop)
        return {
            kind: sorted(
                minutes.index(minute)
                for minute in {now, *found[:1]}
                if minute in minutes and minute in found
            )
            for kind, found in (("figures", known), ("arrivals", arrivals))
        }

    def _named_top(self) -> Document | None:
        if self._top is None:
            return None
        products = [
            {**product, "name": self._names.get(product["id"], product["id"])}
            for product in self._top["products"]
        ]
        return {**self._top, "products": products}

    def _hour(self, minutes: range) -> dict[str, int]:
        parts = {
            topics.SALES_PER_MINUTE: ("orders", "units", "revenue_cents"),
            topics.FUNNEL: ("views", "carts", "purchases"),
            topics.HEALTH: HEALTH,
        }
        return {
            name: self._minutes[topic].sum(name, minutes)
            for topic, names in parts.items()
            for name in names
        }

    def troubles(self) -> dict[str, str]:
        """Of queries that stand still."""
        found = {name: query["trouble"] for name, query in sorted(self._queries.items())}
        return {name: trouble for name, trouble in found.items() if trouble}

    def queries(self) -> list[str]:
        """Those that have reported."""
        return sorted(self._queries)

    def _query(self, key: str, reading: Reading) -> Document:
        """Lag from the group's offsets is true even while the query stands still."""
        query = self._queries[key]
        lag = reading.lags.get(query["query"])
        return query if lag is None else {**query, "lag": lag}
