"""Replicas that catch up do so at the rate that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.replication.throttle import BURST_MS, UNLIMITED, Throttle


@pytest.mark.parametrize("answer", [1_000, 100_000, 5_000_000])
def test_the_rate_holds_whatever_single_answers_weigh(answer: int) -> None:
    rate, now, sent = 1_000_000, 5_000, 0
    throttle = Throttle(lambda: rate)
    begun = now
    while sent < 60_000_000:
        now += throttle.wait_ms(now)
        assert throttle.allowance(now) > 0
        throttle.take(answer, now)
        sent += answer
    now += throttle.wait_ms(now)
    assert sent / ((now - begun) / 1000) == pytest.approx(rate, rel=0.02)


def test_a_rest_earns_little() -> None:
    throttle = Throttle(lambda: 1_000)
    throttle.take(10_000, 0)
    assert throttle.allowance(1_000_000) == 1_000 * BURST_MS // 1000


def test_a_rate_of_none_holds_nothing_back_and_one_of_zero_everything() -> None:
    rate = [UNLIMITED]
    throttle = Throttle(lambda: rate[0])
    throttle.take(1 << 40, 0)
    assert throttle.wait_ms(0) == 0
    rate[0] = 0
    assert throttle.allowance(1) == 0
    assert throttle.wait_ms(1_000_000) == UNLIMITED


def test_a_debt_is_forgotten_when_the_rate_is_taken_away() -> None:
    rate = [10]
    throttle = Throttle(lambda: rate[0])
    throttle.take(1_000_000, 0)
    assert throttle.wait_ms(0) > 90_000_000
    rate[0] = UNLIMITED
    assert throttle.wait_ms(0) == 0
    rate[0] = 10
    assert throttle.wait_ms(0) == 0


@given(
    rate=st.integers(1, 1 << 40),
    answers=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 1 << 24)), max_size=50),
)
def test_never_more_than_the_rate_a_burst_and_one_answer(
    rate: int, answers: list[tuple[int, int]]
) -> None:
    throttle, now, sent, last = Throttle(lambda: rate), 0, 0, 0
    for pause, size in answers:
        now += pause
        if throttle.allowance(now) > 0:
            throttle.take(size, now)
            sent, last = sent + size, size
    assert sent - last <= rate * (now + BURST_MS) / 1000 + 1
