"""Fast paths cannot be told from the general path: the same seed gives the same bytes both ways.

SEEDS=n plays more of them. A seed that fails is replayed with
`python -m scriba.testing.sim.run -p differential SEED`.
"""

import os

import pytest

from scriba.testing.sim.actors.repeaters import Said
from scriba.testing.sim.plays.differential import Played, differences, play, run
from scriba.testing.sim.run import describe

SEEDS = int(os.environ.get("SEEDS", "6"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_can_tell_a_fast_path_from_the_general_one(seed: int) -> None:
    report = run(seed)
    assert not report.violations, describe(report)
    assert all(report.counts.values()), f"every kind was taken: {report.counts}"


def test_the_same_seed_gives_the_same_play_and_another_seed_another() -> None:
    said = play(3, fast_paths=True).said
    assert play(3, fast_paths=True).said == said
    assert play(4, fast_paths=True).said != said


def test_a_difference_in_bytes_time_or_files_is_told_earliest_first() -> None:
    same = Said(0.5, 1, "asked", b"question")
    fast = Played(
        said={
            "late": [same, Said(3.0, 1, "was told", b"\x01")],
            "early": [same, Said(2.0, 1, "was told", b"\x02")],
            "silent": [same],
            "equal": [same],
        },
        files={"/a": b"1", "/b": b"2", "/c": b"3"},
    )
    general = Played(
        said={
            "late": [same, Said(3.0, 1, "was told", b"\x09")],
            "early": [same, Said(2.5, 1, "was told", b"\x02")],
            "silent": [same, Said(4.0, 1, "ended", b"ConnectionResetError")],
            "equal": [same],
        },
        files={"/a": b"1", "/b": b"!", "/d": b"4"},
    )
    first, *rest = differences(fast, general)
    assert first.startswith("early: was told at 2.000000")
    assert [text.split(":")[0] for text in rest] == [
        "late",
        "silent",
        "/b differs",
        "/c differs",
        "/d differs",
    ]
