"""From raw figures to `RESULTS.md`: medians, ranges, ratios, goals and verdicts."""

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Metric, Row

Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""Of one row: metric to broker to the figure of each round."""

SCRIBA, KAFKA = "scriba", "kafka"


@dataclass(frozen=True)
class Line:
    """One metric of one row, judged."""

    row: Row
    metric: Metric
    scriba: Sequence[float]
    kafka: Sequence[float]

    @property
    def ratio(self) -> float | None:
        """None where Kafka does not tell, and of nothing to nothing."""
        theirs = statistics.median(self.kafka) if self.kafka else 0
        return statistics.median(self.scriba) / theirs if theirs else None

    @property
    def met(self) -> bool | None:
        metric = self.metric
        if metric.limit is not None:
            return statistics.median(self.scriba) <= metric.limit
        if metric.goal is None or self.ratio is None:
            return None
        return self.ratio >= metric.goal if metric.higher_is_better else self.ratio <= metric.goal

    @property
    def wanted(self) -> str:
        metric = self.metric
        if metric.limit is not None:
            return f"<= {metric.limit:g} {metric.unit.split()[0]}"
        if metric.goal is None:
            return ""
        return f"{'>=' if metric.higher_is_better else '<='} {metric.goal:g}"

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "**missed**"}[self.met]


def judge(rows: Sequence[Row], samples: Mapping[str, Samples]) -> list[Line]:
    return [
        Line(row, metric, found[SCRIBA], found.get(KAFKA, []))
        for row in rows
        if row.key in samples
        for metric in row.metrics
        if SCRIBA in (found := samples[row.key].get(metric.name, {}))
    ]


def number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))}-{number(max(values))})"


def table(lines: Sequence[Line]) -> str:
    head = "| work | unit | Scriba | Apache Kafka | ratio | goal | verdict |\n"
    head += "|---|---|---|---|---|---|---|\n"
    body = ""
    shown = ""
    for line in lines:
        title = line.row.title if line.row.key != shown else ""
        shown = line.row.key
        ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
        figures = f"{spread(line.scriba)} | {spread(line.kafka)} | {ratio}"
        body += f"| {title} | {line.metric.unit} | {figures} | {line.wanted} | {line.verdict} |\n"
    return head + body


def misses(lines: Sequence[Line], explained: Mapping[str, str]) -> str:
    """Every goal missed, with the reason that `explained.md` gives for its row."""
    keys = dict.fromkeys(line.row.key for line in lines if line.met is False)
    if not keys:
        return ""
    told = [f"- `{key}`: {explained.get(key, 'not explained yet')}\n" for key in keys]
    return "\n## Goals missed\n\n" + "".join(told)


def read_explained(path: Path) -> dict[str, str]:
    """Lines of the form `- key: why`."""
    if not path.exists():
        return {}
    entries = (line[2:].split(":", 1) for line in path.read_text().splitlines() if line[:2] == "- ")
    return {key.strip(" `"): why.strip() for key, why in entries}


def machine() -> str:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return (
        f"{os.cpu_count()} x {cpu}, {memory:.0f} GB, Linux {platform.release()}; "
        f"Python {sys.version.split()[0]}; {java.splitlines()[0] if java else 'no Java'}"
    )


def commit() -> str:
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or "unknown"


METHOD = """\
One load generator (`bench/load.c`) sends the same prepared frames to both brokers over loopback,
one broker at a time; the rounds alternate, and so does who goes first. CPU is user plus system
time of the broker's whole process tree. Kafka was warmed up for {warm:.0f} s with the same work,
Scriba for {warm_scriba:.0f} s. Figures are medians of {pairs} rounds, with the range in brackets,
or of one where a row takes long or does a thing many times over by itself; a ratio is Scriba's
median to Kafka's. Goals stand where the project set one. The page cache is filled before each
measurement, so that neither side pays for memory touched for the first time.
"""


def write(
    path: Path,
    described: str,
    lines: Sequence[Line],
    configurations: Mapping[str, Sequence[str]],
    facts: Mapping[str, float],
    explained: Mapping[str, str],
    failed: Mapping[str, str],
    about: str = "",
) -> None:
    """`described` names machine and commit, `about` how this table came about, `failed` which rows
    it lacks, and why."""
    goals = [line for line in lines if line.met is not None]
    met = sum(bool(line.met) for line in goals)
    text = f"# Scriba and Apache Kafka, side by side\n\n{described}\n\n"
    text += METHOD.format(**facts) + (f"\n{about.strip()}\n" if about else "")
    text += f"\n**{met} of {len(goals)} goals met.**\n\n"
    text += table(lines) + misses(lines, explained)
    if failed:
        text += "\n## Rows that failed\n\n" + "".join(f"- `{k}`: {w}\n" for k, w in failed.items())
    for name, settings in configurations.items():
        text += f"\n## {name}\n\n```\n" + "\n".join(settings) + "\n```\n"
    path.write_text(text)
