"""Which log is compacted, how much of it, and what becomes one segment."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.instant import Instant
from scriba.settings import TopicSettings
from scriba.storage.compaction.choice import (
    MAX_SPAN,
    Dirt,
    GroupLimits,
    LogFacts,
    SealedSegment,
    assess,
    dirtiest,
    groups,
)

NOW = Instant(0, 1_000_000)
RULES = TopicSettings(cleanup_policy=("compact",))


def sealed(base: int, size: int = 100, oldest: int = 0, newest: int = 0) -> SealedSegment:
    return SealedSegment(base, size, size // 10, size // 5, oldest, newest)


def facts(**more: Any) -> LogFacts:
    """Four sealed segments of ten offsets each, and an active one from 40 to 50."""
    given = LogFacts(tuple(sealed(base) for base in (0, 10, 20, 30)), 40, 0, 50, 50, None)
    return given._replace(**more)


def bounds(dirt: Dirt) -> tuple[int, int]:
    return dirt.first_dirty, dirt.first_uncleanable


def test_a_new_log_is_dirty_from_its_start_to_its_active_segment() -> None:
    dirt = assess(facts(), RULES, NOW)
    assert bounds(dirt) == (0, 40)
    assert (dirt.clean_bytes, dirt.dirty_bytes, dirt.ratio) == (0, 400, 1.0)
    assert dirt.is_due(RULES)


def test_what_was_compacted_before_counts_as_clean() -> None:
    dirt = assess(facts(checkpoint=20), RULES, NOW)
    assert (bounds(dirt), dirt.clean_bytes, dirt.dirty_bytes) == ((20, 40), 200, 200)
    assert not dirt.is_due(RULES)
    assert dirt.is_due(RULES.replace(min_cleanable_dirty_ratio=0.4))


@pytest.mark.parametrize("checkpoint", [3, 60])
def test_a_checkpoint_outside_of_the_log_is_not_believed(checkpoint: int) -> None:
    dirt = assess(facts(checkpoint=checkpoint, start_offset=5), RULES, NOW)
    assert dirt.first_dirty == 5


@pytest.mark.parametrize(("stable", "bound"), [(50, 40), (40, 40), (39, 30), (30, 30), (5, 0)])
def test_nothing_above_the_last_stable_offset_is_touched(stable: int, bound: int) -> None:
    dirt = assess(facts(stable_offset=stable), RULES, NOW)
    assert dirt.first_uncleanable == bound
    assert dirt.is_due(RULES) == (bound > 0)


def test_records_are_safe_until_they_are_old_enough() -> None:
    young = tuple(sealed(base, newest=NOW.wall_ms - 50 + base) for base in (0, 10, 20, 30))
    for lag, bound in ((0, 40), (30, 30), (31, 20), (41, 10), (51, 0)):
        dirt = assess(facts(sealed=young), RULES.replace(min_compaction_lag_ms=lag), NOW)
        assert dirt.first_uncleanable == bound, lag


def test_a_record_that_waited_too_long_forces_a_compaction() -> None:
    rules = RULES.replace(max_compaction_lag_ms=1000)
    segments = [sealed(base, oldest=NOW.wall_ms - 1000) for base in (0, 10, 20, 30)]
    assert assess(facts(sealed=segments, checkpoint=30), rules, NOW).overdue_ms == 0
    segments[3] = sealed(30, oldest=NOW.wall_ms - 1007)
    dirt = assess(facts(sealed=segments, checkpoint=30), rules, NOW)
    assert dirt.overdue_ms == 7
    assert dirt.ratio < rules.min_cleanable_dirty_ratio
    assert dirt.is_due(rules)
    assert not assess(facts(sealed=segments, checkpoint=40), rules, NOW).is_due(rules)


def test_the_dirtiest_log_goes_first() -> None:
    candidates = [("a", Dirt(0, 1, 50, 50, 0)), ("b", Dirt(0, 1, 1, 99, 0))]
    assert dirtiest(candidates) == ["b", "a"]


def test_a_log_without_sealed_segments_has_nothing_to_compact() -> None:
    assert not assess(facts(sealed=(), active_offset=0), RULES, NOW).is_due(RULES)


def test_neighbours_that_fit_become_one() -> None:
    sizes = (40, 40, 40, 100, 1, 1)
    segments = [sealed(10 * at, size) for at, size in enumerate(sizes)]
    found = groups(segments, 60, GroupLimits(100, 100))
    assert [[each.size for each in group] for group in found] == [[40, 40], [40], [100], [1, 1]]
    found = groups(segments, 60, GroupLimits(1000, 16))
    assert [[each.size for each in group] for group in found] == [[40, 40], [40], [100], [1, 1]]


def test_offsets_of_one_segment_fit_into_its_index() -> None:
    segments = [sealed(0), sealed(MAX_SPAN - 5), sealed(MAX_SPAN + 1)]
    limits = GroupLimits(1 << 20, 1 << 20)
    assert len(groups(segments, MAX_SPAN + 9, limits)) == 2
    assert len(groups(segments[:2], MAX_SPAN + 1, limits)) == 1
    assert len(groups(segments[:2], MAX_SPAN + 2, limits)) == 2


@given(st.lists(st.integers(0, 120), max_size=20))
def test_groups_keep_every_segment_once_and_in_order(sizes: list[int]) -> None:
    segments = [sealed(10 * at, size) for at, size in enumerate(sizes)]
    found = groups(segments, 10 * len(sizes), GroupLimits(100, 1000))
    assert [each for group in found for each in group] == segments
    for group in found:
        assert len(group) == 1 or sum(each.size for each in group) <= 100
    for left, right in pairwise(found):
        assert sum(each.size for each in left) + right[0].size > 100
