"""How many partitions of a plan move at a time, and what is made of those that are done."""

import pytest

from scriba.cli.cluster.moving import BYTES_AT_ONCE, MOST, Course, Pace, Plan, Seen, Window
from scriba.cli.problems import CommandError
from scriba.client import Reassignment, TopicPartition
from scriba.placement.planning import Facts


def at(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def moves(count: int, size: int | None) -> tuple[Seen, Plan]:
    """So many partitions from broker 1 to 2, all of one size; None where nobody told it."""
    placed: Plan = {at(n): (1,) for n in range(count)}
    sizes = {} if size is None else dict.fromkeys(placed, size)
    return Facts(placed, sizes, {}), dict.fromkeys(placed, (2,))


@pytest.mark.parametrize(
    ("size", "at_once", "begun"),
    [
        (0, None, MOST),
        (1_000_000, None, BYTES_AT_ONCE // 1_000_000),
        (BYTES_AT_ONCE, None, 8),
        (None, None, 8),
        (0, 3, 3),
        (BYTES_AT_ONCE, 20, 20),
    ],
    ids=["empty", "small", "large", "size unknown", "asked for 3", "asked for 20"],
)
def test_many_small_partitions_move_at_a_time_and_few_large_ones(
    size: int | None, at_once: int | None, begun: int
) -> None:
    facts, plan = moves(2_000, size)
    assert Window(facts, plan, at_once).batch(plan, ()) == [at(n) for n in range(begun)]


def test_what_is_under_way_takes_room() -> None:
    facts, plan = moves(2_000, BYTES_AT_ONCE // 20)
    window = Window(facts, plan, None)
    waiting = [at(n) for n in range(15, 2_000)]
    assert window.batch(waiting, {at(n) for n in range(15)}) == [at(n) for n in range(15, 20)]
    facts, plan = moves(2_000, 0)
    window = Window(facts, plan, None)
    assert window.batch(waiting, {at(n) for n in range(MOST // 2 + 1)}) == []
    assert len(window.batch(waiting, {at(n) for n in range(MOST // 2)})) == MOST // 2


def test_another_order_copies_nothing_whatever_its_size() -> None:
    placed: Plan = {at(n): (1, 2) for n in range(50)}
    facts: Seen = Facts(placed, dict.fromkeys(placed, BYTES_AT_ONCE), {})
    assert len(Window(facts, dict.fromkeys(placed, (2, 1)), None).batch(placed, ())) == 50


def test_a_move_that_is_given_another_target_ends_the_course() -> None:
    _, plan = moves(2, 0)
    course = Course(plan)
    course.under_way = {at(0), at(1)}
    left = dict.fromkeys(course.under_way, Reassignment((2, 1), (2,), (1,)))
    assert not course.listed(left)
    assert not course.changed(left)
    left = {at(1): Reassignment((3, 1), (3,), (1,))}
    assert course.listed(left)
    assert course.changed(left) == {at(1)}
    assert course.ended == {at(0)}
    with pytest.raises(CommandError, match="t-1 was cancelled or changed; 0 of 2 partitions moved"):
        course.refuse(course.changed(left))


def test_the_time_left_is_by_the_bytes_and_the_seconds_since_the_first_look() -> None:
    """Not by the seconds before it, which copied what was there then."""
    pace = Pace()
    assert pace.told(500, 2_000, 5.0) == ["500 B of 2.0 kB"]
    assert pace.told(1_000, 2_000, 10.0) == ["1.0 kB of 2.0 kB", "100 B/s", "10 s left"]
