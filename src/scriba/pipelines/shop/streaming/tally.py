"""How many events of each minute were taken, left out or broken: the numbers of shop_health.

A micro-batch adds to the minutes it touches. It is added for good only after its records were
committed, and after a restart the tally is filled from what was committed; so a batch that is
repeated is counted once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from scriba.pipelines.shop.events.rules import HOUR_MS, minute_name, time_ms
from scriba.pipelines.shop.topics import Health

KEEP_MS = 2 * 24 * HOUR_MS
"""Records arrive in their order, so that a minute of two days ago gets no more of them."""

Counts = Mapping[tuple[int, str], int]
"""By minute of arrival, in ms, and outcome."""


class Tally:
    def __init__(self, query: str) -> None:
        self.query = query
        self._minutes: dict[int, Counter[str]] = {}

    def restore(self, rows: Iterable[Health]) -> None:
        """From shop_health; what another query counted, before its checkpoint was lost, is not
        for this one, which counts everything anew."""
        for row in rows:
            if row["query"] == self.query:
                names = ("accepted", "bots", "late", "dead_letters")
                counts = Counter({name: int(row[name]) for name in names})  # type: ignore[literal-required]
                self._minutes[time_ms(row["minute"])] = counts

    def with_batch(self, counts: Counts) -> Iterator[Health]:
        """The rows that a batch changes, as they will be."""
        for minute in sorted({minute for minute, _ in counts}):
            now = self._sum(minute, counts)
            yield {
                "minute": minute_name(minute),
                "events": now.total(),
                "accepted": now["accepted"],
                "bots": now["bots"],
                "late": now["late"],
                "dead_letters": now["dead_letters"],
                "query": self.query,
            }

    def add(self, counts: Counts) -> None:
        """The batch was committed."""
        for minute in {minute for minute, _ in counts}:
            self._minutes[minute] = self._sum(minute, counts)
        if self._minutes:
            oldest = max(self._minutes) - KEEP_MS
            self._minutes = {at: of for at, of in self._minutes.items() if at >= oldest}

    def _sum(self, minute: int, counts: Counts) -> Counter[str]:
        batch = Counter({name: n for (at, name), n in counts.items() if at == minute})
        return self._minutes.get(minute, Counter()) + batch
