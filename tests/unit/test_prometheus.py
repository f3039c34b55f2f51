"""Our text of metrics, read by Prometheus' own client for Python."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from scriba.prometheus import Durations, Family, Type, counter, gauge, histogram, render

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)
numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False))


def read(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


@given(texts.filter(str.strip), st.dictionaries(st.tuples(texts, texts), numbers, max_size=4))
def test_another_parser_reads_back_every_label_and_number(
    meaning: str, samples: dict[tuple[str, str], float]
) -> None:
    told = render([(gauge("stock", meaning, "item", "place"), samples)])
    found = read(told)["stock"]
    assert found.type == "gauge"
    assert {
        (each.labels["item"], each.labels["place"]): each.value for each in found.samples
    } == samples


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1"),
        (0, "0"),
        (1.5, "1.5"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_are_written_as_the_format_has_them(value: float, text: str) -> None:
    assert render([(gauge("x", "Some."), value)]).endswith(f"\nx {text}\n")


def test_meaning_and_type_stand_before_the_samples_of_a_family() -> None:
    told = render([(counter("a_total", 'A "b" \\ c\nd.', "x"), {"1": 2, "2": 3})])
    assert told.splitlines() == [
        '# HELP a_total A "b" \\\\ c\\nd.',
        "# TYPE a_total counter",
        'a_total{x="1"} 2',
        'a_total{x="2"} 3',
    ]


def test_a_histogram_has_cumulative_buckets_in_seconds() -> None:
    took = Durations()
    for ms in (0.5, 1, 30, 70_000):
        took.add(ms)
    found = read(render([(histogram("load_seconds", "Loads.", "topic"), {"t": took})]))
    samples = found["load_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name == "load_seconds_bucket"}
    assert (buckets["0.001"], buckets["0.02"], buckets["0.05"], buckets["60.0"]) == (2, 2, 3, 3)
    assert buckets["+Inf"] == 4
    (total,) = [s.value for s in samples if s.name == "load_seconds_sum"]
    (count,) = [s.value for s in samples if s.name == "load_seconds_count"]
    assert (total, count) == (70.0315, 4)
    assert (took.count, took.max_ms, took.mean_ms) == (4, 70_000, 70_031.5 / 4)
    assert all(s.labels["topic"] == "t" for s in samples)


def test_nothing_took_no_time() -> None:
    assert Durations().mean_ms == 0


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("requests", Type.COUNTER, ()),
        ("requests_total", Type.GAUGE, ()),
        ("Requests_total", Type.COUNTER, ()),
        ("lag_seconds", Type.HISTOGRAM, ("le",)),
        ("stock", Type.GAUGE, ("a-b",)),
    ],
)
def test_a_family_that_prometheus_would_not_take_cannot_be_declared(
    name: str, kind: Type, labels: tuple[str, ...]
) -> None:
    with pytest.raises(AssertionError):
        Family(name, kind, "Some.", labels)


def test_samples_have_exactly_the_labels_of_their_family() -> None:
    with pytest.raises(ValueError, match="zip"):
        render([(gauge("stock", "Some.", "item", "place"), {"apple": 1})])
