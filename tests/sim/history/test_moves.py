"""The checker of moves finds what it is for."""

import pytest

from scriba.testing.history.moves import Moves, Placement

WHERE = ("t", 0)
BEFORE = Placement((1, 2, 3), (1, 2, 3), 1)
UNDER_WAY = Placement((4, 2, 3, 1), (1, 2, 3), 1, adding=(4,), removing=(1,))
ALL_IN_SYNC = Placement((4, 2, 3), (2, 3, 4), 2)


def moving(granted: bool | None = True) -> Moves:
    moves = Moves()
    moves.made(WHERE, BEFORE)
    moves.ask(WHERE, (4, 2, 3)).granted = granted
    moves.changed(WHERE, UNDER_WAY)
    return moves


def test_a_move_that_ends_as_asked_or_as_before_is_no_finding() -> None:
    moves = moving()
    moves.changed(WHERE, ALL_IN_SYNC)
    moves.finish()
    assert (moves.begun, moves.finished, moves.violations) == (1, 1, [])
    moves.ask(WHERE, (1, 2, 3)).granted = True
    moves.changed(WHERE, Placement((1, 2, 3, 4), (2, 3, 4), 2, adding=(1,), removing=(4,)))
    moves.ask(WHERE, None).granted = True
    moves.changed(WHERE, Placement((2, 3, 4), (2, 3, 4), 2))
    moves.finish()
    assert (moves.begun, moves.cancelled, moves.violations) == (2, 1, [])


def test_replicas_that_go_before_the_others_are_in_sync_are_found() -> None:
    moves = moving()
    moves.changed(WHERE, Placement((4, 2, 3), (2, 3), 2))
    assert moves.violations == ["t-0: [1] went, and of replicas [4, 2, 3] only [2, 3] are in sync"]


def test_a_removed_replica_that_counts_is_found() -> None:
    moves = moving()
    moves.changed(WHERE, Placement((4, 2, 3), (2, 3, 4, 1), 1))
    assert moves.violations == [
        "t-0: in sync [2, 3, 4, 1], its replicas are [4, 2, 3]",
        "t-0: led by [1], its replicas are [4, 2, 3]",
    ]


def test_replicas_that_nobody_asked_for_are_found() -> None:
    moves = moving()
    moves.changed(WHERE, Placement((4, 2), (4, 2), 2))
    assert "which nobody asked for" in moves.violations[0]
    moves = moving()
    moves.changed(WHERE, Placement((5, 2, 3, 1), (1, 2, 3), 1, adding=(5,), removing=(1,)))
    assert "on its way to [5, 2, 3], which nobody asked for" in moves.violations[0]


def test_a_move_that_never_ends_or_is_undone_is_found() -> None:
    moves = moving()
    moves.finish()
    assert moves.violations[0] == "t-0: never came to [4, 2, 3]"
    moves = moving()
    moves.changed(WHERE, BEFORE)
    moves.finish()
    assert "[4, 2, 3] was asked for last" in moves.violations[0]
    moves = moving(granted=None)
    moves.changed(WHERE, BEFORE)
    moves.finish()
    assert moves.violations == []


def test_a_cordoned_broker_that_gets_a_partition_is_found() -> None:
    moves = Moves()
    moves.made(WHERE, BEFORE, {2, 9})
    assert moves.violations == ["t-0 was made with replicas [1, 2, 3], of which [2] are cordoned"]


def test_a_leader_that_hands_over_changes_the_order_and_nothing_else() -> None:
    moves = moving()
    moves.changed(WHERE, ALL_IN_SYNC)
    moves.changed(WHERE, Placement((4, 3, 2), (2, 3, 4), 4))
    moves.finish()
    assert (moves.finished, moves.violations) == (1, [])
    moves.changed(WHERE, Placement((4, 3), (3, 4), 4))
    assert "which nobody asked for" in moves.violations[0]


def test_another_order_than_was_asked_for_is_found_where_nobody_handed_over() -> None:
    moves = moving()
    moves.changed(WHERE, Placement((2, 4, 3), (2, 3, 4), 2))
    moves.finish()
    assert "which nobody asked for" in moves.violations[0]
    assert "[4, 2, 3] was asked for last" in moves.violations[1]


@pytest.mark.parametrize(("sent", "found"), [(1, 1), (2, 0)])
def test_only_a_request_that_was_sent_again_may_come_after_a_later_one(
    sent: int, found: int
) -> None:
    moves = moving()
    moves.asks[WHERE][0].sent = sent
    moves.changed(WHERE, ALL_IN_SYNC)
    moves.ask(WHERE, (1, 2, 3)).granted = True
    moves.changed(WHERE, Placement((1, 2, 3, 4), (2, 3, 4), 2, adding=(1,), removing=(4,)))
    moves.changed(WHERE, ALL_IN_SYNC)
    moves.finish()
    assert len(moves.violations) == found
