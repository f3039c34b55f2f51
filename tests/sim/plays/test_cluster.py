"""A whole cluster and its clients, seed by seed, with a witness that looks into all nodes.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p cluster SEED` (or `-p replicas`).
"""

import os

import pytest

from scriba.testing.sim.plays.cluster import run
from scriba.testing.sim.run import describe
from tests.sim.plays.hash_seeds import Digests, digests_by_hash_seed

SEEDS = int(os.environ.get("SEEDS", "12"))
PLAIN_SEEDS = int(os.environ.get("SEEDS", "30"))
ALONE = (1, 0)
digests = Digests(run)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cluster_keeps_its_promises_to_groups_and_transactions(seed: int) -> None:
    report = run(seed)
    digests.note(report)
    assert not report.violations, describe(report)
    assert report.counts["acknowledged"] > 0


@pytest.mark.parametrize("seed", range(PLAIN_SEEDS))
def test_replicas_are_the_same_and_lose_nothing(seed: int) -> None:
    report = run(seed, plain=True)
    assert not report.violations, describe(report)
    assert report.counts["acknowledged"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_of_one_keeps_its_promises(seed: int) -> None:
    report = run(seed, ALONE)
    assert not report.violations, describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(3).digest == digests.of(3) != digests.of(5)


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    first, second = digests_by_hash_seed("scriba.testing.sim.plays.cluster", 3)
    assert first == second
