"""What a node tells of itself: plain counters, and a ring of the latest events.

Both belong to one node and are written by its loop alone, so two nodes fit in one process and
nothing is locked. They are rendered when somebody asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

EVENTS_KEPT: Final = 1024

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
    "displaced": "idle longest when `max.connections` was reached",
    "slow": "the peer did not take its answers while others waited for the memory",
    "fault": "a test asked for it",
    "shutdown": "the broker stops",
}
"""Why a connection ended."""

RefusalReason = Literal["max_connections", "max_connections_per_ip"]


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
    fastpath_produces: int = 0
    fastpath_fetches: int = 0
    fastpath_commits: int = 0


def _by_close_reason() -> dict[CloseReason, int]:
    return dict.fromkeys(CLOSE_REASONS, 0)


def _by_refusal_reason() -> dict[RefusalReason, int]:
    return dict.fromkeys(get_args(RefusalReason), 0)


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


class Event(NamedTuple):
    """Something that happens seldom and that an operator wants to know of."""

    number: int
    wall_ms: int
    kind: str
    about: str
    text: str


class Events:
    def __init__(self) -> None:
        self._ring: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._count = 0

    def note(self, wall_ms: int, kind: str, about: str, text: str) -> None:
        self._count += 1
        self._ring.append(Event(self._count, wall_ms, kind, about, text))

    def since(self, number: int = 0) -> list[Event]:
        """Events after `number`, oldest first; a gap in the numbers says that some are gone."""
        return [event for event in self._ring if event.number > number]
