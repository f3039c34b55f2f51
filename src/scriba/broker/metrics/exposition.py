"""Every metric of a node, by section: rendered as Prometheus text, and told of in the docs.

Names are those under which dashboards ask for Kafka's, as the usual JMX exporter makes them; what
Kafka does not have begins with `scriba_`. Nothing is collected beforehand: the numbers are read
when somebody scrapes. The tables of docs/metrics.md are made from `METRICS`.
"""

from __future__ import annotations

from typing import Final

from scriba import prometheus
from scriba.broker.metrics.families import (
    clients,
    compaction,
    controller,
    coordinators,
    process,
    replicas,
)
from scriba.broker.metrics.scrape import Metric, Observed, Scrape


def render(node: Observed) -> str:
    """All numbers of a node."""
    scrape = Scrape(node)
    return prometheus.render((family, read(scrape)) for family, read in METRICS)


SECTIONS: Final[dict[str, tuple[Metric, ...]]] = {
    "Records": (*clients.records(),),
    "Requests": (*clients.requests(),),
    "Connections": (*clients.connections(),),
    "The node": (*process.process(),),
    "The controller and its brokers": (*controller.controller(),),
    "Partitions and storage": (*replicas.replicas(),),
    "Replication": (*replicas.replication(),),
    "Compaction": (*compaction.compaction(),),
    "Coordinators": (*coordinators.coordinators(),),
}
"""As the page has them."""

METRICS: Final = tuple(metric for section in SECTIONS.values() for metric in section)
"""In the order in which they are told."""
