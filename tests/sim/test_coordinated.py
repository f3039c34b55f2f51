"""A whole node with groups, transactions and compaction, seed by seed.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim_run SEED`.
"""

import os

import pytest

from scriba.testing.coordinated import run
from scriba.testing.sim_run import describe

SEEDS = int(os.environ.get("SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_groups_transactions_and_tables_keep_their_promises(seed: int) -> None:
    report = run(seed)
    assert not report.violations, describe(report)
    assert all(report.counts.values()), describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(8).digest == run(8).digest != run(5).digest
