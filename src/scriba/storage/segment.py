"""One segment of a log: a file of batches and what is known about it.

Positions are found without reading wherever possible. `Recent` remembers where each of the last
appended batches begins, the offset index knows some batches of every stretch, and only between two
entries of the index is the file read, header by header, and never past the page cache: what is
not there comes back as `Cold`, which the caller loads before trying again.

A segment is asleep until someone appends or reads: its file is closed, its indexes are not in
memory, and its timestamps are unknown. So a node with many partitions starts and rests cheaply.
"""

from array import array
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from scriba.records.header import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    sane_header,
)
from scriba.runtime.ports import WOULD_BLOCK, Buffer, Disk, File, Offload
from scriba.storage.aborted import AbortedTxns
from scriba.storage.cold import Cold, Window, settled
from scriba.storage.index import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
)
from scriba.storage.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from scriba.storage.producers import AbortedTxn
from scriba.storage.rebuild import rebuild_indexes
from scriba.storage.scan import Found, scan

UNKNOWN: Final = -2
"""A timestamp, or an offset, that nobody had to know yet."""

UNSURE_ENTRIES: Final = 256
"""Entries of an index, before the recovery point, that a crash may have torn."""

_NEVER: Final = 2**63 - 1
_ALWAYS: Final = -(2**63)
_ASLEEP: Final = -1
_WINDOW: Final = 16 << 10
_RECENT: Final = 128
_ENTRIES_IN_MEMORY: Final = 256


class Limits(NamedTuple):
    """When a segment has had enough."""

    size: int
    age_ms: int
    entries: int
    """Index entries; one more slot is kept free for the time index's last one."""
    index_interval: int


class Damaged(Exception):
    """Bytes in the middle of a segment that are no record batch."""


class _Repair:
    """Indexes that are missing or damaged, to be built anew from the log."""

    __slots__ = ("_segment",)

    def __init__(self, segment: "Segment") -> None:
        self._segment = segment

    async def load(self, offset: int, n: int) -> None:
        await self._segment.repair()


class Recent:
    """Where the last batches of a segment begin, without a gap up to its end."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")

    def add(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)
        if len(self.offsets) > 2 * _RECENT:
            del self.offsets[:_RECENT]
            del self.positions[:_RECENT]

    def clear(self) -> None:
        del self.offsets[:]
        del self.positions[:]


class Segment:
    __slots__ = (
        "_disk",
        "_durable_entries",
        "_offload",
        "_since_index",
        "_unsynced",
        "aborted",
        "aborted_dirty",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "first_timestamp",
        "limit",
        "limits",
        "max_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offsets",
        "recent",
        "roll_after",
        "size",
        "times",
    )

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        directory: str,
        base_offset: int,
        *,
        size: int = 0,
        index_bytes: int = 0,
        time_index_bytes: int = 0,
        aborted: AbortedTxns | None = None,
        created_ms: int = 0,
        limits: Limits,
    ) -> None:
        self._disk = disk
        self._offload = offload
        self.directory = directory
        self.base_offset = base_offset
        self.max_offset = base_offset + MAX_RELATIVE_OFFSET
        self.created_ms = created_ms
        self.size = size
        self.file: File | None = None
        self.offsets = OffsetIndex(base_offset, index_bytes // OFFSET_ENTRY)
        self.times = TimeIndex(base_offset, time_index_bytes // TIME_ENTRY)
        self.aborted = aborted or AbortedTxns()
        self.aborted_dirty = False
        """Whether the transaction index on disk is behind, or ahead of, the one in memory."""
        self.recent = Recent()
        self.limits = limits
        self._since_index = 0
        self._durable_entries = len(self.offsets)
        self._unsynced: set[str] = set()
        """Files besides the log that must not fall behind it on the device."""
        self.next_offset = UNKNOWN if size else base_offset
        """End of the last batch."""
        self.first_timestamp = UNKNOWN if size else NO_TIMESTAMP
        """Largest timestamp of the first batch: a segment's age counts from there."""
        self.max_timestamp = UNKNOWN if size else NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.limit = _ASLEEP
        """Size that an append must not pass. While it fits, an append asks nothing else."""
        self.roll_after = _ALWAYS
        """Timestamp beyond which an append looks whether the segment is too old."""

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}"

    def create(self) -> None:
        """Makes the files. What a failed attempt left under these names is emptied."""
        for suffix in (INDEX, TIME_INDEX, LOG):
            file = self._disk.open(self.path(suffix), create=True)
            if file.size():
                file.truncate(0)
            if suffix == LOG:
                self.file = file
            else:
                file.close()
        self.configure(self.limits)

    def configure(self, limits: Limits) -> None:
        """Takes new limits; an asleep segment stays so."""
        self.limits = limits
        if self.file is None or UNKNOWN in (self.max_timestamp, self.first_timestamp):
            return
        full = len(self.offsets) >= limits.entries or len(self.times) >= limits.entries
        self.limit = 0 if full else limits.size
        if not self.size:
            self.roll_after = _NEVER
        elif self.first_timestamp < 0:
            self.roll_after = _ALWAYS
        else:
            self.roll_after = self.first_timestamp + limits.age_ms

    def is_full(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch of this size and kind belongs into a new segment."""
        if not self.size:
            return False
        if self.first_timestamp >= 0:
            age = max_timestamp - self.first_timestamp
        else:
            age = now_ms - self.created_ms
        return (
            self.size + size > self.limit
            or age > self.limits.age_ms
            or last_offset > self.max_offset
        )

    # ---- waking and sleeping ----

    def open_file(self) -> File:
        file = self.file
        if file is None:
            file = self.file = self._disk.open(self.path(LOG))
        return file

    def wake(self) -> None:
        """Makes ready for appends: reads two small windows, and may wait for the device once."""
        if not self._learn_times():
            self.rebuild()
        if self.first_timestamp == UNKNOWN:
            view = memoryview(bytearray(HEADER_SIZE))
            if self.open_file().pread_into(view, 0) == HEADER_SIZE:
                self.first_timestamp = BatchHeader._make(HEADER.unpack(view)).max_timestamp
        self.open_file()
        self.configure(self.limits)

    def _learn_times(self) -> bool:
        """Finds the largest timestamp: a segment at rest has it as its time index's last entry.

        False if the time index cannot be right.
        """
        if self.max_timestamp != UNKNOWN:
            return True
        if self.times.skipped:
            try:
                file = self._disk.open(self.path(TIME_INDEX))
            except FileNotFoundError:
                return False
            try:
                view = memoryview(bytearray(TIME_ENTRY))
                file.pread_into(view, (self.times.skipped - 1) * TIME_ENTRY)
            finally:
                file.close()
            if not self.times.read_last(bytes(view)):
                return False
        self.max_timestamp, self.max_timestamp_offset = self.times.last
        return True

    async def load_times(self) -> None:
        """Makes the largest timestamp known; what that needs to read is loaded off the loop."""
        if self.max_timestamp == UNKNOWN:
            if self.times.skipped:
                window = Window(self._disk, self.path(TIME_INDEX))
                await window.load((self.times.skipped - 1) * TIME_ENTRY, TIME_ENTRY)
            if not self._learn_times():
                await self.repair()

    @property
    def newest_ms(self) -> int:
        """How old the segment is; without timestamps, as old as this process knows it."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.created_ms

    async def confirm_times(self) -> None:
        """Looks whether the batch that should have the largest timestamp has it.

        An index is not reason enough to delete a segment for its age.
        """
        await self.load_times()
        if self.max_timestamp < 0:
            return
        position = await settled(partial(self.locate, self.max_timestamp_offset))
        if position < self.size:
            header = await settled(partial(self._header_at, position))
            if header.max_timestamp == self.max_timestamp:
                return
        await self.repair()

    def sleep(self) -> File | None:
        """Gives memory back. Returns the file, to be closed once nobody sends from it."""
        self.recent.clear()
        self.offsets.forget(0)
        self.times.forget(0)
        self.limit = _ASLEEP
        file, self.file = self.file, None
        return file

    # ---- appending ----

    def append(self, view: Buffer, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch at the end, in one call. OSError leaves the segment as it was."""
        file = self.file
        assert file is not None, "the segment is asleep"
        position = self.size
        file.pwritev((view,), position)
        self.note(position, len(view), base_offset, last_offset, max_timestamp)

    def note(
        self, position: int, size: int, base_offset: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Takes account of a batch that is in the file at `position`."""
        recent = self.recent
        if base_offset != self.next_offset:
            recent.clear()
        recent.add(base_offset, position)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index > self.limits.index_interval:
            self._index(base_offset, last_offset, position)
        self._since_index += size
        self.size = position + size
        self.next_offset = last_offset + 1
        if not position:
            self.first_timestamp = max_timestamp
            self.configure(self.limits)

    def _index(self, base_offset: int, last_offset: int, position: int) -> None:
        self._since_index = 0
        self.offsets.append(base_offset, last_offset, position)
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        if len(self.offsets) >= self.limits.entries:
            self.limit = 0
        if self.offsets.unwritten > _ENTRIES_IN_MEMORY:
            with suppress(OSError):  # they stay in memory, and the next write tries again
                self.write_indexes()

    def note_aborted(self, txn: AbortedTxn) -> None:
        """The file follows with the next sync: until then recovery reads the marker again."""
        self.aborted.append(txn)
        self.aborted_dirty = True

    def write_indexes(self) -> None:
        """Brings the index files up to date and leaves only their ends in memory."""
        offsets, times = self.offsets, self.times
        if offsets.unwritten or offsets.shrunk:
            self._write(INDEX, offsets.fresh(), offsets.written * OFFSET_ENTRY, offsets.shrunk)
            offsets.written, offsets.shrunk = len(offsets), False
        if times.unwritten or times.shrunk:
            self._write(TIME_INDEX, times.fresh(), times.written * TIME_ENTRY, times.shrunk)
            times.written, times.shrunk = len(times), False
        offsets.forget(_ENTRIES_IN_MEMORY)
        times.forget(_ENTRIES_IN_MEMORY)

    def _write(self, suffix: str, data: bytes, position: int, cut: bool) -> None:
        file = self._disk.open(self.path(suffix), create=True)
        try:
            if cut:
                file.truncate(position)
            file.pwritev((data,), position)
        finally:
            file.close()
        if cut:  # a lost entry only costs time, but one that was cut and comes back lies
            self._unsynced.add(suffix)

    def seal(self) -> None:
        """Completes the indexes: the time index of a segment at rest ends in its latest record."""
        if self.max_timestamp == UNKNOWN:
            return
        self.times.append(self.max_timestamp, self.max_timestamp_offset)
        self.write_indexes()

    async def sync(self, indexes: bool) -> None:
        """Makes durable what was written, and with it the indexes, if asked or if need be.

        So that recovery knows what to believe of an index, at most UNSURE_ENTRIES of it are ever
        less durable than the batches they name.
        """
        suffixes, self._unsynced = self._unsynced, set()
        if indexes or len(self.offsets) - self._durable_entries >= UNSURE_ENTRIES:
            self.write_indexes()
            self._durable_entries = len(self.offsets)
            suffixes |= {INDEX, TIME_INDEX}
        await self.open_file().datasync()
        for suffix in sorted(suffixes):
            file = self._disk.open(self.path(suffix), create=True)
            try:
                await file.datasync()
            finally:
                file.close()
        if self.aborted_dirty:
            self.aborted_dirty = False
            await self._disk.write_atomic(self.path(TXN_INDEX), self.aborted.encode())

    # ---- reading ----

    def locate(self, offset: int) -> int | Cold:
        """The position of the first batch that reaches `offset`; `size` if none does."""
        recent = self.recent.offsets
        if recent and offset >= recent[0]:
            if offset >= self.next_offset:
                return self.size
            return self.recent.positions[bisect_right(recent, offset) - 1]
        if offset <= self.base_offset:
            return 0
        if offset == self.next_offset:
            return self.size
        if not self.offsets.covers(offset):
            cold = self.load_offsets()
            if cold is not None:
                return cold
        position, exact = self.offsets.locate(offset)
        return position if exact else self._scan_to(offset, position)

    def extent(self, start: int, limit: int, max_bytes: int, min_one: bool) -> int | Cold:
        """How much to send from `start`: up to a known end of a batch if there is one in reach.

        A part of a batch is sent only behind a whole one; the first one goes whole, even when it
        is larger than `max_bytes`, if the caller insists, and otherwise nothing does.
        """
        if limit - start <= max_bytes:
            return limit - start
        reach = start + max_bytes
        recent = self.recent.positions
        if recent and start >= recent[0]:
            at = bisect_right(recent, reach) - 1
            if recent[at] > start:
                return recent[at] - start
            size = (recent[at + 1] if at + 1 < len(recent) else self.size) - start
        else:
            boundary = self.offsets.floor_position(reach)
            if boundary > start:
                return boundary - start
            header = self._header_at(start)
            if isinstance(header, Cold):
                return header
            size = header.length + LOG_OVERHEAD
        if size <= max_bytes:
            return max_bytes
        return size if min_one else 0

    def load_offsets(self) -> Cold | None:
        """Brings the offset index into memory."""
        data = self._read_index(INDEX, self.offsets.skipped * OFFSET_ENTRY)
        if isinstance(data, Cold):
            return data
        if data is None or not self.offsets.load(data, self.size):
            return Cold(_Repair(self), 0, 0)
        return None

    def load_time_index(self) -> Cold | None:
        data = self._read_index(TIME_INDEX, self.times.skipped * TIME_ENTRY)
        if isinstance(data, Cold):
            return data
        if data is None or not self.times.load(data, self.max_offset + 1):
            return Cold(_Repair(self), 0, 0)
        return None

    def _read_index(self, suffix: str, size: int) -> bytes | Cold | None:
        """The first `size` bytes of an index file; None if it does not have as many."""
        if not size:
            return b""
        try:
            file = self._disk.open(self.path(suffix))
        except FileNotFoundError:
            return None
        try:
            view = memoryview(bytearray(size))
            done = 0
            while done < size:
                got = file.try_pread_into(view[done:], done)
                if got == WOULD_BLOCK:
                    return Cold(Window(self._disk, self.path(suffix)), done, size - done)
                if got == 0:
                    return None
                done += got
            return bytes(view)
        finally:
            file.close()

    def _scan_to(self, offset: int, position: int) -> int | Cold:
        while position < self.size:
            window = self._try_read(position, min(_WINDOW, self.size - position))
            if isinstance(window, Cold):
                return window
            at = 0
            while len(window) - at >= HEADER_SIZE:
                header = self._parse(window, at, position)
                if header.base_offset + header.last_offset_delta >= offset:
                    return position + at
                at += header.length + LOG_OVERHEAD
            position += at
        return self.size

    def _header_at(self, position: int) -> BatchHeader | Cold:
        window = self._try_read(position, HEADER_SIZE)
        return window if isinstance(window, Cold) else self._parse(window, 0, position)

    def _try_read(self, position: int, size: int) -> memoryview | Cold:
        """At least one header from the page cache."""
        view = memoryview(bytearray(size))
        got = self.open_file().try_pread_into(view, position)
        if got >= HEADER_SIZE:
            return view[:got]
        if got == WOULD_BLOCK or self.open_file().size() - position >= HEADER_SIZE:
            return Cold(Window(self._disk, self.path(LOG)), position, size)
        raise Damaged(f"{self.path(LOG)} ends at {position}, before its last batch")

    def _parse(self, window: memoryview, at: int, position: int) -> BatchHeader:
        header = BatchHeader._make(HEADER.unpack_from(window, at))
        if not sane_header(header) or header.length + LOG_OVERHEAD > self.size - position - at:
            raise Damaged(f"{self.path(LOG)} holds no record batch at {position + at}")
        return header

    # ---- repair and truncation ----

    async def repair(self) -> None:
        """Builds both indexes anew, off the loop."""
        size = self.size
        self._replace_indexes(
            *await self._offload.run(
                rebuild_indexes,
                self._disk,
                self.path(LOG),
                self.base_offset,
                size,
                self.limits.index_interval,
            ),
            size,
        )

    def rebuild(self) -> None:
        """As `repair`, at once."""
        interval = self.limits.index_interval
        rebuilt = rebuild_indexes(self._disk, self.path(LOG), self.base_offset, self.size, interval)
        self._replace_indexes(*rebuilt, self.size)

    def _replace_indexes(self, offsets: OffsetIndex, times: TimeIndex, size: int) -> None:
        self.offsets.replace(offsets)
        self.times.replace(times)
        if self.size == size or times.last[0] > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = times.last

    def rewind(self, offset: int, margin: int = 0) -> int:
        """Goes back to a batch that ends before `offset`, to `note` all from it on anew.

        Returns its position. Both indexes must be in memory; their last `margin` entries before
        `offset` are not believed. The file is not touched.
        """
        position = self.offsets.truncate(offset, margin)
        known = self.offsets.last()[0] if position else self.base_offset - 1
        self.times.truncate(known + 1)
        self._durable_entries = min(self._durable_entries, len(self.offsets))
        self.recent.clear()
        self.size = position
        self.next_offset = UNKNOWN
        self._since_index = 0
        self.max_timestamp, self.max_timestamp_offset = self.times.last
        if position == 0:
            self.first_timestamp = NO_TIMESTAMP
        return position

    def seek(self, offset: int) -> tuple[int, int]:
        """Position and end offset to truncate to, so that nothing reaches `offset`.

        Waits for the device.
        """
        self.load_indexes()
        start, _ = self.offsets.locate(offset)
        for position, header in scan(
            self.open_file(), start, self.size, self.base_offset, check_from=None
        ):
            if header.last_offset >= offset:
                return position, min(header.base_offset, offset)
        return self.size, offset

    def truncate(self, position: int, end_offset: int) -> None:
        """Cuts the file before the batch at `position`. Waits for the device."""
        self.load_indexes()
        file = self.open_file()
        file.truncate(position)
        self.aborted_dirty = self.aborted.truncate(end_offset) or self.aborted_dirty
        start = self.rewind(end_offset)
        for found in scan(file, start, position, self.base_offset, check_from=None):
            self.note_found(found)
        assert self.size == position, "what is kept of a segment must be whole batches"
        self.next_offset = end_offset
        self.write_indexes()

    def note_found(self, found: Found) -> None:
        header = found.header
        self.note(
            found.position,
            header.length + LOG_OVERHEAD,
            header.base_offset,
            header.base_offset + header.last_offset_delta,
            header.max_timestamp,
        )

    def load_indexes(self) -> None:
        """Brings both indexes into memory, built anew if need be. Waits for the device."""
        try:
            offsets = self._disk.read(self.path(INDEX)) if self.offsets.skipped else b""
            times = self._disk.read(self.path(TIME_INDEX)) if self.times.skipped else b""
        except FileNotFoundError:
            self.rebuild()
            return
        if not (
            len(offsets) >= self.offsets.skipped * OFFSET_ENTRY
            and len(times) >= self.times.skipped * TIME_ENTRY
            and self.offsets.load(offsets, self.size)
            and self.times.load(times, self.max_offset + 1)
        ):
            self.rebuild()
