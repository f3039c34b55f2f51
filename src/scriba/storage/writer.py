"""The writing end of a log: batches go into the active segment, whole or not at all.

A write that fails may have left part of a batch behind. That part is cut off at once, or, on a
disk that takes no writes at all, before the next batch: until then it lies beyond the end of the
segment, where nobody reads and recovery would cut it.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.records.header import LOG_OVERHEAD, BatchHeader
from scriba.storage.durability import Durability
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.results import FULL
from scriba.storage.segments.index import MAX_RELATIVE_OFFSET
from scriba.storage.segments.segment import Segment
from scriba.storage.segments.segments import Segments

if TYPE_CHECKING:
    from scriba.storage.log import Log

logger = logging.getLogger(__name__)

_SNAPSHOT_EVERY: Final = 64 << 20


class Writer:
    __slots__ = ("_durability", "_log", "_segments", "_snapshot_at", "_snapshots", "torn")

    def __init__(
        self, log: "Log", segments: Segments, snapshots: Snapshots, durability: Durability
    ) -> None:
        self._log = log
        self._segments = segments
        self._snapshots = snapshots
        self._durability = durability
        self.torn = False
        """Whether part of a batch that could not be written is still in the file."""
        self._snapshot_at = segments.active.size + _SNAPSHOT_EVERY
        """The size of the active segment, which begins with one, from which on a producer snapshot
        is due."""

    def roll(self, base_offset: int, now: Instant) -> None:
        """Begins a segment; the old one is durable before the flushed end passes its own."""
        self.trim()
        self._durability.rolled(self._segments.roll(base_offset, now.wall_ms))
        self.take_snapshot(base_offset)

    def roll_if_due(self, base_offset: int, now: Instant) -> bool:
        """Rolls a segment that was begun too long ago.

        By the clock, not by timestamps: a topic filled with old records is not old itself.
        """
        active = self._segments.active
        if not active.size or now.wall_ms - active.created_ms <= active.limits.age_ms:
            return False
        try:
            active.open_for_append()
            self.roll(base_offset, now)
        except OSError as error:
            raise self._log.refused("cannot begin a segment", error) from error
        return True

    def snapshot_if_due(self, offset: int) -> None:
        """So that a start does not have to read more than so many bytes for producers alone."""
        if self._segments.active.size >= self._snapshot_at:
            self.take_snapshot(offset)

    def take_snapshot(self, offset: int) -> None:
        """Writes down what is known of producers at `offset`.

        A full device costs the next start more reading; the next flush tries again, also where
        an earlier one of many producers is not written yet.
        """
        self._snapshot_at = self._segments.active.size + _SNAPSHOT_EVERY
        try:
            if not self._snapshots.take(self._log.producers, offset, self._segments):
                self._snapshot_at = 0
        except OSError as error:
            self._snapshot_at = 0
            if error.errno not in FULL:
                raise
            self._log.refused("cannot take a snapshot of its producers", error)

    def truncated(self) -> None:
        """The log ends earlier now, perhaps before its last snapshot."""
        self.torn = False
        self._snapshot_at = min(self._snapshot_at, self._segments.active.size + _SNAPSHOT_EVERY)

    def segment_for(
        self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now: Instant
    ) -> Segment:
        """The segment for a batch of ours that the active one may not take as it is."""
        if size > self._segments.active.limits.size:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)
        segment = self._make_room(size, base_offset, base_offset, last_offset, max_timestamp, now)
        if base_offset != segment.next_offset:
            segment.recent.clear()
        return segment

    def fits(self, header: BatchHeader, pending: int) -> bool:
        """Whether a batch can go into the active segment behind `pending` bytes to come."""
        segment = self._segments.active
        return (
            segment.size + pending + header.length + LOG_OVERHEAD <= segment.limit
            and header.max_timestamp <= segment.roll_after
            and header.base_offset + header.last_offset_delta <= segment.max_offset
        )

    def make_room(self, header: BatchHeader, end_offset: int, now: Instant) -> None:
        """Sees to it that the active segment takes a batch from a leader."""
        self._make_room(
            header.size,
            end_offset,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            now,
        )

    def write_run(self, view: memoryview, run: Sequence[tuple[int, BatchHeader]]) -> Segment:
        """Writes batches that fit, each at its position in `view`, with one call."""
        segment = self._segments.active
        start = segment.size
        try:
            (segment.file or segment.open_file()).pwrite(view, start)
        except OSError as error:
            raise self.not_written(segment, error) from error
        for position, header in run:
            base_offset = header.base_offset
            segment.note(
                start + position,
                header.length + LOG_OVERHEAD,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        return segment

    async def populate(self, size: int) -> None:
        """Has memory ready for so many bytes behind the last batch, for which the file becomes
        longer. A device that does not take that will not take the batch, and tell then."""
        segment = self._segments.active
        file, position = segment.open_file(), segment.size
        with suppress(OSError):
            if file.size() < position + size:
                file.truncate(position + size)
                segment.padded = True
            await file.populate(position, size)

    @property
    def has_tail(self) -> bool:
        """Whether the file goes on behind the last batch."""
        return self.torn or self._segments.active.padded

    def trim(self) -> None:
        """Cuts off what lies behind the last batch: part of one, or room for more of them.

        OSError while the disk does not let us.
        """
        if self.has_tail:
            segment = self._segments.active
            segment.open_file().truncate(segment.size)
            segment.padded = self.torn = False

    def _make_room(
        self,
        size: int,
        end_offset: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now: Instant,
    ) -> Segment:
        """The segment that takes a batch: the active one if it still may, or else a new one."""
        segment = self._segments.active
        try:
            if not self._log.has_files:
                self._log.make_files()
            if self.torn:
                self.trim()
            if segment.limit < 0:
                segment.open_for_append()
            if segment.is_full(size, last_offset, max_timestamp, now.wall_ms):
                # Segments leave no gap between them, so that recovery can tell what it lost.
                far = last_offset - end_offset > MAX_RELATIVE_OFFSET
                self.roll(base_offset if far else end_offset, now)
        except OSError as error:
            raise self._log.refused("cannot begin a segment", error) from error
        return self._segments.active

    def not_written(self, segment: Segment, error: OSError) -> KafkaError:
        segment.limit = -1
        self.torn = True
        try:
            self.trim()
        except OSError:
            logger.warning("%r: part of a batch stays until the disk takes writes", self._log)
        return self._log.refused("cannot be written", error)
