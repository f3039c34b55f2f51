"""A short search by libFuzzer, the same in every run; `make fuzz` searches for longer."""

import subprocess
import sys

import pytest

from tests.fuzz.build import ROOT
from tests.fuzz.targets import TARGETS

RUNS = 3000


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_made_up_bytes_lead_the_extension_nowhere(target: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--runs", str(RUNS), "--seed", "1", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"stat::number_of_executed_units: {RUNS}" in done.stderr
