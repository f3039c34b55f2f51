"""What a node tells of itself: plain counters, and a ring of the latest events.

Both belong to one node and are written by its loop alone, so two nodes fit in one process and
nothing is locked. They are rendered when somebody asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

EVENTS_KEPT: Final = 1024


@dataclass(slots=True)
class Counters:
    messages_in: int = 0
    topic_bytes_in: int = 0
    topic_bytes_out: int = 0
    failed_produce: int = 0
    failed_fetch: int = 0
    duplicates: int = 0
    compactions: int = 0
    failed_compactions: int = 0
    compaction_bytes_read: int = 0
    compaction_bytes_written: int = 0
    refused_writes: int = 0
    """Writes that a device did not take, most likely for lack of room."""
    short_produces: int = 0
    short_fetches: int = 0
    short_commits: int = 0


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
