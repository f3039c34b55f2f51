"""A query that failed goes on after a pause that grows, and is given up in the end."""

from itertools import pairwise

from scriba.pipelines.attempts import (
    FAILURES,
    FAILURES_WHEN_BUSY,
    LONGEST_PAUSE,
    MACHINE_IS_BUSY,
    Attempts,
    reason,
)

GONE = RuntimeError("the broker went away")
BUSY = RuntimeError("Job aborted\n  Caused by: Python worker failed to connect back.\n  at Java")


def pauses(attempts: Attempts, failure: BaseException) -> list[float]:
    found = []
    while (pause := attempts.failed(failure, 100.0)) is not None:
        assert attempts.again_at == 100.0 + pause
        found.append(pause)
    return found


def test_pauses_grow_to_a_limit_until_the_query_is_given_up() -> None:
    attempts = Attempts()
    found = pauses(attempts, GONE)
    assert len(found) == attempts.restarts == FAILURES - 1
    assert all(later == min(LONGEST_PAUSE, 2 * earlier) for earlier, later in pairwise(found))


def test_a_batch_in_between_makes_a_failure_the_first_again() -> None:
    attempts = Attempts()
    for _ in range(3 * FAILURES):
        assert attempts.failed(GONE, 0.0) == 1.0
        attempts.well()
    assert attempts.restarts == 3 * FAILURES


def test_a_machine_that_is_too_busy_is_borne_longer_than_what_is_wrong_with_a_query() -> None:
    assert len(pauses(Attempts(), BUSY)) == FAILURES_WHEN_BUSY - 1 > FAILURES


def test_the_reason_is_one_line() -> None:
    assert reason(BUSY) == MACHINE_IS_BUSY
    python = (
        'Job aborted: Traceback (most recent call last):\n  File "x.py", line 3, in read\n'
        "    raise Gone\nscriba.errors.Gone: it is gone\n\n\tat java.Thread.run"
    )
    assert reason(RuntimeError(python)) == "scriba.errors.Gone: it is gone"
    assert reason(RuntimeError("\n first\n\tat second")) == "first"
    assert reason(RuntimeError()) == "RuntimeError()"
