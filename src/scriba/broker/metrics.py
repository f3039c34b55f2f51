"""What a node counts, in the text format of Prometheus, and the small HTTP server that tells it.

Names are those under which existing dashboards ask for Kafka's; what Kafka does not have begins
with `scriba_`. Nothing is collected beforehand: the numbers are read when somebody asks.

A scraper gets one answer for each connection. It has `PATIENCE_S` to ask, and only so many may ask
at once, so that whoever forgets about a connection costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.settings.metrics_keys import metrics_endpoint

if TYPE_CHECKING:
    from scriba.broker.node import Node
    from scriba.runtime.ports import Listener

MOST_ASKERS: Final = 16
MOST_REQUEST_BYTES: Final = 8192
PATIENCE_S: Final = 10.0
_END: Final = b"\r\n\r\n"


class Sample(NamedTuple):
    name: str
    value: float
    help: str
    labels: str = ""

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def render(node: Node) -> str:
    """All numbers of a node; samples of one name stand together."""
    lines: list[str] = []
    told = ""
    for sample in _samples(node):
        if sample.name != told:
            told = sample.name
            lines.append(f"# HELP {told} {sample.help}")
            lines.append(f"# TYPE {told} {sample.type}")
        lines.append(f"{told}{sample.labels} {sample.value}")
    return "\n".join(lines) + "\n"


def _samples(node: Node) -> Iterator[Sample]:
    yield from _traffic(node)
    yield from _requests(node)
    yield from _replicas(node)
    yield from _cleaner(node)
    yield from _coordinators(node)


def _traffic(node: Node) -> Iterator[Sample]:
    counters, network = node.counters, node.server.counters
    topics = "kafka_server_brokertopicmetrics_"
    yield Sample(f"{topics}messagesin_total", counters.messages_in, "Records appended.")
    yield Sample(f"{topics}bytesin_total", counters.topic_bytes_in, "Bytes of record batches in.")
    yield Sample(
        f"{topics}bytesout_total", counters.topic_bytes_out, "Bytes of record batches out."
    )
    yield Sample(
        f"{topics}failedproducerequests_total", counters.failed_produce, "Refused partitions."
    )
    yield Sample(f"{topics}failedfetchrequests_total", counters.failed_fetch, "Refused partitions.")
    yield Sample("scriba_network_bytesin_total", network.bytes_in, "Bytes received.")
    yield Sample("scriba_network_bytesout_total", network.bytes_out, "Bytes sent.")
    yield Sample("scriba_network_connections", node.server.connections, "Open connections.")
    yield Sample(
        "scriba_network_kept_views_total",
        node.server.pool.kept_views,
        "Receive buffers lost to a view that outlived its request: a defect.",
    )


def _requests(node: Node) -> Iterator[Sample]:
    table = [api for api in node.dispatch.table.values() if api.count]
    for api in table:
        yield Sample(
            "kafka_network_requestmetrics_requests_total",
            api.count,
            "Requests, by API.",
            f'{{request="{api.name}"}}',
        )
    for api in table:
        yield Sample(
            "kafka_network_requestmetrics_errors_total",
            api.errors,
            "Requests refused as a whole, by API.",
            f'{{request="{api.name}"}}',
        )
    for api in table:
        yield Sample(
            "kafka_network_requestmetrics_large_total",
            api.large,
            "Requests of so many elements that they were handled in slices, by API.",
            f'{{request="{api.name}"}}',
        )


def _replicas(node: Node) -> Iterator[Sample]:
    name = "kafka_server_replicamanager_"
    count = leaders = lacking = 0
    for partition in node.replicas:
        count += 1
        leader = partition.leader
        if leader is not None:
            leaders += 1
            lacking += len(leader.isr) < len(leader.replicas)
    yield Sample(f"{name}partitioncount", count, "Partitions hosted here.")
    yield Sample(f"{name}leadercount", leaders, "Partitions led from here.")
    yield Sample(
        f"{name}underreplicatedpartitions", lacking, "Led from here with replicas out of sync."
    )
    offline = sum(directory.offline for directory in node.replicas.dirs)
    yield Sample(
        "kafka_log_logmanager_offlinelogdirectorycount", offline, "Log directories that failed."
    )
    yield Sample(
        "scriba_retention_paused",
        int(node.aging.paused),
        "1 while the clock is in doubt and nothing is deleted for its age.",
    )
    yield Sample(
        "scriba_clock_ahead_seconds",
        node.aging.watch.jump_ms / 1000,
        "How far the clock in doubt is ahead of what is believed.",
    )
    yield Sample(
        "scriba_storage_refused_writes_total",
        node.counters.refused_writes,
        "Writes that a device did not take, most likely for lack of room.",
    )


def _cleaner(node: Node) -> Iterator[Sample]:
    gauges, counters = node.cleaning.gauges, node.counters
    since = node.world.clock.mono_ms() - gauges.last_run_ms if gauges.last_run_ms >= 0 else -1
    manager, cleaner = "kafka_log_logcleanermanager_", "kafka_log_logcleaner_"
    yield Sample(
        f"{manager}max_dirty_percent",
        gauges.max_dirty_percent,
        "Of the dirtiest log that was due at the last look.",
    )
    yield Sample(f"{manager}time_since_last_run_ms", since, "Since the last look; -1 before it.")
    yield Sample(
        f"{manager}uncleanable_partitions_count",
        gauges.uncleanable_partitions_count,
        "Partitions that compaction leaves alone for damage.",
    )
    yield Sample(f"{manager}uncleanable_bytes", gauges.uncleanable_bytes, "Their size.")
    yield Sample(
        f"{cleaner}max_compaction_delay_secs",
        gauges.max_compaction_delay_ms / 1000,
        "How far a log is beyond max.compaction.lag.ms.",
    )
    yield Sample(f"{cleaner}max_clean_time_secs", gauges.max_clean_time_ms / 1000, "The longest.")
    yield Sample(
        f"{cleaner}cleaner_recopy_percent",
        gauges.cleaner_recopy_percent,
        "What the last pass wrote of what it read.",
    )
    yield Sample(
        f"{cleaner}max_buffer_utilization_percent",
        gauges.max_buffer_utilization_percent,
        "How full the map of keys was in the last pass.",
    )
    yield Sample("scriba_cleaner_in_progress", gauges.in_progress, "Logs under compaction now.")
    yield Sample("scriba_cleaner_logs_total", counters.compactions, "Logs compacted.")
    yield Sample("scriba_cleaner_failed_total", counters.failed_compactions, "Given up or put off.")
    yield Sample(
        "scriba_cleaner_read_bytes_total", counters.compaction_bytes_read, "Read by cleaners."
    )
    yield Sample(
        "scriba_cleaner_written_bytes_total",
        counters.compaction_bytes_written,
        "Written by cleaners.",
    )


def _coordinators(node: Node) -> Iterator[Sample]:
    both = (node.group_coordinators, node.txn_coordinators)
    for name, text in (
        ("loads", "Partitions of a coordinator's topic that were loaded."),
        ("records_appended", "Records that coordinators stored."),
        ("failures", "Coordinators that had to be built again."),
    ):
        for shards in both:
            value = getattr(shards.counts, name)
            yield Sample(
                f"scriba_coordinator_{name}_total", value, text, f'{{topic="{shards.topic}"}}'
            )


class MetricsServer:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._listener: Listener | None = None
        self._askers: dict[_Asker, None] = {}

    @property
    def port(self) -> int | None:
        return None if self._listener is None else self._listener.port

    def start(self) -> None:
        """Listens, if an address is set. OSError where it cannot be taken."""
        endpoint = metrics_endpoint(self._node.settings.scriba_metrics_listener)
        if endpoint is not None:
            self._listener = self._node.world.net.listen(endpoint.host, endpoint.port, self._accept)

    def _accept(self, stream: Stream) -> None:
        if len(self._askers) >= MOST_ASKERS:
            stream.close()
        else:
            self._askers[_Asker(self, stream)] = None

    def answer(self, request: bytes) -> bytes:
        line = request.split(b"\r\n", 1)[0].split(b" ")
        if len(line) != 3 or line[0] not in (b"GET", b"HEAD"):
            return _answer("405 Method Not Allowed", "only GET is served\n")
        if line[1].split(b"?", 1)[0] != b"/metrics":
            return _answer("404 Not Found", "see /metrics\n")
        whole = _answer("200 OK", render(self._node))
        return whole if line[0] == b"GET" else whole[: whole.index(_END) + len(_END)]

    def forget(self, asker: _Asker) -> None:
        self._askers.pop(asker, None)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for asker in tuple(self._askers):
            asker.close()


def _answer(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


class _Asker:
    """One connection: a request, an answer, the end."""

    def __init__(self, server: MetricsServer, stream: Stream) -> None:
        self._server = server
        self._stream = stream
        self._asked = bytearray()
        self._left = memoryview(b"")
        self._alarm = asyncio.get_running_loop().call_later(PATIENCE_S, self.close)
        stream.want(self._on_readable, None)

    def _on_readable(self) -> None:
        room = memoryview(bytearray(MOST_REQUEST_BYTES))
        try:
            n = self._stream.recv_into(room)
        except OSError:
            n = EOF
        if n == WOULD_BLOCK:
            return
        if n == EOF:
            self.close()
            return
        self._asked += room[:n]
        if _END in self._asked:
            self._left = memoryview(self._server.answer(bytes(self._asked)))
            self._send()
        elif len(self._asked) > MOST_REQUEST_BYTES:
            self.close()

    def _send(self) -> None:
        try:
            while self._left:
                n = self._stream.send((self._left,))
                if n == WOULD_BLOCK:
                    self._stream.want(None, self._send)
                    return
                self._left = self._left[n:]
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        self._alarm.cancel()
        self._stream.close()
        self._server.forget(self)
