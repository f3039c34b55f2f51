"""A fast path that overlooks something is told from the general path, by some seed.

Here the cheap ones are played; `make mutants` plays all of them.
"""

import os

import pytest

from scriba.testing.sim.plays.differential import run
from tests.sim.mutants.coordinator import Mutant
from tests.sim.mutants.fastpath import MUTANTS

SEEDS = 20
ALL = os.environ.get("MUTANTS") == "all"


def caught(mutant: Mutant) -> bool:
    """By a difference that a client saw; a node or a run that just fails does not count."""
    return any(
        mutant.complaint in violation
        for seed in (mutant.seed, *range(SEEDS))
        for violation in run(seed).violations
    )


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if ALL or mutant.cheap],
    ids=lambda mutant: mutant.name.replace("_", " "),
)
def test_a_broken_fast_path_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.break_it(monkeypatch)
    assert caught(mutant)
