"""What Spark says of a batch, in the words of shop_progress."""

import json

from scriba.pipelines.shop.events.rules import time_ms
from scriba.pipelines.shop.streaming.progress import NOTHING, Sums, progress
from scriba.pipelines.shop.topics import CONTRACTS, PROGRESS
from scriba.spark.progress import Figures, Outcome

NOW = time_ms("2026-11-15T12:35:00Z")


def told(**changes: object) -> dict[str, object]:
    source = {"inputRowsPerSecond": 12.34}
    return {
        "batchId": 3,
        "batchDuration": 640,
        "eventTime": {"watermark": "2026-11-15T12:15:00.000Z"},
        "sources": [source],
        **changes,
    }


def test_a_batch_is_told_as_the_contract_says() -> None:
    sink = Outcome(3, 214, 2, 3, False, 12.54)
    sums = Sums()
    lost = {"stateOperators": [{"numRowsDroppedByWatermark": 2}, {}]}
    for _ in range(2):  # Spark may tell of a batch again
        sums.add(told(**lost), sink)
        lost = {}
    row = progress("figures", told(), Figures(6, (6,), sink), sums, NOW)
    assert row.keys() == CONTRACTS[PROGRESS].value.keys()
    assert (row["batch"], row["batch_ms"], row["rows_per_second"]) == (3, 640, 12.3)
    assert (row["watermark_delay_seconds"], row["lag"]) == (1200.0, 6)
    assert row["dropped_by_watermark"] == 2
    assert (row["rows_written"], row["transaction_ms"], row["attempts_failed"]) == (214, 12.5, 2)
    assert (row["state"], row["batches_repeated"]) == ("running", 0)
    sums.add(told(), Outcome(4, 0, 0, 0, True))
    assert (sums.attempts_failed, sums.batches_repeated) == (2, 1)


def test_a_query_that_saw_nothing_has_no_watermark() -> None:
    for times in ({}, {"watermark": "1970-01-01T00:00:00.000Z"}):
        row = progress("figures", told(eventTime=times, sources=[]), NOTHING, Sums(), NOW)
        assert row["watermark"] is None
        assert row["watermark_delay_seconds"] is None
        assert row["lag"] is None
        assert row["rows_written"] is None


def test_a_speed_that_is_no_number_is_none() -> None:
    wrong = told(sources=[{"inputRowsPerSecond": "NaN"}])
    row = progress("figures", wrong, NOTHING, Sums(), NOW)
    assert row["rows_per_second"] == 0.0
    json.dumps(row, allow_nan=False)
