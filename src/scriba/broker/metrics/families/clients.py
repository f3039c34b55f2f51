"""What clients send and receive: records, requests, connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scriba.broker.metrics.scrape import Metric
from scriba.prometheus import counter, gauge

_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_REQUESTS: Final = "kafka_network_requestmetrics_"


def records() -> Iterator[Metric]:
    yield Metric(
        counter(f"{_TOPICS}messagesin_total", "Records that producers sent and the log took."),
        lambda s: s.counters.messages_in,
    )
    yield Metric(
        counter(f"{_TOPICS}bytesin_total", "Bytes of record batches from producers."),
        lambda s: s.counters.topic_bytes_in,
    )
    yield Metric(
        counter(f"{_TOPICS}bytesout_total", "Bytes of record batches to consumers."),
        lambda s: s.counters.topic_bytes_out,
    )
    yield Metric(
        counter(
            f"{_TOPICS}failedproducerequests_total", "Partitions of Produce answered with an error."
        ),
        lambda s: s.counters.failed_produce,
    )
    yield Metric(
        counter(
            f"{_TOPICS}failedfetchrequests_total",
            "Partitions of Fetch, and whole fetches of a session, answered with an error.",
        ),
        lambda s: s.counters.failed_fetch,
    )
    yield Metric(
        counter(
            "scriba_produce_duplicates_total",
            "Batches of idempotent producers that were in the log already.",
        ),
        lambda s: s.counters.duplicates,
    )
    yield Metric(
        counter(
            "scriba_page_cache_misses_total",
            "Reads of a log that waited for the device off the loop, for a lookup or to send.",
            "stage",
        ),
        lambda s: {
            "lookup": s.counters.page_cache_misses,
            "send": s.network.page_cache_misses,
        },
    )


def requests() -> Iterator[Metric]:
    yield Metric(
        counter(f"{_REQUESTS}requests_total", "Requests, by API.", "request"),
        lambda s: s.apis(lambda api: api.count),
    )
    yield Metric(
        counter(f"{_REQUESTS}errors_total", "Requests refused as a whole, by API.", "request"),
        lambda s: s.apis(lambda api: api.errors),
    )
    yield Metric(
        counter(
            "scriba_requests_large_total",
            "Requests of so many elements that they were handled in slices, by API.",
            "request",
        ),
        lambda s: s.apis(lambda api: api.large),
    )
    yield Metric(
        counter(
            "scriba_fastpath_requests_total",
            "Requests that a fast path answered, by API (followers' fetches by themselves); the "
            "rest took the general path.",
            "request",
        ),
        lambda s: {
            "Produce": s.counters.fastpath_produces,
            "Fetch": s.counters.fastpath_fetches,
            "FetchFollower": s.counters.fastpath_replica_fetches,
            "OffsetCommit": s.counters.fastpath_commits,
        },
    )


def connections() -> Iterator[Metric]:
    yield Metric(
        gauge(f"{_SOCKETS}connection_count", "Open connections."),
        lambda s: s.node.server.connections,
    )
    yield Metric(
        counter(f"{_SOCKETS}connection_creation_total", "Connections accepted."),
        lambda s: s.network.accepted,
    )
    yield Metric(
        counter(f"{_SOCKETS}connection_close_total", "Connections ended."),
        lambda s: sum(s.network.closed.values()),
    )
    yield Metric(
        counter(f"{_SOCKETS}incoming_byte_total", "Bytes received."),
        lambda s: s.network.bytes_in,
    )
    yield Metric(
        counter(f"{_SOCKETS}outgoing_byte_total", "Bytes sent."),
        lambda s: s.network.bytes_out,
    )
    yield Metric(
        counter("scriba_connections_closed_total", "Connections ended, by reason.", "reason"),
        lambda s: s.network.closed,
    )
    yield Metric(
        counter(
            "scriba_connections_refused_total",
            "Connections refused, by the limit reached.",
            "reason",
        ),
        lambda s: s.network.refused,
    )
    yield Metric(
        gauge(
            "kafka_network_socketserver_memorypoolused",
            "Bytes of requests in memory: granted to large ones on their way, or worked on.",
        ),
        lambda s: s.node.server.memory.held,
    )
    yield Metric(
        gauge(
            "kafka_network_socketserver_memorypoolavailable",
            "Bytes that are left of `queued.max.request.bytes`.",
        ),
        lambda s: max(s.node.server.memory.limit - s.node.server.memory.held, 0),
    )
    yield Metric(
        counter(
            "scriba_receive_buffers_lost_total",
            "Receive buffers lost to a view that outlived its request: a defect.",
        ),
        lambda s: s.node.server.pool.kept_views,
    )
    yield Metric(
        counter(
            "scriba_scrapes_refused_total",
            "Connections to the metrics listener beyond those served at once.",
        ),
        lambda s: s.counters.scrapes_refused,
    )
