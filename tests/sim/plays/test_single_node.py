"""One whole node and its clients, seed by seed: nothing promised is ever lost.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p records SEED`.
"""

import os

import pytest

from scriba.testing.sim.plays.single_node import run
from scriba.testing.sim.run import describe
from tests.sim.plays.hash_seeds import digests_by_hash_seed

SEEDS = int(os.environ.get("SEEDS", "50"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_under_the_faults_of_a_seed(seed: int) -> None:
    report = run(seed)
    assert not report.violations, describe(report)
    assert report.acked > 0
    assert report.seen > 0


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(3).digest == run(3).digest != run(4).digest


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    first, second = digests_by_hash_seed("scriba.testing.sim.plays.single_node", 5)
    assert first == second
