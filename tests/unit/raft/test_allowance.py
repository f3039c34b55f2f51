"""How many epochs the requests of peers may use up."""

from scriba.raft.allowance import MOST_AT_ONCE, MS_PER_EPOCH, EpochAllowance
from scriba.raft.roles import LAST_EPOCH

YEAR_MS = 365 * 86_400_000


def test_a_long_absence_is_believed_once_and_elections_go_on_after_it() -> None:
    allowance = EpochAllowance(now_ms=5_000)
    assert not allowance.take(MOST_AT_ONCE + 1, 5_000)
    assert allowance.take(MOST_AT_ONCE, 5_000)
    assert not allowance.take(1, 5_000 + MS_PER_EPOCH - 1)
    assert allowance.take(1, 5_000 + MS_PER_EPOCH)
    assert not allowance.take(1, 5_000 + MS_PER_EPOCH)
    assert allowance.take(10, 5_000 + 11 * MS_PER_EPOCH)


def test_what_is_not_used_does_not_add_up() -> None:
    allowance = EpochAllowance(now_ms=0)
    assert not allowance.take(MOST_AT_ONCE + 1, YEAR_MS)
    assert allowance.take(MOST_AT_ONCE, YEAR_MS)


def test_the_epochs_there_are_last_for_years_whatever_peers_say() -> None:
    allowance = EpochAllowance(now_ms=0)
    epoch = 0
    for now_ms in range(0, YEAR_MS, YEAR_MS // 10_000):
        for step in (MOST_AT_ONCE, MOST_AT_ONCE // 100, 10_000):
            epoch += step if allowance.take(step, now_ms) else 0
    assert epoch < LAST_EPOCH // 5
