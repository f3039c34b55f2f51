"""What Spark says of a batch, in the words of shop_progress."""

import json

from scriba.pipelines.shop.progress import lag, offsets, progress
from scriba.pipelines.shop.rules import time_ms
from scriba.pipelines.shop.topics import CONTRACTS, PROGRESS

NOW = time_ms("2026-11-15T12:35:00Z")
OURS = {"topics": {"views": {"id": "x", "offsets": {"0": 7, "1": 4}}}}


def told(**changes: object) -> dict[str, object]:
    source = {
        "inputRowsPerSecond": 12.34,
        "endOffset": {"topics": {"views": {"id": "x", "offsets": {"0": 5}}}},
        "latestOffset": OURS,
    }
    return {
        "batchId": 3,
        "batchDuration": 640,
        "eventTime": {"watermark": "2026-11-15T12:15:00.000Z"},
        "sources": [source],
        **changes,
    }


def test_a_batch_is_told_as_the_contract_says() -> None:
    row = progress("figures", told(), 2, NOW)
    assert row.keys() == CONTRACTS[PROGRESS].value.keys()
    assert (row["batch"], row["batch_ms"], row["rows_per_second"]) == (3, 640, 12.3)
    assert (row["watermark_delay_seconds"], row["lag"]) == (1200.0, 6)
    assert row["dropped_by_watermark"] == 2


def test_a_query_that_saw_nothing_has_no_watermark() -> None:
    for times in ({}, {"watermark": "1970-01-01T00:00:00.000Z"}):
        row = progress("figures", told(eventTime=times, sources=[]), 0, NOW)
        assert row["watermark"] is None
        assert row["watermark_delay_seconds"] is None
        assert row["lag"] is None


def test_a_speed_that_is_no_number_is_none() -> None:
    row = progress("figures", told(sources=[{"inputRowsPerSecond": "NaN"}]), 0, NOW)
    assert row["rows_per_second"] == 0.0
    json.dumps(row, allow_nan=False)


def test_places_of_both_connectors_are_read() -> None:
    theirs = json.dumps({"views": {"0": 7, "1": 4}})
    assert offsets(OURS) == offsets(theirs) == {("views", "0"): 7, ("views", "1"): 4}
    assert lag(json.dumps({"views": {"0": 9}}), theirs) == 4
    assert lag(None, theirs) is None
