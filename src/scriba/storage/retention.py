"""What to delete, decided from facts alone.

Whole segments go, oldest first, and only below the high watermark: those before the log's start,
those over the size limit, and those whose newest record is too old. Age is told by the wall clock,
which can jump; a jump must not wipe a log, so a `ClockWatch` is asked first whether to believe it.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from scriba.instant import Instant


class Reason(enum.StrEnum):
    START = "before the start of the log"
    SIZE = "over retention.bytes"
    AGE = "older than retention.ms"


class SegmentFacts(NamedTuple):
    end_offset: int
    size: int


def before_start(segments: Sequence[SegmentFacts], start_offset: int) -> int:
    """How many segments lie before the start of the log; the last one never does."""
    count = 0
    while count < len(segments) - 1 and segments[count].end_offset <= start_offset:
        count += 1
    return count


def over_size(segments: Sequence[SegmentFacts], retention_bytes: int, high_watermark: int) -> int:
    """How many can go without leaving less than `retention_bytes`.

    An active segment that is empty stays: another one would take its place.
    """
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        excess -= segment.size
        is_new = not segment.size and segment is segments[-1]
        if excess < 0 or is_new or segment.end_offset > high_watermark:
            break
        count += 1
    return count


def expired(newest_ms: int, retention_ms: int, now: Instant) -> bool:
    """Whether a segment whose newest record has this timestamp is too old."""
    return retention_ms >= 0 and now.wall_ms - newest_ms > retention_ms
