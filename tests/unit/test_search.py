"""`make search` goes on after a failure, tells how to see it again, and ends in time."""

import itertools
import random
import time
from pathlib import Path

import pytest

from scriba.testing.sim import run
from tools.search import PLAYS, ROOT, Step, outcome, rounds, search

FAR_OFF = 300.0


def shell(name: str, line: str) -> Step:
    return Step(name, ["sh", "-c", line], f"run {name} again")


def test_a_failure_is_kept_and_told_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [shell("broken", "echo why; exit 3"), shell("fine", "echo not kept")]
    (told,) = search(steps, tmp_path, time.monotonic() + FAR_OFF)
    (kept,) = tmp_path.iterdir()
    assert told == f"{kept}: run broken again"
    assert kept.read_text() == "why\n"
    assert "broken FAILED" in capsys.readouterr().out


def test_a_step_that_is_not_done_when_time_is_up_is_ended_and_is_no_failure(tmp_path: Path) -> None:
    endless = shell("endless", "sleep 1000")
    assert outcome(endless, tmp_path / "log", time.monotonic()) is None
    assert search([endless, shell("never", "exit 1")], tmp_path, time.monotonic()) == []


def test_what_a_step_printed_until_time_was_up_is_kept_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talker = shell("talker", "echo seed 7 failed; sleep 1000")
    assert search([talker], tmp_path, time.monotonic() + 1) == []
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == "seed 7 failed\n"
    assert str(kept) in capsys.readouterr().out


def test_every_play_of_the_simulator_has_new_seeds_in_each_round() -> None:
    assert PLAYS.keys() == run.PLAYS.keys()


def test_rounds_differ_and_their_tests_exist() -> None:
    a_round = 2 + 2 * len(PLAYS)
    steps = list(itertools.islice(rounds(random.Random(1)), 2 * a_round))
    assert [step.name for step in steps].count("mutants") == 1
    commands = [tuple(step.command) for step in steps if step.name != "fuzz"]
    assert len(set(commands)) == len(commands)
    files = [word for command in commands for word in command if word.startswith("tests/")]
    assert files
    assert all((ROOT / file).exists() for file in files)
