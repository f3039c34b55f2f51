"""Verdicts of the comparison with Apache Kafka."""

from collections.abc import Sequence

import pytest

from bench import report
from bench.rows import Metric, Row

ROW = Row("row", "a row", (), lambda bench: {})


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "met"),
    [
        (Metric("cpu", "CPU us", 0.5), [4.0], [10.0], True),
        (Metric("cpu", "CPU us", 0.5), [6.0], [10.0], False),
        (Metric("rate", "MB/s", 1.5, higher_is_better=True), [20.0], [10.0], True),
        (Metric("rate", "MB/s", 1.5, higher_is_better=True), [12.0], [10.0], False),
        (Metric("p99", "s p99", limit=1.5), [1.0], [0.1], True),
        (Metric("p99", "s p99", limit=1.5), [2.0], [10.0], False),
        (Metric("changes", "changes", limit=0), [0.0], [0.0], True),
        (Metric("slice", "ms", limit=10), [50.0], [], False),
        (Metric("memory", "MB"), [1.0], [2.0], None),
    ],
)
def test_a_goal_is_a_ratio_a_floor_or_a_limit(
    metric: Metric, ours: Sequence[float], theirs: Sequence[float], met: bool | None
) -> None:
    line = report.Line(ROW, metric, ours, theirs)
    assert line.met is met


def test_what_kafka_does_not_tell_is_shown_as_such() -> None:
    line = report.Line(ROW, Metric("slice", "ms late", limit=10), [50.0], [])
    assert report.table([line]).splitlines()[-1] == (
        "| a row | ms late | 50.0 | - | - | <= 10 ms | **missed** |"
    )
