"""Writes docs/metrics.md and docs/events.md from the declarations of metrics and events."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scriba.broker.metrics.exposition import SECTIONS
from scriba.broker.metrics.http import EVENTS_AT_ONCE
from scriba.broker.observe.counters import CLOSE_REASONS, REFUSAL_REASONS
from scriba.broker.observe.events import KEPT, LINES_PER_MINUTE
from scriba.events import EventKind
from scriba.pipelines.inventory.metrics import FAMILIES
from scriba.prometheus import Family

DOCS = Path(__file__).resolve().parents[1] / "docs"
METRICS_PAGE = DOCS / "metrics.md"
EVENTS_PAGE = DOCS / "events.md"

METRICS_HEAD = """\
# Metrics

<!-- Written by `make docs` from the declarations in src/scriba; do not edit. -->

A node counts as it works and tells the numbers to whoever asks. Give it an address, and it answers
in the text format of Prometheus:

```sh
scriba up --set scriba.metrics.listener=http://127.0.0.1:9404 &
curl -s http://127.0.0.1:9404/metrics
```

Nobody is asked who they are, so an address that other machines reach needs
`scriba.allow.insecure.bind=true`. Without the setting nothing listens. The same address tells the
node's latest [events](events.md).

Names are those that the usual JMX exporter gives to Kafka's metrics, so that dashboards find them;
`scriba_` is what Kafka does not have. Counters begin at zero with each start of the node.
"""

REASONS = """
Why a connection ended, in `scriba_connections_closed_total`:

| `reason` | |
|---|---|
"""

REFUSALS = """
Which limit refused one, in `scriba_connections_refused_total`:

| `reason` | |
|---|---|
"""

INVENTORY = """
## Inventory service

What `GET /metrics` of the [inventory](inventory.md) tells.
"""

EVENTS_HEAD = f"""\
# Events

<!-- Written by `make docs` from the declarations in src/scriba/events.py; do not edit. -->

An event is something that happens seldom and that an operator wants to know of. Each is

- *logged* under `scriba.events`, at the level of its kind, as `kind: what it is about: text`.
  `scriba up` shows warnings and errors; `scriba up -v` shows the rest as well. Kinds that repeat
  are told once a minute about the same thing, with how many there were, and no kind gets more than
  {LINES_PER_MINUTE} lines a minute;
- *counted*, each single one, in `scriba_events_total{{kind="..."}}` ([metrics](metrics.md)). An
  alert on the kinds of level *error* is a good beginning;
- *kept*, the latest {KEPT} of level *info* and the latest {KEPT} above it, and told as JSON at the
  address of the metrics:

```sh
scriba up --set scriba.metrics.listener=http://127.0.0.1:9404 &
curl -s 'http://127.0.0.1:9404/events?since=0'
```

The answer has `events`, oldest first, each with `number`, `time_ms` (Unix time), `kind`, `level`,
`about`, `text` and `remedy`; `next`, the number to ask with as `since` the next time; and `lost`,
how many in between are no longer kept. It has at most {EVENTS_AT_ONCE} events, or `limit` of them.
Numbers begin again when the node starts; whoever asks with a number that there has not been yet is
told from the beginning.

## Kinds

| Kind | Level | What happened | What to do |
|---|---|---|---|
"""


def metrics_page() -> str:
    parts = [METRICS_HEAD]
    for title, section in SECTIONS.items():
        parts += [f"\n## {title}\n", *table(metric.family for metric in section)]
        if title == "Connections":
            parts += [REASONS, *reasons(CLOSE_REASONS), REFUSALS, *reasons(REFUSAL_REASONS)]
    return "".join([*parts, INVENTORY, *table(FAMILIES)])


def table(families: Iterable[Family]) -> Iterator[str]:
    yield "\n| Name | Type | Labels | What it tells |\n|---|---|---|---|\n"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.type.value} | {labels} | {family.help} |\n"


def reasons(declared: Mapping[Any, str]) -> Iterator[str]:
    for reason, meaning in declared.items():
        yield f"| `{reason}` | {meaning} |\n"


def events_page() -> str:
    lines = [
        f"| `{kind.label}` | {logging.getLevelName(kind.level).lower()} "
        f"| {kind.meaning} | {kind.remedy} |\n"
        for kind in EventKind
    ]
    return "".join([EVENTS_HEAD, *lines])


if __name__ == "__main__":
    for page, text in ((METRICS_PAGE, metrics_page()), (EVENTS_PAGE, events_page())):
        page.write_text(text, "utf-8")
        sys.stdout.write(f"wrote {page.relative_to(Path.cwd())}\n")
