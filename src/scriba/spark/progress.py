"""How a query does, for Spark's listeners: how far behind it is, and what its sink did.

    class Listener(StreamingQueryListener):
        def onQueryProgress(self, event):
            found = scriba.spark.figures(event.progress)
            print(event.progress.name, found.lag, found.sink)

Spark lets a source in Python report where the logs end, from which the lag follows, but gives it
and functions of `foreachBatch` no metrics of their own. What a sink did is therefore kept in its
process, which in a classic session is the driver's, where listeners are called too.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

KEPT: Final = 1024
"""Outcomes that are kept; a listener asks right after the batch."""


@dataclass(frozen=True)
class Outcome:
    """What became of a batch in the exactly-once sink."""

    batch: int
    rows: int
    partitions: int
    """Into which rows went."""
    attempts: int
    """How often the batch was begun; 0 when it was left out."""
    repeated: bool
    """Whether it had been committed before, and was left out."""
    transaction_ms: float = 0.0
    """From the begin of the transaction to the end of its commit."""
    on_driver: bool = False
    """Whether the driver wrote the rows itself, as those of a small batch."""


@dataclass(frozen=True)
class Figures:
    lag: int | None
    """Records that were there when the batch was planned, and that it did not read; None when a
    source does not tell, and for a batch that is repeated after a start, which is not planned."""
    lags: tuple[int | None, ...]
    """The same by source."""
    sink: Outcome | None
    """None without an exactly-once sink, or when that runs elsewhere, as with Spark Connect."""


_outcomes: OrderedDict[tuple[str, int], Outcome] = OrderedDict()


def keep(query: str, outcome: Outcome) -> None:
    _outcomes.pop((query, outcome.batch), None)
    _outcomes[query, outcome.batch] = outcome
    while len(_outcomes) > KEPT:
        _outcomes.popitem(last=False)


def figures(progress: Any) -> Figures:
    """Of a batch, from its StreamingQueryProgress."""
    sources = progress.sources
    lags = tuple(lag(source.endOffset, source.latestOffset) for source in sources)
    known = [found for found in lags if found is not None]
    whole = len(known) == len(lags) > 0
    outcome = _outcomes.get((str(progress.id), progress.batchId))
    return Figures(sum(known) if whole else None, lags, outcome)


def lag(end: str | None, latest: str | None) -> int | None:
    """Records between two places, as this connector or Spark's own writes them; None for others."""
    here, there = _places(end), _places(latest)
    if here is None or there is None:
        return None
    return sum(max(0, offset - here.get(place, 0)) for place, offset in there.items())


def _places(told: str | None) -> dict[tuple[str, str], int] | None:
    try:
        document = json.loads(told or "")
        topics = document.get("topics", document)
        return {
            (topic, partition): int(offset)
            for topic, spot in topics.items()
            for partition, offset in spot.get("offsets", spot).items()
        }
    except (ValueError, AttributeError, TypeError):
        return None
