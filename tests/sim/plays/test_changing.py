"""A cluster that changes its shape, seed by seed: replicas move, brokers join and leave, voters
come and go, while everything goes wrong that can.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p changing SEED` (or `-p moves`).
"""

import os

import pytest

from scriba.testing.sim.plays.changing import run
from scriba.testing.sim.run import describe
from tests.sim.plays.hash_seeds import digests_by_hash_seed

SEEDS = int(os.environ.get("SEEDS", "4"))
MOVING = (0, 1, 3, 4, 5, 6, 7, 8, 9, 10)
"""Seeds in which replicas move; now and then there is one in which brokers only come and go."""
PLAIN_SEEDS = range(int(os.environ["SEEDS"])) if "SEEDS" in os.environ else MOVING


@pytest.mark.parametrize("seed", range(SEEDS))
def test_groups_and_transactions_go_on_while_the_cluster_changes(seed: int) -> None:
    report = run(seed)
    assert not report.violations, describe(report)
    assert report.counts["acknowledged"] > 0


@pytest.mark.parametrize("seed", PLAIN_SEEDS)
def test_replicas_are_as_asked_or_as_before_and_lose_nothing(seed: int) -> None:
    report = run(seed, plain=True)
    assert not report.violations, describe(report)
    assert report.counts["acknowledged"] > 0
    ended = report.counts["finished"] + report.counts["cancelled"]
    assert ended or seed not in MOVING, describe(report)


@pytest.mark.parametrize(
    ("seed", "plain"),
    [
        (770192, True),  # a topic placed on a broker that was leaving, before it was fenced
        (770126, True),  # one of two devices of a new node fails while it starts
        (770199, False),  # the only one does
    ],
)
def test_what_once_took_the_play_by_surprise(seed: int, plain: bool) -> None:
    report = run(seed, plain)
    assert not report.violations, describe(report)


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    first, second = digests_by_hash_seed("scriba.testing.sim.plays.changing", 3)
    assert first == second
