"""Replays seeds of the simulation and tells what went wrong.

python -m scriba.testing.sim_run 17            one seed, with the end of its trace if it fails
python -m scriba.testing.sim_run 0-999         a range of seeds, one line for each that fails
"""

import argparse
import sys

from scriba.testing.single_node import Report, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scriba.testing.sim_run", description=__doc__)
    parser.add_argument("seeds", help="a seed, or first-last")
    parser.add_argument("--trace", type=int, default=40, help="events to show of a failed seed")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    failed = 0
    for seed in seeds:
        report = run(seed)
        if report.violations:
            failed += 1
        if report.violations or len(seeds) == 1:
            sys.stdout.write(describe(report, options.trace if len(seeds) == 1 else 0))
    sys.stdout.write(f"{len(seeds)} seeds, {failed} failed\n")
    return 1 if failed else 0


def describe(report: Report, events: int = 40) -> str:
    lines = [
        f"seed {report.seed}: {report.acked} acknowledged, {report.seen} read, "
        f"trace {report.digest}",
        *(f"  {violation}" for violation in report.violations),
    ]
    if report.violations and events:
        lines += ["  the last events:", *(f"    {event}" for event in report.trace[-events:])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
