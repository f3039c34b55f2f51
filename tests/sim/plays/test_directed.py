"""Faults at the moment at which they do most harm, scene by scene and seed by seed.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p SCENE SEED`.
"""

import os

import pytest

from scriba.testing.sim.plays.directed import SCENES, run
from scriba.testing.sim.run import describe

SEEDS = int(os.environ.get("SEEDS", "3"))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_by_faults_at_the_worst_moment(seed: int, scene: str) -> None:
    report = run(seed, scene)
    assert not report.violations, describe(report)
    assert report.counts["moments"] > 0, describe(report)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert run(3, "diverging").digest == run(3, "diverging").digest != run(4, "diverging").digest
