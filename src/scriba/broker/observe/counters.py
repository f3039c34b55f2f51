"""What a node counts: plain numbers, rendered when somebody asks (`metrics`).

They belong to one node and are written by its loop alone, so two nodes fit in one process and
nothing is locked. `tests/unit/broker/observe/test_every_counter.py` walks all of them and fails on
one that nobody moves or nobody renders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from scriba.prometheus import Durations

CloseReason = Literal[
    "peer_closed",
    "broken",
    "malformed",
    "unsupported",
    "too_large",
    "acks_0_failed",
    "failed",
    "idle",
    "displaced",
    "slow",
    "request_memory",
    "fault",
    "shutdown",
]

CLOSE_REASONS: Final[dict[CloseReason, str]] = {
    "peer_closed": "the peer closed it",
    "broken": "the socket failed, or the peer reset it",
    "malformed": "the peer sent what cannot be read",
    "unsupported": "the peer asked for an API or a version that is not served",
    "too_large": "a request, or its answer, exceeds a limit",
    "acks_0_failed": "a Produce with acks=0 failed, and there is no other way to tell",
    "failed": "a defect of the broker; see the log",
    "idle": "nothing was sent or taken for `connections.max.idle.ms`",
    "displaced": "idle longest when `max.connections`, or the limit of open files, was reached",
    "slow": "the peer did not take its answers while others waited for the memory",
    "request_memory": "its request came too slowly while others waited for the memory",
    "fault": "a test asked for it",
    "shutdown": "the broker stops",
}
"""Why a connection ended."""

RefusalReason = Literal["max_connections", "max_connections_per_ip", "open_files"]

REFUSAL_REASONS: Final[dict[RefusalReason, str]] = {
    "max_connections": "`max.connections` is reached, and no connection is idle",
    "max_connections_per_ip": "`max.connections.per.ip`, or the address's override, is reached",
    "open_files": "the limit of open files leaves room for no more, and no connection is idle",
}
"""Which limit refused a connection."""


@dataclass(slots=True)
class Counters:
    messages_in: int = 0
    topic_bytes_in: int = 0
    topic_bytes_out: int = 0
    failed_produce: int = 0
    failed_fetch: int = 0
    duplicates: int = 0
    """Batches of idempotent producers that were in the log already."""
    page_cache_misses: int = 0
    """Lookups of a fetch that had to be read off the loop first."""
    compactions: int = 0
    failed_compactions: int = 0
    compaction_bytes_read: int = 0
    compaction_bytes_written: int = 0
    refused_writes: int = 0
    """Writes that a device did not take, most likely for lack of room."""
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    records_lost: int = 0
    """Committed records that replicas here took away, as their new leader did not have them."""
    unclean_elections: int = 0
    """Partitions that this broker was elected to lead though it may lack acknowledged records."""
    replicas_asked: int = 0
    """Replicas that this controller asked what they have, before an unclean election."""
    replicas_passed_over: int = 0
    """Those of them that did not tell in time."""
    fastpath_produces: int = 0
    fastpath_fetches: int = 0
    fastpath_replica_fetches: int = 0
    fastpath_commits: int = 0
    scrapes_refused: int = 0
    """Connections to the metrics listener beyond what it serves at once."""


def _by_close_reason() -> dict[CloseReason, int]:
    return dict.fromkeys(CLOSE_REASONS, 0)


def _by_refusal_reason() -> dict[RefusalReason, int]:
    return dict.fromkeys(REFUSAL_REASONS, 0)


@dataclass(slots=True)
class NetworkCounters:
    """What the network side did."""

    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    page_cache_misses: int = 0
    """Windows of files that were read off the loop before they were sent."""
    refused: dict[RefusalReason, int] = field(default_factory=_by_refusal_reason)
    closed: dict[CloseReason, int] = field(default_factory=_by_close_reason)


@dataclass(slots=True)
class CoordinatorCounters:
    """What the coordinators over one internal topic did since the node started."""

    loads: Durations = field(default_factory=Durations)
    """How long it took to replay a partition."""
    records_appended: int = 0
    failures: int = 0
    """How often a coordinator had to be built again."""


@dataclass(slots=True)
class CleanerGauges:
    """The state of compaction, as Kafka's metrics of the log cleaner name it."""

    max_dirty_percent: int = 0
    max_compaction_delay_ms: int = 0
    max_buffer_utilization_percent: int = 0
    cleaner_recopy_percent: int = 0
    max_clean_time_ms: int = 0
    last_run_ms: int = -1
    """Monotonic time of the last pass."""
    uncleanable_partitions_count: int = 0
    uncleanable_bytes: int = 0
    in_progress: int = 0
