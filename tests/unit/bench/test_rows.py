"""The rows of the comparison, as a whole."""

import json

from bench import report
from bench.run import HERE, ROWS


def test_every_row_has_a_key_of_its_own_and_so_has_each_metric_in_it() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len({metric.name for metric in row.metrics}) == len(row.metrics) > 0, row.key


def test_a_goal_is_a_ratio_or_a_limit_and_not_both() -> None:
    for row in ROWS:
        assert all(metric.goal is None or metric.limit is None for metric in row.metrics), row.key


def test_figures_and_explanations_are_of_rows_that_there_are() -> None:
    keys = {row.key for row in ROWS}
    assert set(json.loads((HERE / "results.json").read_text())) <= keys
    assert set(report.read_explained(HERE / "explained.md")) <= keys


def test_the_page_tells_the_goals_that_rows_have() -> None:
    """So that a goal which is changed is changed there too."""
    samples = json.loads((HERE / "results.json").read_text())
    lines = report.judge([row for row in ROWS if row.key in samples], samples)
    told = [line.split("|") for line in (HERE / "RESULTS.md").read_text().splitlines()]
    cells = [tuple(map(str.strip, cell[1:-1])) for cell in told if len(cell) == 9]
    shown = [(unit, goal) for _, unit, *_, goal, _ in cells if unit not in ("unit", "---")]
    assert shown == [(line.metric.unit, line.wanted) for line in lines]
