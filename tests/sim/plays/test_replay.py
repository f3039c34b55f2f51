"""A seed is played again by itself, with a trace for a reader; what does not heal is found."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from scriba.testing.sim.plays import cluster_stage
from scriba.testing.sim.plays.directed import Diverging
from scriba.testing.sim.run import main
from tests.sim.mutants.cluster import DIFFERS, counts_a_fetch_that_diverges


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    yield capsys
    logging.disable(logging.NOTSET)  # which a replay turns off


def test_a_seed_that_holds_is_told_with_its_story(told: pytest.CaptureFixture[str]) -> None:
    assert main(["-p", "diverging", "0"]) == 0
    first, *story, last = told.readouterr().out.splitlines()
    assert first.startswith("seed 0: ")
    assert any("source-0: " in line and " leads epoch 0, ISR " in line for line in story)
    assert any(line.endswith("all heals") for line in story)
    assert last == "1 seeds, 0 failed"


def test_a_seed_that_fails_is_told_with_its_last_events(
    told: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_a_fetch_that_diverges(monkeypatch, lambda: None)
    assert main(["-p", "diverging", "--trace", "7", "0"]) == 1
    lines = told.readouterr().out.splitlines()
    assert any(DIFFERS in violation for violation in lines[1 : lines.index("  the story:")])
    assert lines.index("  the last events:") == len(lines) - 7 - 2
    assert lines[-1] == "1 seeds, 1 failed"


class Unhealed(Diverging):
    """One broker stays out of sync for ever."""

    async def strike(self) -> None:
        self.sim.network.cut(self.name(2), self.name(3))
        await asyncio.sleep(3)

    def heal(self) -> None:
        """Nothing does."""


def test_a_cluster_that_does_not_become_whole_within_its_bound_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_stage, "WHOLE_S", 2)
    monkeypatch.setattr(Unhealed, "times", 1)
    scene = Unhealed(0)
    report = scene.report(scene.play, {})
    assert "all had healed, and the cluster is not whole" in report.violations[0]
