"""A whole node with groups, transactions and compaction, seed by seed.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run SEED`.
"""

import os

import pytest

from scriba.testing.sim.plays.coordinated import run
from scriba.testing.sim.run import describe
from tests.sim.plays.hash_seeds import Digests, digests_by_hash_seed

SEEDS = int(os.environ.get("SEEDS", "12"))
digests = Digests(run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_groups_transactions_and_tables_keep_their_promises(seed: int) -> None:
    report = run(seed)
    digests.note(report)
    assert not report.violations, describe(report)
    assert all(report.counts.values()), describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(8).digest == digests.of(8) != digests.of(5)


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    first, second = digests_by_hash_seed("scriba.testing.sim.plays.coordinated", 5)
    assert first == second
