"""Where a reset would move a group, without a group."""

import pytest

from scriba.cli.groups.offset_plan import OffsetChange, moves
from scriba.cli.parsing.positions import BEGINNING, END, Position
from scriba.client import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
COMMITTED = {A: 7}
STARTS = {A: 3, B: 0}
ENDS = {A: 10, B: 5}


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (BEGINNING, {A: 3, B: 0}),
        (END, {A: 10, B: 5}),
        (Position("offset", 4), {A: 4, B: 4}),
        (Position("offset", 0), {A: 3, B: 0}),
        (Position("offset", 99), {A: 10, B: 5}),
        (Position("last", 2), {A: 8, B: 3}),
        (Position("last", 99), {A: 3, B: 0}),
        (Position("time", 1_700_000_000_000), {A: 6, B: 5}),
    ],
)
def test_a_place_is_one_for_every_partition_and_never_outside_its_log(
    place: Position, wanted: dict[TopicPartition, int]
) -> None:
    plan = moves(place, None, COMMITTED, STARTS, ENDS, timed={A: 6})
    assert {move.where: move.after for move in plan} == wanted
    assert [move.before for move in plan] == [7, None]


@pytest.mark.parametrize(("shift", "after"), [(1, 8), (-2, 5), (-100, 3), (100, 10), (0, 7)])
def test_a_shift_moves_what_was_committed_and_leaves_out_what_was_not(
    shift: int, after: int
) -> None:
    assert moves(None, shift, COMMITTED, STARTS, ENDS, {}) == [OffsetChange(A, 7, after, 10)]
