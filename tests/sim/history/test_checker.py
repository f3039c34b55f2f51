"""The checker itself: it must see what went wrong, and nothing else."""

from collections.abc import Callable

import pytest

from scriba.testing.history import History

Log = dict[int, list[tuple[int, bytes]]]


def values(*numbers: int, producer: str = "p") -> list[bytes]:
    return [b"%s:%d:" % (producer.encode(), number) for number in numbers]


def told(synced_only: bool = True) -> History:
    """Three records sent to partition 0: two acknowledged and read, one unknown."""
    history = History(synced_only)
    history.send(0, values(0, 1), idempotent=True)
    history.send(0, values(2), idempotent=True)
    history.ack(0, 0, values(0, 1), 0)
    history.read(0, 0, 2, list(enumerate(values(0, 1))), 0)
    return history


def log_of(*numbers: int) -> Log:
    return {0: list(enumerate(values(*numbers)))}


@pytest.mark.parametrize("numbers", [(0, 1), (0, 1, 2)])
def test_what_was_promised_is_there_and_the_unknown_may_be(numbers: tuple[int, ...]) -> None:
    history = told()
    history.power_cut({0: []})
    history.check(log_of(*numbers))
    assert history.violations == []


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (log_of(0), "promised p:1:, is nothing"),
        (log_of(1, 0), "promised p:0:, is p:1:"),
        (log_of(0, 1, 1), "is there twice"),
        (log_of(0, 1, 7), "nobody sent p:7:"),
        ({0: [(0, values(0)[0]), (1, values(1)[0]), (3, values(2)[0])]}, "offset 3 follows 1"),
        ({0: log_of(0, 1)[0], 1: [(0, values(2)[0])]}, "nobody sent p:2: here"),
    ],
)
def test_lost_moved_doubled_and_foreign_records_are_seen(log: Log, complaint: str) -> None:
    history = told()
    history.check(log)
    assert any(complaint in violation for violation in history.violations)


def test_order_of_an_idempotent_producer_is_checked() -> None:
    history = History(synced_only=True)
    history.send(0, values(0, 1, 2), idempotent=True)
    history.check(log_of(0, 2, 1))
    assert any("out of order" in violation for violation in history.violations)


def test_a_plain_producer_may_write_twice() -> None:
    history = History(synced_only=True)
    history.send(0, values(0), idempotent=False)
    history.check(log_of(0, 0))
    assert history.violations == []


def test_under_the_default_policy_a_power_cut_takes_back_all_but_what_was_synced() -> None:
    history = told(synced_only=False)
    history.power_cut({0: log_of(0)[0]})
    history.check(log_of(0, 2))
    assert history.violations == []
    history.check(log_of())
    assert len(history.violations) == 1


@pytest.mark.parametrize(
    "tell",
    [
        lambda history: history.read(0, 0, 2, [(1, values(1)[0])], 0),
        lambda history: history.read(0, 0, 0, [(0, values(0)[0])], 0),
        lambda history: history.read(0, 0, 2, [(0, values(1)[0])], 0),
        lambda history: history.ack(0, 1, values(2), 0),
    ],
    ids=["gap", "past the high watermark", "another record", "an offset twice"],
)
def test_what_contradicts_an_earlier_promise_is_seen_at_once(
    tell: Callable[[History], None],
) -> None:
    history = told()
    tell(history)
    assert history.violations


def test_a_refused_record_must_not_be_there() -> None:
    history = told()
    history.refuse(values(2))
    history.check(log_of(0, 1, 2))
    assert any("refused" in violation for violation in history.violations)


def test_an_answer_that_was_under_way_when_the_power_went_promises_nothing() -> None:
    history = told(synced_only=False)
    history.send(0, values(3), idempotent=True)
    history.power_cut({0: []})
    history.ack(0, 2, values(2), 0)
    history.ack(0, 0, values(3), 1)
    history.check({0: list(enumerate(values(3)))})
    assert history.violations == []
