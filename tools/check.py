"""The bar for a change: lint, types, tests. `check.py lint` stops before the tests.

Tests run in one pytest session, so that its summary closes the output; it prints how the time was
split, the time spent here included (see tests/conftest.py). A run that does not come to its end
says where it stands and is ended here, with all it started.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CODE = [name for name in ("src", "tests", "tools", "bench", "examples") if (ROOT / name).is_dir()]

MOST_WORKERS = 4
"""Tests start brokers, which want processors too."""

PATIENCE = 2 * 60 * 60
"""Seconds for all tests, five times what two idle processors need: a single one that hangs ends
long before (`timeout` in pyproject.toml); this is for what hangs after the last."""

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


def tests(command: list[str]) -> int:
    """The exit code of the tests, which lead a process group of their own."""
    child = subprocess.Popen(command, start_new_session=True)

    def passed_on(number: int, _: object) -> None:
        os.killpg(child.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, passed_on)
    try:
        return child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        print(f"tests: not at their end after {PATIENCE // 60} minutes", file=sys.stderr)  # noqa: T201
        for pid in pythons(child.pid):
            os.kill(pid, signal.SIGUSR1)  # each prints where its threads stand
        time.sleep(2)
        return 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def pythons(leader: int) -> list[int]:
    """The test processes: pytest and its workers, which answer SIGUSR1 (tests/conftest.py)."""
    workers = subprocess.run(["pgrep", "-P", str(leader)], capture_output=True, text=True).stdout
    return [leader, *map(int, workers.split())]


def main() -> None:
    spent = lint()
    if sys.argv[1:] == ["lint"]:
        return
    os.environ["SCRIBA_SPENT"] = ",".join(f"{name}={took:.1f}" for name, took in spent.items())
    os.chdir(ROOT)
    side_by_side = ["-n", str(min(os.cpu_count() or 1, MOST_WORKERS))]
    sys.exit(tests([sys.executable, "-m", "pytest", "tests", *side_by_side, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
