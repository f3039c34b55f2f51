"""The writing end of a log: batches go into the active segment, whole or not at all.

A write that fails may have left part of a batch behind. That part is cut off at once, or, on a
disk that takes no writes at all, before the next batch: until then it lies beyond the end of the
segment, where nobody reads and recovery would cut it.
"""

import logging
from collections.abc import Callable, Sequence

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.records.header import BatchHeader
from scriba.storage.index import MAX_RELATIVE_OFFSET
from scriba.storage.results import storage_error
from scriba.storage.segment import Segment
from scriba.storage.segments import Segments

logger = logging.getLogger(__name__)


class Writer:
    __slots__ = ("_name", "_roll", "_segments", "torn")

    def __init__(self, segments: Segments, roll: Callable[[int, Instant], None], name: str) -> None:
        self._segments = segments
        self._roll = roll
        """Begins a new active segment at an offset."""
        self._name = name
        self.torn = False
        """Whether part of a batch that could not be written is still in the file."""

    def write(
        self,
        view: memoryview,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now: Instant,
    ) -> Segment:
        """Writes one batch that goes on where the log ends, with one call."""
        segment = self._segments.active
        size = len(view)
        if (
            segment.size + size > segment.limit
            or max_timestamp > segment.roll_after
            or last_offset > segment.max_offset
        ):
            if size > segment.limits.size:
                raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)
            segment = self._make_room(
                size, base_offset, base_offset, last_offset, max_timestamp, now
            )
        try:
            segment.append(view, base_offset, last_offset, max_timestamp)
        except OSError as error:
            raise self._not_written(segment, error) from error
        return segment

    def fits(self, header: BatchHeader, pending: int) -> bool:
        """Whether a batch can go into the active segment behind `pending` bytes to come."""
        segment = self._segments.active
        return (
            segment.size + pending + header.size <= segment.limit
            and header.max_timestamp <= segment.roll_after
            and header.last_offset <= segment.max_offset
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
            segment.open_file().pwritev((view,), start)
        except OSError as error:
            raise self._not_written(segment, error) from error
        for position, header in run:
            segment.note(
                start + position,
                header.size,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        return segment

    def remove_torn(self) -> None:
        """OSError while the disk does not let us."""
        if self.torn:
            segment = self._segments.active
            segment.open_file().truncate(segment.size)
            self.torn = False

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
            self.remove_torn()
            if segment.limit < 0:
                segment.wake()
            if segment.is_full(size, last_offset, max_timestamp, now.wall_ms):
                # Segments leave no gap between them, so that recovery can tell what it lost.
                far = last_offset - end_offset > MAX_RELATIVE_OFFSET
                self._roll(base_offset if far else end_offset, now)
        except OSError as error:
            logger.error("%s: cannot begin a segment: %s", self._name, error)
            raise storage_error(f"{self._name} cannot be written: {error}") from error
        return self._segments.active

    def _not_written(self, segment: Segment, error: OSError) -> KafkaError:
        logger.error("%s: cannot append: %s", self._name, error)
        segment.limit = -1
        self.torn = True
        try:
            self.remove_torn()
        except OSError:
            logger.warning("%s: part of a batch stays until the disk takes writes", self._name)
        return storage_error(f"{self._name} cannot be written: {error}")
