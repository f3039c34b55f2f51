"""Every broken variant of a cluster is found by some seed: a simulator that finds none proves
nothing.

Here the cheap ones are played; `make mutants` plays all of them.
"""

import os

import pytest

from scriba.testing.sim.run import PLAYS
from tests.sim.mutants.cluster import MUTANTS, Mutant

ALL = os.environ.get("MUTANTS") == "all"


def caught(mutant: Mutant) -> bool:
    """By a broken promise; a node or a run that just fails does not count."""
    play = PLAYS[mutant.play]
    return any(
        mutant.complaint in violation
        for seed in (mutant.seed, *range(mutant.within))
        for violation in play(seed).violations
    )


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if ALL or mutant.cheap],
    ids=lambda mutant: mutant.name.replace("_", " "),
)
def test_a_broken_cluster_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    lies = 0

    def lied() -> None:
        nonlocal lies
        lies += 1

    mutant.break_it(monkeypatch, lied)
    found = caught(mutant)
    assert lies, "the variant never did anything else than the rightful code"
    assert found
