"""Compaction of a node's logs."""

from typing import Final, NamedTuple

from scriba.instant import Instant
from scriba.settings import NodeSettings, TopicSettings

IDLE_MS: Final = 1_000
"""Time between two looks whether the cleaner was switched on or its settings changed."""


class Share(NamedTuple):
    """What one of the cleaners working at a time may use."""

    map_bytes: int
    map_load: float
    io_bytes: int
    bytes_per_second: float


def share_of(settings: NodeSettings) -> Share:
    threads = settings.log_cleaner_threads
    return Share(
        map_bytes=settings.log_cleaner_dedupe_buffer_size // threads,
        map_load=settings.log_cleaner_io_buffer_load_factor,
        io_bytes=settings.log_cleaner_io_buffer_size // threads,
        bytes_per_second=settings.log_cleaner_io_max_bytes_per_second / threads,
    )


def pause_ms(settings: NodeSettings) -> int:
    """Time between two looks for logs to compact."""
    return settings.log_cleaner_backoff_ms if settings.log_cleaner_enable else IDLE_MS


def horizon(settings: TopicSettings, now: Instant) -> int:
    """Until when a tombstone found now is kept."""
    return now.wall_ms + settings.delete_retention_ms
