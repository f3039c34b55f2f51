"""Voters that lose their power between a vote and the next election, seed by seed.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p electing SEED`.
"""

import os

import pytest

from scriba.testing.sim.plays import electing
from scriba.testing.sim.plays.electing import Scene, run
from scriba.testing.sim.run import describe

SEEDS = int(os.environ.get("SEEDS", "4"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_epoch_has_one_leader_though_its_voters_lose_their_power(seed: int) -> None:
    report = run(seed)
    assert not report.violations, describe(report)
    assert report.counts["moments"] > 0, describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(3).digest == run(3).digest != run(4).digest


def test_a_majority_that_elects_nobody_within_its_bound_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(electing, "ELECTED_S", 0.01)
    monkeypatch.setattr(Scene, "times", 1)
    assert any("elects nobody after epoch" in violation for violation in run(0).violations)
