"""What the row about a million partitions takes for the longest step."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from bench.million import Story

story = Story(Path(sys.argv[1]), 2)
asyncio.run(story.play())
print(json.dumps([story.slices, story.figures["slice"]]))
"""


def test_loading_counts_for_the_longest_step_as_all_changes_do(tmp_path: Path) -> None:
    """In a process of its own, since it measures every callback of the loops in it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    slices, longest = json.loads(done.stdout.splitlines()[-1])
    del slices["collection"]
    assert set(slices) == {"load", "create", "failure", "shutdown", "large failure", "snapshot"}
    assert longest == max(slices.values())
