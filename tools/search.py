"""`make search`: what a night may take, round after round, until its hours are over.

    python -m tools.search [--hours 8] [--seed N]

`make test` plays the same examples and seeds every time, so that it judges a change and not its
luck. This looks for what they do not show: property tests with examples of their own choice, new
seeds of the simulator, every mutant, and libFuzzer against the C code. A step that fails goes on
record in .cache/search with all it printed, the others go on, and the end says how to see it again.
So does the step in which time was up: what it had found until then would be lost otherwise.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "search"

PLAYS = {
    "records": 200,
    "coordinated": 40,
    "differential": 20,
    "cluster": 20,
    "replicas": 60,
    "quorum": 40,
    "voters": 40,
    "electing": 40,
    "changing": 10,
    "moves": 20,
    "diverging": 40,
    "truncating": 40,
    "joining": 40,
    "reborn": 40,
    "observed": 40,
    "markers": 40,
}
"""Plays of the simulator, and how many new seeds of each a round takes."""

FUZZ_SECONDS = 600
"""For each target of libFuzzer in a round."""


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    again: str
    """How a person sees a failure of this step again."""
    environment: dict[str, str] = field(default_factory=dict)


def pytest(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]


def with_properties() -> list[str]:
    """Files of tests that Hypothesis finds examples for."""
    files = (*ROOT.glob("tests/unit/**/test_*.py"), *ROOT.glob("tests/sim/**/test_*.py"))
    return sorted(
        str(path.relative_to(ROOT))
        for path in files
        if "from hypothesis import" in path.read_text()
    )


def first_round() -> Iterator[Step]:
    """What has nothing new to show in a second one."""
    mutants = (
        "tests/sim/mutants",
        "tests/sim/reassignment/test_mutants.py",
        "tests/unit/raft/test_quorum_storms.py",
    )
    yield Step("mutants", pytest(*mutants), "make mutants", {"MUTANTS": "all"})


def every_round(luck: random.Random) -> Iterator[Step]:
    seed = luck.randrange(2**32)
    yield Step(
        "properties",
        pytest(f"--hypothesis-seed={seed}", *with_properties()),
        f"HYPOTHESIS_PROFILE=search pytest --hypothesis-seed={seed} FILE",
        {"HYPOTHESIS_PROFILE": "search"},
    )
    for play, count in PLAYS.items():
        first = luck.randrange(1_000, 2**40)
        seeds = f"{first}-{first + count - 1}"
        for how, name in (("-p", play), ("-sp", f"{play}-short-slices")):
            run = ["-m", "scriba.testing.sim.run", how, play]
            yield Step(name, [sys.executable, *run, seeds], f"python {' '.join(run)} SEED")
    yield Step("fuzz", ["make", "fuzz", f"SECONDS={FUZZ_SECONDS}"], "make fuzz")


def outcome(step: Step, log: Path, deadline: float) -> int | None:
    """The exit code of a step, or None if time was up before its end."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=os.environ | step.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def rounds(luck: random.Random) -> Iterator[Step]:
    yield from every_round(luck)
    yield from first_round()
    while True:
        yield from every_round(luck)


def search(steps: Iterable[Step], logs: Path, deadline: float) -> list[str]:
    """Takes steps until the time is up; what failed, and how to see it again."""
    failed: list[str] = []
    logs.mkdir(parents=True, exist_ok=True)
    for number, step in enumerate(steps, 1):
        log = logs / f"{number}-{step.name}.log"
        began = time.monotonic()
        code = outcome(step, log, deadline)
        if code is None:
            say(f"{step.name} not done when time was up: {log} has what it printed")
            break
        if code:
            failed.append(f"{log}: {step.again}")
        else:
            log.unlink()
        say(f"{step.name} {'FAILED' if code else 'ok'}, {time.monotonic() - began:.0f} s")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    wanted = parser.parse_args()
    say(f"{wanted.hours:g} hours, from seed {wanted.seed}")
    deadline = time.monotonic() + wanted.hours * 3600
    failed = search(rounds(random.Random(wanted.seed)), LOGS, deadline)
    for line in failed or ["no step failed"]:
        say(line)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
