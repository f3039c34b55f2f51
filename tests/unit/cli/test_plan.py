import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.cli.topics.plan import propose


def test_the_slower_side_decides() -> None:
    assert propose(100, brokers=1, per_consumer=10, per_partition=25).partitions == 10
    assert propose(100, brokers=1, per_consumer=50, per_partition=25).partitions == 4


def test_every_broker_leads_as_many() -> None:
    assert propose(100, brokers=3, per_consumer=10, per_partition=25).partitions == 12
    assert propose(0.1, brokers=3).partitions == 3


@pytest.mark.parametrize(("mbps", "share", "needed"), [(0.3, 0.1, 3), (10, 10, 1), (10.1, 10, 2)])
def test_a_share_that_fits_exactly_is_not_rounded_up(
    mbps: float, share: float, needed: int
) -> None:
    found = propose(mbps, brokers=1, per_consumer=share, per_partition=1000)
    assert found.partitions == needed


@given(st.floats(0.001, 1e6), st.floats(0.1, 1e4), st.integers(1, 50))
def test_the_proposal_is_enough_and_divides_evenly(mbps: float, share: float, brokers: int) -> None:
    found = propose(mbps, brokers=brokers, per_consumer=share, per_partition=share)
    assert found.partitions * share >= mbps * (1 - 1e-6)
    assert found.partitions % brokers == 0
    assert (found.partitions - brokers) * share < mbps + share
