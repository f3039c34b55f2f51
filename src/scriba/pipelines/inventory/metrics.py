"""What a service tells Prometheus: plain numbers, put into text when they are asked for."""

from collections.abc import Iterator, Mapping

from scriba.pipelines.inventory.service import NotCaughtUp, Service


def render(service: Service, requests: Mapping[tuple[str, int], int]) -> str:
    return "".join(_lines(service, requests))


def _lines(service: Service, requests: Mapping[tuple[str, int], int]) -> Iterator[str]:
    follower, lead = service.follower, service.lead
    try:
        service.check()
        ready = 1
    except NotCaughtUp:
        ready = 0
    counts = service.store.counts()
    yield from _metric("caught_up", "gauge", "1 when look-ups are answered", {(): ready})
    yield from _metric(
        "faulty", "gauge", "1 when the books are damaged", {(): int(follower.fault is not None)}
    )
    yield from _metric("lag_records", "gauge", "records not read yet", {(): follower.lag()})
    yield from _metric(
        "records_read_total", "counter", "records read since the start", {(): follower.records}
    )
    yield from _metric("items", "gauge", "items in the books", {(): counts["items"]})
    yield from _metric("events", "gauge", "events in the books", {(): counts["events"]})
    yield from _metric(
        "end_offset",
        "gauge",
        "up to where a partition was read",
        {
            (("topic", w.topic), ("partition", w.partition)): n
            for w, n in follower.positions.items()
        },
    )
    yield from _metric(
        "active_writer", "gauge", "1 when it decides", {(): int(service.writer is not None)}
    )
    yield from _metric(
        "takeovers_total",
        "counter",
        "how often it became the active writer",
        {(): lead.takeovers if lead is not None else 0},
    )
    yield from _metric(
        "commands_total",
        "counter",
        "commands answered here",
        {
            (("kind", kind), ("outcome", outcome)): n
            for (kind, outcome), n in service.outcomes.items()
        },
    )
    yield from _metric(
        "requests_total",
        "counter",
        "requests answered",
        {(("path", path), ("status", status)): n for (path, status), n in requests.items()},
    )


def _metric(
    name: str, kind: str, text: str, values: Mapping[tuple[tuple[str, object], ...], int]
) -> Iterator[str]:
    yield f"# HELP inventory_{name} {text}\n# TYPE inventory_{name} {kind}\n"
    for labels, value in values.items():
        inside = ",".join(f'{label}="{_escaped(str(said))}"' for label, said in labels)
        yield f"inventory_{name}{'{' + inside + '}' if inside else ''} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
