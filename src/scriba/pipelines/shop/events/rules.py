"""What counts in the shop, decided by an event alone: numbers that all its parts share.

Whether an event is late is a matter of the event, not of the micro-batch that happens to carry it:
it is late when it arrived (the timestamp of its record) more than ALLOWED_LATENESS after it
happened. So the same topics give the same figures however they are cut into batches, live, after a
restart or when everything is computed anew. Spark's watermark only bounds the state. It lies so far
behind that it leaves out nothing that counts as long as partitions are read within SLACK of
each other; should it ever do, the number of rows is published.

Events are judged in this order: dead letter, bot, late, accepted.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

ALLOWED_LATENESS: Final = timedelta(minutes=10)
FROM_THE_FUTURE: Final = timedelta(minutes=1)
"""A clock that is further ahead is wrong, and must not pull the watermark along."""
SLACK: Final = timedelta(minutes=9)
WATERMARK: Final = ALLOWED_LATENESS + FROM_THE_FUTURE + SLACK

SLIDING: Final = timedelta(minutes=5)
SLIDE: Final = timedelta(minutes=1)
SESSION_GAP: Final = timedelta(minutes=30)
LOOKED_BEFORE: Final = timedelta(hours=1)
"""How long before a purchase a view may have led to it."""
TOP: Final = 10

BOTS: Final = "(?i)bot|crawl|spider|headless|scrapy|curl/|wget/|python-requests"
"""User agents of machines. A client that sends none is an app, and counts."""


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def interval(span: timedelta) -> str:
    """As Spark reads it."""
    return f"{int(span.total_seconds())} seconds"


def minute_name(ms: int) -> str:
    """How a window that starts then is named."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=1000)
def _minute(number: int) -> str:
    return minute_name(number * MINUTE_MS)[:17]


def time_name(ms: int) -> str:
    """How an event's time is written."""
    minute, rest = divmod(ms, MINUTE_MS)
    return f"{_minute(minute)}{rest // 1000:02}.{rest % 1000:03}Z"


def time_ms(name: str) -> int:
    """The other way round; ValueError for what is no time with a zone."""
    moment = datetime.fromisoformat(name)
    if moment.tzinfo is None:
        raise ValueError(f"{name!r} has no time zone")
    return round(moment.timestamp() * 1000)
