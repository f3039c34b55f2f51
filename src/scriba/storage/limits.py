"""When a segment has had enough."""

from typing import NamedTuple

from scriba.records.crc import crc32c
from scriba.settings import TopicSettings
from scriba.storage.segments.index import TIME_ENTRY


class Limits(NamedTuple):
    size: int
    age_ms: int
    entries: int
    """Index entries; one more slot is kept free for the time index's last one."""
    index_interval: int
    preallocate: bool
    """Whether its file has this size from the beginning, as Kafka's then has."""


def limits_of(settings: TopicSettings, directory: str, base_offset: int) -> Limits:
    """What the settings say about the segment with this base offset.

    The jitter that keeps partitions from rolling all at once comes from the segment's name, so
    that it is the same after a restart.
    """
    age_ms = settings.segment_ms
    if "compact" in settings.cleanup_policy:
        # Only sealed segments are compacted: one that waits longer than its records may is late.
        age_ms = min(age_ms, settings.max_compaction_lag_ms)
    spread = min(settings.segment_jitter_ms, age_ms)
    jitter = crc32c(f"{directory}/{base_offset}".encode()) % spread if spread else 0
    return Limits(
        size=settings.segment_bytes,
        age_ms=age_ms - jitter,
        entries=settings.segment_index_bytes // TIME_ENTRY - 1,
        index_interval=settings.index_interval_bytes,
        preallocate=settings.preallocate,
    )
