"""Replays seeds of a simulation and tells what went wrong.

python -m scriba.testing.sim.run 17             one seed, with the end of its trace if it fails
python -m scriba.testing.sim.run 0-999          a range of seeds, one line for each that fails
python -m scriba.testing.sim.run -s 17          long work in its shortest slices
python -m scriba.testing.sim.run -p cluster 17  the play: records, coordinated (the default),
                                                differential (with fast paths and without),
                                                cluster, replicas (the same without groups
                                                and transactions), quorum (of controllers),
                                                voters (a quorum of which these change),
                                                electing (voters that lose their power
                                                between a vote and the next election),
                                                changing (replicas move, brokers and voters
                                                come and go), moves (the same without groups
                                                and transactions);
                                                diverging, truncating, joining, reborn,
                                                observed or markers (faults at the worst
                                                moment, see plays.directed)
"""

import argparse
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Final, Protocol

from scriba.testing.sim.plays import (
    changing,
    cluster,
    coordinated,
    differential,
    directed,
    electing,
    quorum,
    single_node,
    voters,
)
from scriba.testing.sim.short_slices import short_slices


class Report(Protocol):
    @property
    def seed(self) -> int: ...

    @property
    def violations(self) -> tuple[str, ...]: ...

    @property
    def digest(self) -> str: ...

    @property
    def trace(self) -> tuple[str, ...]: ...

    @property
    def counts(self) -> Mapping[str, int]: ...


PLAYS: Final[dict[str, Callable[[int], Report]]] = {
    "records": single_node.run,
    "coordinated": coordinated.run,
    "differential": differential.run,
    "cluster": cluster.run,
    "replicas": partial(cluster.run, plain=True),
    "quorum": quorum.run,
    "voters": voters.run,
    "electing": electing.run,
    "changing": changing.run,
    "moves": partial(changing.run, plain=True),
    **{scene: partial(directed.run, scene=scene) for scene in directed.SCENES},
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scriba.testing.sim.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seeds", help="a seed, or first-last")
    parser.add_argument("-p", "--play", choices=PLAYS, default="coordinated")
    parser.add_argument(
        "-s", "--short-slices", action="store_true", help="long work in its shortest slices"
    )
    parser.add_argument("--trace", type=int, default=40, help="events to show of a failed seed")
    options = parser.parse_args(arguments)
    logging.disable()  # what nodes and clients say about faults that are meant to be there
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    failed = 0
    for seed in seeds:
        with short_slices() if options.short_slices else nullcontext():
            report = PLAYS[options.play](seed)
        if report.violations:
            failed += 1
        if report.violations or len(seeds) == 1:
            sys.stdout.write(describe(report, options.trace if len(seeds) == 1 else 0))
    sys.stdout.write(f"{len(seeds)} seeds, {failed} failed\n")
    return 1 if failed else 0


def describe(report: Report, events: int = 40) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in report.counts.items())
    lines = [
        f"seed {report.seed}: {counts}, trace {report.digest}",
        *(f"  {violation}" for violation in report.violations),
    ]
    if story := getattr(report, "story", ()):
        lines += ["  the story:", *(f"    {event}" for event in story)]
    if report.violations and events:
        lines += ["  the last events:", *(f"    {event}" for event in report.trace[-events:])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
