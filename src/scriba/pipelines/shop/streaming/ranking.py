"""The most viewed products, exactly: a small table of views by minute and product.

Spark counts views by minute and product and tells each change with the new count, so that putting a
count in again changes nothing. The ranking adds the minutes up, by the hour and for the last sixty
minutes, and forgets what can no longer change. After a restart it is filled from product_views,
where the same counts were written.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Final

from scriba.pipelines.shop.events.rules import HOUR_MS, MINUTE_MS, TOP, minute_name
from scriba.pipelines.shop.topics import LATEST, TopProducts

KEEP_MS: Final = 3 * HOUR_MS
"""More than an hour and the watermark: a minute that is older changes no more."""


class Ranking:
    def __init__(self) -> None:
        self._minutes: dict[int, dict[str, int]] = {}
        self._hours: set[int] = set()
        """Hours that changed and were not told yet."""

    def put(self, minute_ms: int, product: str, views: int) -> None:
        self._minutes.setdefault(minute_ms, {})[product] = views
        self._hours.add(minute_ms - minute_ms % HOUR_MS)

    def restored(self) -> None:
        """What was put in so far has been told before."""
        self._hours.clear()

    def changed(self) -> Iterator[tuple[str, TopProducts]]:
        """Keys and values for top_viewed_products, of all that changed since the last time."""
        if not self._hours:
            return
        newest = max(self._minutes)
        for hour in sorted(self._hours):
            yield minute_name(hour), self._top(hour)
        self._hours.clear()
        yield LATEST, self._top(newest + MINUTE_MS - HOUR_MS)
        oldest = newest - newest % HOUR_MS - KEEP_MS
        self._minutes = {at: of for at, of in self._minutes.items() if at >= oldest}

    def _top(self, start: int) -> TopProducts:
        sums: Counter[str] = Counter()
        for minute in range(start, start + HOUR_MS, MINUTE_MS):
            sums.update(self._minutes.get(minute, {}))
        first = heapq.nsmallest(TOP, sums.items(), key=lambda found: (-found[1], found[0]))
        return {
            "window_start": minute_name(start),
            "window_end": minute_name(start + HOUR_MS),
            "products": [{"product_id": product, "views": views} for product, views in first],
        }
