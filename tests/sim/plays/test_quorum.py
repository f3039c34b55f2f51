"""A quorum of controllers under faults of all kinds, seed by seed.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p quorum SEED`.
"""

import os

import pytest

from scriba.testing.sim.plays import voters
from scriba.testing.sim.plays.quorum import run
from scriba.testing.sim.run import describe
from tests.sim.plays.hash_seeds import Digests

SEEDS = int(os.environ.get("SEEDS", "25"))
digests = Digests(run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_controllers_agree_through_faults_and_recover(seed: int) -> None:
    report = run(seed)
    digests.note(report)
    assert not report.violations, describe(report)
    assert all(report.counts.values()), describe(report)


@pytest.mark.parametrize("seed", [1, 10, 18, 25])
def test_controllers_without_brokers_agree(seed: int) -> None:
    """Among them: an image that begins with a snapshot, a leader that loses its power before its
    own disk has what the others made committed."""
    report = run(seed, brokers=0)
    assert not report.violations, describe(report)


@pytest.mark.parametrize("seed", range(max(SEEDS // 3, 1)))
def test_controllers_agree_while_voters_come_and_go(seed: int) -> None:
    report = voters.run(seed)
    assert not report.violations, describe(report)
    assert report.counts["changes"], describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(3).digest == digests.of(3) != digests.of(4)
