"""The segments of a log in their order, the last one active.

Sealed segments that readers use stay open, a few per log; the others cost next to nothing.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from scriba.instant import Instant
from scriba.native import implementation
from scriba.runtime.ports import Disk, Offload
from scriba.storage.directory.removal import Removal
from scriba.storage.limits import Limits
from scriba.storage.producers.state import AbortedTxn
from scriba.storage.results import EMPTY, Empty, Slice
from scriba.storage.retention import SegmentFacts, expired
from scriba.storage.segments.ascent import MOST_HEADERS, readable
from scriba.storage.segments.not_resident import NotResident
from scriba.storage.segments.segment import Segment

_MOST_OPEN: Final = 4
_new = tuple.__new__  # makes a named tuple without a call of Python


class Segments:
    __slots__ = (
        "_bases",
        "_disk",
        "_limits",
        "_list",
        "_offload",
        "_open",
        "active",
        "changes",
        "directory",
        "removal",
        "used",
    )

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        directory: str,
        found: list[Segment],
        limits: Callable[[int], Limits],
    ) -> None:
        self._disk = disk
        self._offload = offload
        self.directory = directory
        self._limits = limits
        """What applies to the segment with a base offset."""
        self._list = found
        self._bases = [segment.base_offset for segment in found]
        self._open: list[Segment] = []
        self.active = found[-1]
        self.changes = 0
        """Counts what takes files from under a reader: segments that leave or are cut, and another
        name of the directory. Where it differs after an `await`, what was met in between proves
        nothing, and what was found is no answer (`Log.steadily`)."""
        self.removal = Removal(disk, offload)
        self.used = False
        """Whether somebody has read since this was last set back."""

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    def __contains__(self, base_offset: object) -> bool:
        """Whether a segment begins at this offset."""
        return base_offset in self._bases

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._list)

    @property
    def first_offset(self) -> int:
        return self._bases[0]

    def holding(self, offset: int) -> Segment:
        """The segment that `offset` belongs to."""
        if offset >= self.active.base_offset:
            return self.active
        segment = self._list[max(bisect_right(self._bases, offset) - 1, 0)]
        self.touch(segment)
        return segment

    def after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._bases, segment.base_offset)
        return self._list[at] if at < len(self._list) else None

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments from the one that `offset` belongs to."""
        return self._list[max(bisect_right(self._bases, offset) - 1, 0) :]

    def read(
        self, offset: int, max_bytes: int, bound: int, end_offset: int, min_one: bool
    ) -> Slice | NotResident | Empty:
        """What of [offset, bound) to send; `end_offset` is the log's."""
        self.used = True
        active = self.active
        recent = active.recent
        offsets = recent.offsets
        if offsets and offset >= offsets[0] and bound == active.next_offset:
            # What most readers ask for: from one of the last batches up to the end.
            at = bisect_right(offsets, offset) - 1
            position = recent.positions[at]
            size, stop = active.size, position + max_bytes
            file = active.file
            # As `readable`, which looks again where something is not as it should be.
            end = file and implementation.chosen.walk_headers(
                file.fd,
                position,
                position,
                size if size < stop else stop,
                size,
                offsets[at],
                -1,
                offset,
                bound,
                MOST_HEADERS,
                min_one,
            )
            if end:
                size = end - position
                return _new(Slice, (file, position, size, offset)) if size else EMPTY
        segment: Segment | None = self.holding(offset)
        while segment is not None:
            following = None if segment is self.active else self.after(segment)
            end = end_offset if following is None else following.base_offset
            start = segment.locate(offset)
            limit = segment.size if bound >= end else segment.locate(bound)
            if isinstance(start, NotResident):
                return start
            if isinstance(limit, NotResident):
                return limit
            if start < limit:
                stop = min(limit, start + max_bytes)
                found = readable(segment, start, stop, offset, end, min_one)
                if isinstance(found, NotResident):
                    return found
                return _new(Slice, (segment.file, start, found, offset)) if found else EMPTY
            segment = following  # compaction left nothing of this one's end
        return EMPTY

    def aborted(self, start_offset: int, end_offset: int, read: Slice | None) -> list[AbortedTxn]:
        """Transactions whose records a reader of [start, end) must leave out.

        Of that only what it has `read`, if that is given: a log may have any number of them.
        """
        found: list[AbortedTxn] = []
        segments = self.from_offset(start_offset)
        if not any(segment.aborted for segment in segments):
            return found
        if read is not None:
            end_offset = min(end_offset, self._end_of(read, segments, end_offset))
        for segment in segments:
            if segment.aborted and segment.aborted.collect(start_offset, end_offset, found):
                break
        return found

    def _end_of(self, read: Slice, segments: list[Segment], end_offset: int) -> int:
        """Where the records of a slice end at the latest."""
        for segment in segments:
            if segment.file is read.file:
                offsets = segment.indexes.offsets
                if offsets.skipped:
                    segment.load_offset_index()  # if that would have to wait, we do without
                bound = offsets.bound(read.position + read.size)
                if bound is not None:
                    return bound
                following = self.after(segment)
                return end_offset if following is None else following.base_offset
        return end_offset

    async def count_expired(
        self, retention_ms: int, high_watermark: int, end_offset: int, now: Instant
    ) -> int:
        """How many segments, from the oldest on, are too old and below the high watermark.

        Only as long as nothing changes: count again if `changes` tells that something did.
        """
        count = 0
        for segment, facts in zip(list(self._list), self.facts(end_offset), strict=True):
            if facts.end_offset > high_watermark or (not segment.size and segment is self.active):
                break
            if not segment.size:
                count += 1  # compaction, or a gap in the leader's log, left nothing in it
                continue
            await segment.load_times()
            if not expired(segment.newest_ms, retention_ms, now):
                break
            self.touch(segment)
            await segment.confirm_times()
            if not expired(segment.newest_ms, retention_ms, now):
                break
            if segment is self.active and segment.next_offset > high_watermark:
                break  # it was appended to meanwhile
            count += 1
        return count

    def facts(self, end_offset: int) -> list[SegmentFacts]:
        ends = [*self._bases[1:], end_offset]
        return [
            SegmentFacts(end, segment.size) for end, segment in zip(ends, self._list, strict=True)
        ]

    def configure(self) -> None:
        """Puts new settings into force; sealed segments have no use for them."""
        self.active.configure(self._limits(self.active.base_offset))

    def roll(self, base_offset: int, now_ms: int) -> Segment:
        """Begins a new active segment and returns the old one, complete. OSError: as before."""
        old = self.active
        old.seal()
        self.begin(base_offset, now_ms)
        self.touch(old)
        return old

    def new(self, base_offset: int, now_ms: int) -> Segment:
        """An empty segment that is not in the log yet, without files."""
        return Segment(
            self._disk,
            self._offload,
            self.directory,
            base_offset,
            created_ms=now_ms,
            limits=self._limits(base_offset),
        )

    def touch(self, segment: Segment) -> None:
        """Someone uses a sealed segment: the one that waited longest may be closed for it."""
        opened = self._open
        if segment is self.active or (opened and segment is opened[-1]):
            return
        if segment in opened:
            opened.remove(segment)
        opened.append(segment)
        if len(opened) > _MOST_OPEN:
            opened.pop(0).release_file()

    @property
    def has_open_files(self) -> bool:
        """Whether any segment holds its file open."""
        return any(segment.file is not None for segment in self._list)

    def close_idle(self) -> None:
        """Closes the files of all segments, the active one as a clean shutdown would leave it."""
        self.active.seal()
        for segment in self._list:
            if segment.file is not None:
                segment.release_file()
        self._open = []

    def moved(self, directory: str) -> None:
        """The directory has another name now."""
        self.changes += 1
        self.removal.moved(self.directory, directory)
        self.directory = directory
        for segment in self._list:
            segment.moved(directory)

    def drop_first(self, count: int) -> list[Segment]:
        """Takes the oldest segments out of the list, never the active one."""
        return self._drop(0, count)

    def drop_after(self, offset: int) -> list[Segment]:
        """Takes out segments that begin after `offset`; the last one left becomes active, and is
        about to be cut."""
        gone = self._drop(max(bisect_right(self._bases, offset), 1), len(self._list))
        self.active = self._list[-1]
        if self.active in self._open:
            self._open.remove(self.active)
        return gone

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Puts a sealed segment in the place of neighbours."""
        at = self._list.index(old[0])
        assert self._list[at : at + len(old)] == old, "only neighbours become one segment"
        self._drop(at, at + len(old))
        self._list.insert(at, new)
        self._bases.insert(at, new.base_offset)

    def begin(self, base_offset: int, now_ms: int) -> None:
        """Adds an empty active segment."""
        segment = self.new(base_offset, now_ms)
        segment.create()
        self._list.append(segment)
        self._bases.append(base_offset)
        self.active = segment

    def begin_anew(self, segment: Segment) -> list[Segment]:
        """Takes out all segments, for one that is active now."""
        gone = self._drop(0, len(self._list))
        self._list.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        return gone

    def _drop(self, start: int, end: int) -> list[Segment]:
        self.changes += 1
        gone = self._list[start:end]
        del self._list[start:end]
        del self._bases[start:end]
        self._open = [segment for segment in self._open if segment not in gone]
        return gone

    def close(self) -> None:
        for segment in self._list:
            file = segment.release_file()
            if file is not None:
                file.close()
        self.removal.close()
