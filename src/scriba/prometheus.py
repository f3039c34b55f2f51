"""Metrics in the text exposition format of Prometheus (version 0.0.4), and the histogram.

A metric is declared once as a `Family`: its name, type, labels and meaning. Whoever counts keeps
plain numbers; `render` writes them out when somebody scrapes. The same declarations make the
tables of docs/metrics.md. This is the only module that knows the format.
"""

from __future__ import annotations

import enum
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


class Durations:
    """How long something took: counts by upper bound in milliseconds; the last one is for all
    above. `add` is all that a hot path pays."""

    BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)

    __slots__ = ("counts", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, ms: float) -> None:
        self.counts[bisect_left(self.BOUNDS_MS, ms)] += 1
        self.sum_ms += ms
        if ms > self.max_ms:
            self.max_ms = ms

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_ms(self) -> float:
        count = self.count
        return self.sum_ms / count if count else 0.0


class Type(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Value = float | Durations | Mapping[Any, float] | Mapping[Any, Durations]
"""One sample; or, where a family has labels, one by the value of its only label or by the tuple of
their values, which are strings."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as it is declared."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert all(_NAME.fullmatch(label) and label != "le" for label in self.labels), self.name
        assert self.name.endswith("_total") == (self.type is Type.COUNTER), self.name
        assert self.help, self.name


def counter(name: str, help: str, *labels: str) -> Family:
    return Family(name, Type.COUNTER, help, labels)


def gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name, Type.GAUGE, help, labels)


def histogram(name: str, help: str, *labels: str) -> Family:
    """Of `Durations`; in seconds, as Prometheus would have it."""
    return Family(name, Type.HISTOGRAM, help, labels)


def render(metrics: Iterable[tuple[Family, Value]]) -> str:
    return "".join(_lines(metrics))


def _lines(metrics: Iterable[tuple[Family, Value]]) -> Iterator[str]:
    for family, value in metrics:
        yield f"# HELP {family.name} {_escaped_help(family.help)}\n"
        yield f"# TYPE {family.name} {family.type.value}\n"
        samples = value.items() if isinstance(value, Mapping) else [((), value)]
        for labels, sample in samples:
            values = (labels,) if isinstance(labels, str) else labels
            pairs = list(zip(family.labels, values, strict=True))
            if isinstance(sample, Durations):
                yield from _buckets(family.name, pairs, sample)
            else:
                yield f"{family.name}{_braced(pairs)} {_number(sample)}\n"


def _buckets(name: str, pairs: list[tuple[str, str]], found: Durations) -> Iterator[str]:
    bounds = [_number(bound / 1000) for bound in found.BOUNDS_MS]
    counts = list(accumulate(found.counts))
    for bound, count in zip([*bounds, "+Inf"], counts, strict=True):
        yield f"{name}_bucket{_braced([*pairs, ('le', bound)])} {count}\n"
    yield f"{name}_sum{_braced(pairs)} {_number(found.sum_ms / 1000)}\n"
    yield f"{name}_count{_braced(pairs)} {counts[-1]}\n"


def _braced(pairs: list[tuple[str, str]]) -> str:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if isinstance(value, int):  # True is 1
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
