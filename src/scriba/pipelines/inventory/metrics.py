"""What a service tells Prometheus: plain numbers, put into text when they are asked for."""

from collections.abc import Iterator, Mapping
from typing import Final

from scriba import prometheus
from scriba.pipelines.inventory.service import NotCaughtUp, Service
from scriba.prometheus import Family, Value, counter, gauge

Requests = Mapping[tuple[str, int], int]
"""Answers of the HTTP service by path and status."""

CAUGHT_UP: Final = gauge("inventory_caught_up", "1 when look-ups are answered.")
FAULTY: Final = gauge("inventory_faulty", "1 when the books are damaged.")
LAG: Final = gauge("inventory_lag_records", "Records not read yet.")
READ: Final = counter("inventory_records_read_total", "Records read since the start.")
ITEMS: Final = gauge("inventory_items", "Items in the books.")
EVENTS: Final = gauge("inventory_events", "Events in the books.")
END_OFFSET: Final = gauge(
    "inventory_end_offset", "Up to where a partition was read.", "topic", "partition"
)
ACTIVE: Final = gauge("inventory_active_writer", "1 when this service decides.")
TAKEOVERS: Final = counter(
    "inventory_takeovers_total", "How often this service became the active writer."
)
COMMANDS: Final = counter("inventory_commands_total", "Commands answered here.", "kind", "outcome")
REQUESTS: Final = counter("inventory_requests_total", "Requests answered.", "path", "status")

FAMILIES: Final = (
    CAUGHT_UP,
    FAULTY,
    LAG,
    READ,
    ITEMS,
    EVENTS,
    END_OFFSET,
    ACTIVE,
    TAKEOVERS,
    COMMANDS,
    REQUESTS,
)


def render(service: Service, requests: Requests) -> str:
    return prometheus.render(_values(service, requests))


def _values(service: Service, requests: Requests) -> Iterator[tuple[Family, Value]]:
    follower, lead = service.follower, service.lead
    try:
        service.check()
        ready = True
    except NotCaughtUp:
        ready = False
    counts = service.store.counts()
    yield CAUGHT_UP, ready
    yield FAULTY, follower.fault is not None
    yield LAG, follower.lag()
    yield READ, follower.records
    yield ITEMS, counts["items"]
    yield EVENTS, counts["events"]
    yield END_OFFSET, {(w.topic, str(w.partition)): n for w, n in follower.positions.items()}
    yield ACTIVE, service.writer is not None
    yield TAKEOVERS, lead.takeovers if lead is not None else 0
    yield COMMANDS, {(kind, outcome): n for (kind, outcome), n in service.outcomes.items()}
    yield REQUESTS, {(path, str(status)): n for (path, status), n in requests.items()}
