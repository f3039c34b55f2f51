"""Queries that fail go on; one begins at a time; what goes wrong is told."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from scriba.pipelines.attempts import FAILURES, MACHINE_IS_BUSY
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.simulation.generator import Generator, Shape
from scriba.pipelines.shop.streaming.queries import Shop
from scriba.pipelines.shop.streaming.runner import GivenUp, Runner
from tests.spark.desk import Desk
from tests.spark.shop.store import Store

START = 1_793_000_000_000
BUSY = "Python worker failed to connect back."


@pytest.fixture
def store(desk: Desk, topic: str) -> Store:
    made = Store(desk, f"{topic}-")
    made.take(Generator(Shape(rate=1.0), START, START + 10_000).deliveries())
    return made


class Fragile:
    """A query over a few events whose batches fail as often as it is told to."""

    def __init__(self, store: Store, name: str, order: list[str], *failures: str) -> None:
        self._store = store
        self._name = name
        self._order = order
        self._failures = list(failures)

    def __call__(self) -> StreamingQuery:
        self._order.append(f"{self._name} starts")
        settings = self._store.settings()
        rows = Shop(self._store.spark, settings).read(self._name, topics.INPUTS)
        writer = rows.writeStream.queryName(settings.group(self._name))
        writer = writer.option("checkpointLocation", f"{settings.checkpoints}/{self._name}")
        return writer.trigger(availableNow=True).foreachBatch(self._batch).start()

    def _batch(self, rows: DataFrame, batch: int) -> None:
        if self._failures:
            raise RuntimeError(self._failures.pop(0))
        self._order.append(f"{self._name} has a batch")


def run(store: Store, told: Callable[[str], None], **queries: Fragile) -> None:
    Runner(store.spark, store.settings(), queries, told).run()


def test_a_query_that_failed_goes_on_and_says_why(store: Store) -> None:
    order: list[str] = []
    lines: list[str] = []
    run(store, lines.append, figures=Fragile(store, "figures", order, BUSY))
    assert order == ["figures starts", "figures starts", "figures has a batch"]
    assert lines[0] == f"figures: {MACHINE_IS_BUSY}; it goes on in 1 s"
    told = [row for _, row in store.records(topics.PROGRESS)]
    assert [(row["batch"], row["restarts"], row["trouble"]) for row in told] == [
        (-1, 0, None),
        (-1, 1, f"{MACHINE_IS_BUSY}; it goes on in 1 s"),
        (0, 1, None),
    ]
    assert [row["state"] for row in told] == ["starting", "restarting", "running"]


def test_the_second_query_begins_when_the_first_has_had_a_batch(store: Store) -> None:
    order: list[str] = []
    names = ("figures", "intake", "joined")
    run(store, lines_nowhere, **{name: Fragile(store, name, order) for name in names})
    told = [word for name in names for word in (f"{name} starts", f"{name} has a batch")]
    assert order == told


def lines_nowhere(line: str) -> None:
    """Nobody listens."""


def test_a_query_that_keeps_failing_ends_the_run_with_its_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scriba.pipelines.attempts.LONGEST_PAUSE", 0.0)
    order: list[str] = []
    wrong = Fragile(store, "figures", order, *["scriba.Wrong: never good"] * FAILURES)
    with pytest.raises(GivenUp, match=f"figures failed {FAILURES} times in a row: .*never good"):
        run(store, lines_nowhere, figures=wrong)
    assert order == ["figures starts"] * FAILURES
