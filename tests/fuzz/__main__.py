"""Runs targets one after the other, each for so long or so often. See the package."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import build
from tests.fuzz.inputs import keep, targets, unpack

MOST_INPUT = 4096


def main() -> int:
    if build.VARIABLE in os.environ:
        return inside(sys.argv[1], sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=targets(), help="(default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--runs", type=int, help="inputs for each target, instead of seconds")
    parser.add_argument("--seed", type=int, default=0, help="of chance; 0 draws one")
    parser.add_argument("--keep", action="store_true", help="in the corpus, what takes new paths")
    options = parser.parse_args()
    unknown = set(options.targets) - set(targets())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    try:
        built = build.with_fuzzer()
    except build.NoCompiler as missing:
        parser.exit(2, f"fuzz: {missing}\n")
    limit = f"-max_total_time={options.seconds}"
    if options.runs is not None:
        limit = f"-runs={options.runs}"
    for target in options.targets:
        sys.stdout.write(f"fuzz: {target}\n")
        sys.stdout.flush()
        code = fuzz(built, target, [limit, f"-seed={options.seed}"], kept=options.keep)
        if code:
            return code
    return 0


def fuzz(built: Path, target: str, options: list[str], *, kept: bool) -> int:
    """What fails is left in build/fuzz."""
    failed = build.ROOT / "build" / "fuzz" / target
    failed.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        corpus, fewest = Path(name, "corpus"), Path(name, "fewest")
        corpus.mkdir()
        fewest.mkdir()
        unpack(target, corpus)
        words = [*options, "-print_final_stats=1", f"-artifact_prefix={failed}/", str(corpus)]
        code = started(built, target, words)
        if kept and not code:
            code = started(built, target, ["-merge=1", str(fewest), str(corpus)])
        if kept and not code:
            keep(target, fewest)
    return code


def started(built: Path, target: str, words: list[str]) -> int:
    command = [sys.executable, "-m", "tests.fuzz", target, f"-max_len={MOST_INPUT}", *words]
    environment = build.environment(built)
    return subprocess.run(command, env=environment, cwd=build.ROOT, check=False).returncode


def inside(target: str, words: list[str]) -> int:
    """In the process that has the sanitizers; libFuzzer ends it."""
    build.load()
    driver = build.loaded("fuzz_driver", Path(os.environ[build.VARIABLE]))
    from tests.fuzz.targets import TARGETS

    again = f"{sys.executable} -m tests.fuzz {target}"  # what starts a process for a merge
    driver.run([again, *words], TARGETS[target])
    return 0


if __name__ == "__main__":
    sys.exit(main())
