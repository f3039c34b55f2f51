"""A run of the comparison: what it keeps, and what a row that fails costs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import run as bench_run
from bench.report import KAFKA, SCRIBA
from bench.rows import Bench, Figures, Metric, Row
from bench.run import Run, Samples
from tools.kafka.brokers import ScribaBroker


def row(key: str, work: Callable[[Bench], Figures], once: bool = False) -> Row:
    return Row(key, key, (Metric("cpu", "CPU us"),), work, once=once)


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Bench]:
    monkeypatch.setattr(bench_run, "fill_page_cache", lambda folder: None)
    node = ScribaBroker(tmp_path)
    return {side: Bench(node, 1.0, tmp_path) for side in (SCRIBA, KAFKA)}


def test_a_row_that_fails_is_named_and_costs_no_other_its_figures(
    benches: dict[str, Bench],
) -> None:
    tried = []

    def fails(bench: Bench) -> Figures:
        tried.append(bench)
        raise TimeoutError("no leader\nand more")

    samples: Samples = {}
    saved: list[set[str]] = []
    run = Run(samples, lambda: saved.append(set(samples)), {})
    rows = [row("bad", fails), row("good", lambda bench: {"cpu": 1.0})]
    run.rounds(benches, rows, pairs=3)
    assert run.failed == {"bad": "TimeoutError: no leader"}
    assert samples == {"good": {"cpu": {SCRIBA: [1.0] * 3, KAFKA: [1.0] * 3}}}
    assert len(tried) == 2, "once on each side, and never again"
    assert saved[1] == {"good"}, "not saved until the end of a round"


def test_a_row_that_cannot_be_prepared_is_not_run(benches: dict[str, Bench]) -> None:
    def refused(bench: Bench) -> Callable[[], None]:
        raise OSError("no room")

    run = Run({}, lambda: None, {})
    bad = Row("bad", "bad", (), lambda bench: pytest.fail("it ran"), prepare=refused)
    run.rounds(benches, [bad], pairs=1)
    assert run.failed == {"bad": "OSError: no room"}


def test_what_one_round_is_enough_for_is_run_once(benches: dict[str, Bench]) -> None:
    samples: Samples = {}
    run = Run(samples, lambda: None, {})
    run.rounds(benches, [row("once", lambda bench: {"cpu": 2.0}, once=True)], pairs=3)
    assert samples == {"once": {"cpu": {SCRIBA: [2.0], KAFKA: [2.0]}}}
