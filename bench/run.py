"""`make bench`: Scriba and Apache Kafka under the same load, in turn, several times over.

    python -m bench.run [--rows KEY,...] [--pairs N] [--scale X] [--quick] [--targets scriba,kafka]

Writes `RESULTS.md` and the raw figures in `results.json` beside this file; why a goal is missed is
told in `explained.md`, a line for each row. `--keep` joins new figures to those of earlier runs;
`kept.md` tells which are of which. `--quick` does an eighth of the work with a short warm-up: for
trying out, not for publishing. `--rows cluster` is short for all rows of three nodes. `--targets
kafka,kafka` holds a broker against itself, to see how much of a ratio is noise.

A row that fails is told, and named in `RESULTS.md`; the others are measured all the same. A whole
run takes about an hour and a half, of which the row of a machine at full load, the last one, is 20
minutes.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import report
from bench.apart import APART
from bench.cluster import IDLE, WORKING
from bench.coordination import COORDINATED
from bench.failover import FAILING, STEADY, WIDE_LEADER
from bench.million import MILLION
from bench.moving import MOVING, RESTARTING
from bench.report import KAFKA, SCRIBA
from bench.rows import ALONE, SERVED, Bench, Row
from bench.scale import SCALE
from bench.sixteen import SIXTEEN
from bench.spark import SPARK
from bench.wide import WIDE
from tools.kafka import clusters
from tools.kafka.brokers import KINDS, Broker, running
from tools.kafka.clusters import CLUSTERS

HERE = Path(__file__).resolve().parent

BOTH_UP = (*SERVED, *WIDE, *COORDINATED, *SPARK)
"""Rows on brokers that stay up from the warm-up to the last round."""

LATER = (*ALONE, *SCALE, *MILLION, *SIXTEEN)
"""Rows that start nodes of their own."""

CLUSTERED = (*WORKING, *FAILING, *RESTARTING)
"""Rows on clusters of three nodes that stay up."""

CLUSTERED_LATER = (*IDLE, *WIDE_LEADER, *MOVING, *APART, *STEADY)
"""Rows that start clusters of their own."""

ROWS = (*BOTH_UP, *LATER, *CLUSTERED, *CLUSTERED_LATER)
GROUPS = {"cluster": [row.key for row in (*CLUSTERED, *CLUSTERED_LATER)]}

NEEDED_BYTES = 30 << 30
FREE_BYTES = 1 << 30
WARM_SECONDS, WARM_SCRIBA_SECONDS = 60.0, 15.0

Samples = dict[str, dict[str, dict[str, list[float]]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", default=",".join(keys), help="keys of rows, by comma")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the data to move")
    parser.add_argument("--keep", action="store_true", help="keep the figures of other rows")
    parser.add_argument("--targets", default="scriba,kafka", help="the two sides, by comma")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the results")
    wanted = parser.parse_args()
    wanted.rows = [key for name in wanted.rows.split(",") for key in GROUPS.get(name, [name])]
    wanted.targets = wanted.targets.split(",")
    unknown = set(wanted.rows) - set(keys)
    if unknown or set(wanted.targets) - set(KINDS) or len(wanted.targets) != 2:
        parser.error(f"rows are {', '.join(keys)}; targets two of {', '.join(KINDS)}")
    return wanted


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def both(targets: Sequence[str], scale: float, several: bool) -> Iterator[dict[str, Bench]]:
    """The two sides, not started, in folders that vanish; with a cluster each if one is needed."""
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder:
        if shutil.disk_usage(folder).free < NEEDED_BYTES * scale:
            sys.exit(f"{folder} has less than {NEEDED_BYTES * scale / 2**30:.0f} GB free")
        benches = {}
        for side, kind in zip((SCRIBA, KAFKA), targets, strict=True):
            home = Path(folder) / side
            node: Broker = KINDS[kind](home / "node")
            benches[side] = Bench(node, scale, home)
            if several:
                benches[side].cluster = CLUSTERS[kind](home / "cluster")
        try:
            yield benches
        finally:
            for bench in benches.values():
                if bench.spare is not None:
                    bench.spare.kill()


def fill_page_cache(folder: Path) -> None:
    """Leaves little memory free, as on a broker that has run for a while.

    A hypervisor takes free memory back and gives it anew page by page, which costs whoever touches
    it first more than the copy itself: 2.7 CPU-s/GB against 0.25 on one machine. Pages of the cache
    that are reclaimed cost neither side anything. The file is sparse: nothing is read from disk.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    spare = int(fields["MemFree"].split()[0]) * 1024 - FREE_BYTES
    if spare < FREE_BYTES:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="filler-", delete=False) as file:
        file.truncate(spare)
        scratch = bytearray(1 << 20)
        while file.raw.readinto(scratch):
            pass


def warm_up(bench: Bench, rows: Sequence[Row], seconds: float) -> None:
    if not any(row.warms for row in rows):
        return
    say(f"warming up {bench.broker.name} for {seconds:.0f} s")
    small = replace(bench, scale=bench.scale / 5)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for row in rows:
            if row.warms:
                row.run(small)


@dataclass
class Run:
    """What a run has found so far, and what failed."""

    samples: Samples
    save: Callable[[], None]
    failed: dict[str, str]
    """Of a row, why it has no figure of this run, or not all of them."""

    def rounds(self, benches: dict[str, Bench], rows: Sequence[Row], pairs: int) -> None:
        """Saves after every row, so that a run cut short leaves what it had."""
        prepared = [row for row in rows if self._prepare(benches, row)]
        for pair in range(pairs):
            order = list(benches) if pair % 2 == 0 else list(reversed(benches))
            for row in prepared:
                if row.key in self.failed or (pair and row.once):
                    continue
                for side in order:
                    with self._telling(row):
                        self._measure(row, side, benches[side], pair)
                self.save()

    def _prepare(self, benches: dict[str, Bench], row: Row) -> bool:
        if row.prepare is not None:
            with self._telling(row):
                for settle in [row.prepare(bench) for bench in benches.values()]:
                    settle()
        return row.key not in self.failed

    def _measure(self, row: Row, side: str, bench: Bench, pair: int) -> None:
        fill_page_cache(bench.folder)
        began = time.monotonic()
        figures = row.run(bench)
        told = [metric for metric in row.metrics if metric.name in figures]
        for metric in told:
            series = self.samples.setdefault(row.key, {}).setdefault(metric.name, {})
            series.setdefault(side, []).append(figures[metric.name])
        shown = ", ".join(f"{report.number(figures[m.name])} {m.unit}" for m in told)
        took = time.monotonic() - began
        say(f"round {pair + 1} {row.key:17} {bench.broker.name:13} {took:4.0f} s: {shown}")

    @contextlib.contextmanager
    def _telling(self, row: Row) -> Iterator[None]:
        """One row that fails costs no other its figures, and is not run again."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failed[row.key] = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"{row.key} failed: {self.failed[row.key]}")


def main() -> None:
    wanted = arguments()
    wanted.out.mkdir(parents=True, exist_ok=True)
    described = f"{report.machine()}; Scriba {report.commit()}"  # before a page that is written
    scale = 0.125 if wanted.quick else wanted.scale
    hurry = 0.1 if wanted.quick else 1.0
    facts = {
        "warm": WARM_SECONDS * hurry,
        "warm_scriba": WARM_SCRIBA_SECONDS * hurry,
        "pairs": wanted.pairs,
    }
    kept = wanted.out / "results.json"
    samples: Samples = json.loads(kept.read_text()) if wanted.keep and kept.exists() else {}
    for key in wanted.rows:
        samples.pop(key, None)
    served = [row for row in BOTH_UP if row.key in wanted.rows]
    alone = [row for row in LATER if row.key in wanted.rows]
    clustered = [row for row in CLUSTERED if row.key in wanted.rows]
    later = [row for row in CLUSTERED_LATER if row.key in wanted.rows]
    began = time.monotonic()

    def save() -> None:
        lines = report.judge([row for row in ROWS if row.key in samples], samples)
        explained = report.read_explained(HERE / "explained.md")
        about = (HERE / "about.md").read_text()
        if wanted.keep:
            about = (HERE / "kept.md").read_text() + "\n" + about
        page = wanted.out / "RESULTS.md"
        report.write(page, described, lines, configurations, facts, explained, run.failed, about)
        (wanted.out / "results.json").write_text(json.dumps(samples, indent=1) + "\n")

    run = Run(samples, save, {})
    with both(wanted.targets, scale, bool(clustered or later)) as benches:
        configurations = {b.broker.name: b.broker.configuration() for b in benches.values()}
        for bench in benches.values():
            if (cluster := bench.cluster) is not None:
                configurations[f"{cluster.name}, each of three nodes"] = cluster.configuration()

        def warmed(rows: Sequence[Row]) -> None:
            fill_page_cache(benches[KAFKA].folder)
            warm_up(benches[KAFKA], rows, facts["warm"])
            warm_up(benches[SCRIBA], rows, facts["warm_scriba"])
            run.rounds(benches, rows, wanted.pairs)

        if served:
            with contextlib.ExitStack() as stack:
                for bench in benches.values():
                    stack.enter_context(running(bench.broker))
                warmed(served)
        run.rounds(benches, alone, wanted.pairs)
        if clustered:
            with contextlib.ExitStack() as stack:
                for bench in benches.values():
                    assert bench.cluster is not None
                    stack.enter_context(clusters.running(bench.cluster))
                warmed(clustered)
        run.rounds(benches, later, wanted.pairs)
    say("\n" + report.table(report.judge([*served, *alone, *clustered, *later], samples)))
    say(f"{time.monotonic() - began:.0f} s; written to {wanted.out / 'RESULTS.md'}")
    if run.failed:
        sys.exit(f"failed: {', '.join(run.failed)}")


if __name__ == "__main__":
    main()
