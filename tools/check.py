"""The bar for a change: lint, types, tests. `check.py lint` stops before the tests.

Tests run in one pytest session, so that its summary closes the output; it prints how the time was
split, the time spent here included (see tests/conftest.py).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CODE = [name for name in ("src", "tests", "tools", "bench", "examples") if (ROOT / name).is_dir()]

MOST_WORKERS = 4
"""Tests start brokers, which want processors too."""

LINT = {
    "ruff check": [str(BIN / "ruff"), "check", "--quiet", *CODE],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "--quiet", *CODE],
    "mypy": [str(BIN / "mypy"), "--strict"],
}


def lint() -> dict[str, float]:
    """Seconds each check took; leaves with the code of the first that fails."""
    spent: dict[str, float] = {}
    for name, command in LINT.items():
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        spent[name] = time.monotonic() - began
        if code:
            sys.exit(f"{name} failed")
    return spent


def main() -> None:
    spent = lint()
    if sys.argv[1:] == ["lint"]:
        return
    os.environ["SCRIBA_SPENT"] = ",".join(f"{name}={took:.1f}" for name, took in spent.items())
    os.chdir(ROOT)
    side_by_side = ["-n", str(min(os.cpu_count() or 1, MOST_WORKERS)), "--dist", "loadgroup"]
    command = [sys.executable, "-m", "pytest", "tests", *side_by_side, *sys.argv[1:]]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
