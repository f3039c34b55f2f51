"""One segment of a log: a file of batches and what is known about it.

Positions are found without reading wherever possible. `Recent` remembers where each of the last
appended batches begins, the offset index knows some batches of every stretch, and only between two
entries of the index is the file read, header by header, and never past the page cache: what is
not there comes back as `NotResident`, which the caller loads before trying again.

A segment is closed until someone appends or reads: it holds no file open, its indexes are not in
memory, and its timestamps are unknown. So a node with many partitions starts and rests cheaply.
"""

from bisect import bisect_right
from functools import partial
from typing import Final

from scriba.records.header import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    sane_header,
)
from scriba.runtime.ports import WOULD_BLOCK, Disk, File, Offload
from scriba.storage.directory.names import LOG, TXN_INDEX, file_name
from scriba.storage.limits import Limits
from scriba.storage.producers.state import AbortedTxn
from scriba.storage.recovery.rebuild import rebuild_indexes
from scriba.storage.room import WithRoom
from scriba.storage.segments.aborted import AbortedTxns
from scriba.storage.segments.cut import Cut
from scriba.storage.segments.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from scriba.storage.segments.indexes import Indexes
from scriba.storage.segments.not_resident import NotResident, Window, settled
from scriba.storage.segments.recent import MOST_RECENT, Recent
from scriba.storage.segments.scan import scan

UNKNOWN: Final = -2
"""A timestamp, or an offset, that nobody had to know yet."""

_NEVER: Final = 2**63 - 1
_ALWAYS: Final = -(2**63)
_CLOSED: Final = -1
_AT_ONCE: Final = -1
_WINDOW: Final = 16 << 10
_FAR: Final = 64 << 10
"""Beyond the usual interval of index entries: so much is not read for the sake of one header."""


class Damaged(Exception):
    """Bytes in the middle of a segment that are no record batch."""


class _Repair:
    """Indexes that are missing or damaged, to be built anew from the log."""

    __slots__ = ("_segment",)

    def __init__(self, segment: "Segment") -> None:
        self._segment = segment

    async def load(self, offset: int, n: int) -> None:
        await self._segment.repair()


class Segment:
    __slots__ = (
        "_disk",
        "_indexed_at",
        "_offload",
        "_repaired",
        "_stem",
        "aborted",
        "aborted_dirty",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "index_after",
        "indexes",
        "limit",
        "limits",
        "max_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "padded",
        "recent",
        "roll_after",
        "size",
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
        self._stem = stem = _stem(directory, base_offset)
        self.base_offset = base_offset
        self.max_offset = base_offset + MAX_RELATIVE_OFFSET
        self.created_ms = created_ms
        self.size = size
        self.padded = False
        """Whether the file is longer: room for what is to come."""
        self.file: File | None = None
        self.indexes = Indexes(disk, stem, base_offset, index_bytes, time_index_bytes)
        self.aborted = aborted or AbortedTxns()
        self.aborted_dirty = False
        """Whether the transaction index on disk is behind, or ahead of, the one in memory."""
        self.recent = Recent()
        self.limits = limits
        self._indexed_at = size
        """Where the last batch begins that is in the index, or else what is to be noted."""
        self.index_after = size + limits.index_interval if size else _AT_ONCE
        """Position beyond which a batch is entered in the index. The first one asks for more."""
        self._repaired = False
        """Whether the indexes were built from the log by this process."""
        self.next_offset = UNKNOWN if size else base_offset
        """End of the last batch."""
        self.first_timestamp = UNKNOWN if size else NO_TIMESTAMP
        """Largest timestamp of the first batch: a segment's age counts from there."""
        self.max_timestamp = UNKNOWN if size else NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.limit = _CLOSED
        """Size that an append must not pass. While it fits, an append asks nothing else."""
        self.roll_after = _ALWAYS
        """Timestamp beyond which an append looks whether the segment is too old."""

    def path(self, suffix: str) -> str:
        return self._stem + suffix

    def moved(self, directory: str) -> None:
        """The directory has another name now."""
        self._stem = self.indexes.stem = _stem(directory, self.base_offset)

    def create(self) -> None:
        """Makes the files. What a failed attempt left under these names is emptied."""
        self.indexes.create()
        file = self._disk.open(self.path(LOG), create=True)
        if file.size():
            file.truncate(0)
        self.file = file
        self.preallocate()
        self.configure(self.limits)

    def preallocate(self) -> None:
        """Gives an empty segment's file its full size, where the topic asks for that."""
        if self.limits.preallocate and not self.size and not self.padded:
            self.open_file().truncate(self.limits.size)
            self.padded = True

    def configure(self, limits: Limits) -> None:
        """Takes new limits; a closed segment stays so."""
        self.limits = limits
        self._indexed_at = min(self._indexed_at, self.size)
        self.index_after = self._indexed_at + limits.index_interval if self.size else _AT_ONCE
        if self.file is None or UNKNOWN in (self.max_timestamp, self.first_timestamp):
            return
        self.limit = limits.size if len(self.indexes) < limits.entries else 0
        if not self.size:
            self.roll_after = _NEVER
        elif self.first_timestamp < 0:
            self.roll_after = _ALWAYS
        else:
            self.roll_after = self.first_timestamp + limits.age_ms

    def is_full(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch of this size and kind belongs into a new segment."""
        if not self.size:
            # A leader's compaction may leave nothing of so many offsets.
            return last_offset > self.max_offset
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

    def open_for_append(self) -> None:
        """Makes ready for appends: reads two small windows, and may wait for the device once."""
        if not self._learn_times():
            self.rebuild()
        if self.first_timestamp == UNKNOWN:
            view = memoryview(bytearray(HEADER_SIZE))
            if self.open_file().pread_into(view, 0) == HEADER_SIZE:
                self.first_timestamp = BatchHeader._make(HEADER.unpack(view)).max_timestamp
        self.open_file()
        self.preallocate()
        self.configure(self.limits)

    def _learn_times(self) -> bool:
        """Finds the largest timestamp: a segment at rest has it as its time index's last entry.

        False if the time index cannot be right.
        """
        if self.max_timestamp == UNKNOWN:
            if not self.indexes.learn_last_time():
                return False
            self.max_timestamp, self.max_timestamp_offset = self.indexes.times.last
        return True

    async def load_times(self) -> None:
        """Makes the largest timestamp known; what that needs to read is loaded off the loop."""
        if self.max_timestamp == UNKNOWN:
            missing = self.indexes.last_time_window()
            if missing is not None:
                await missing.file.load(missing.position, missing.size)
            if not self._learn_times():
                await self.repair()

    async def load_first_time(self) -> None:
        """Makes the timestamp of the first batch known."""
        if self.first_timestamp == UNKNOWN:
            header = await settled(partial(self._header_at, 0))
            self.first_timestamp = header.max_timestamp

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

    def release_file(self) -> File | None:
        """Gives memory back. Returns the file: dropped, it closes once nobody sends from it."""
        self.recent.clear()
        self.indexes.forget()
        self.limit = _CLOSED
        file, self.file = self.file, None
        return file

    # ---- appending ----

    def note(
        self, position: int, size: int, base_offset: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Takes account of a batch that is in the file at `position`."""
        recent = self.recent
        if base_offset != self.next_offset:
            recent.clear()
        recent.positions.append(position)
        offsets = recent.offsets
        offsets.append(base_offset)
        if len(offsets) > MOST_RECENT:
            recent.shorten()
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        self.size = position + size
        self.next_offset = last_offset + 1
        if position > self.index_after:
            self.index(position, base_offset, last_offset, max_timestamp)

    def index(self, position: int, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Enters a batch in the indexes; the first one, found without them, begins the segment."""
        self._indexed_at = position
        if not position:
            self.first_timestamp = max_timestamp
            self.configure(self.limits)
            return
        self.index_after = position + self.limits.index_interval
        entries = self.indexes.append(
            base_offset, last_offset, position, self.max_timestamp, self.max_timestamp_offset
        )
        if entries >= self.limits.entries:
            self.limit = 0

    def note_aborted(self, txn: AbortedTxn) -> None:
        """The file follows with the next sync: until then recovery reads the marker again."""
        self.aborted.append(txn)
        self.aborted_dirty = True

    def seal(self) -> None:
        """Completes the indexes: the time index of a segment at rest ends in its latest record."""
        if self.max_timestamp != UNKNOWN:
            self.indexes.times.append(self.max_timestamp, self.max_timestamp_offset)
            self.indexes.write()

    @property
    def sealed(self) -> bool:
        """Whether the indexes on disk are complete, as `seal` leaves them."""
        known = self.max_timestamp == UNKNOWN or self.max_timestamp <= self.indexes.times.last[0]
        return known and self.indexes.written

    async def sync(self, complete: bool, with_room: WithRoom) -> None:
        """Makes the batches durable, and of the rest what must not fall behind them, or all."""
        await with_room(self._have_open)
        await self.open_file().datasync()
        await self.indexes.sync(complete, with_room)
        if self.aborted_dirty:
            self.aborted_dirty = False
            try:
                await with_room(
                    lambda: self._disk.write_atomic(self.path(TXN_INDEX), self.aborted.encode())
                )
            except BaseException:
                self.aborted_dirty = True
                raise

    def _have_open(self) -> None:
        self.open_file()

    # ---- reading ----

    def locate(self, offset: int) -> int | NotResident:
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
        offsets = self.indexes.offsets
        if not offsets.covers(offset):
            missing = self.load_offset_index()
            if missing is not None:
                return missing
        position, last_offset, exact = offsets.locate(offset)
        return position if exact else self._scan_to(offset, position, last_offset)

    def anchor(self, start: int) -> tuple[int, int, int]:
        """A batch of which something is known, at `start` or not far before it.

        (position, the offset it begins with, or an earlier one, its last offset or -1)
        """
        recent = self.recent.positions
        if recent and start >= recent[0]:
            return start, self.recent.offsets[bisect_right(recent, start) - 1], -1
        position, last_offset = self.indexes.offsets.floor(start)
        if start - position > _FAR:
            return start, self.base_offset, -1
        return position, self.base_offset, last_offset

    def load_offset_index(self) -> NotResident | None:
        return self._or_repair(self.indexes.load_offsets(self.size))

    def load_time_index(self) -> NotResident | None:
        return self._or_repair(self.indexes.load_times(self.max_offset + 1))

    def _or_repair(self, loaded: bool | NotResident) -> NotResident | None:
        if isinstance(loaded, NotResident):
            return loaded
        return None if loaded else NotResident(_Repair(self), 0, 0)

    def _scan_to(self, offset: int, position: int, last_offset: int) -> int | NotResident:
        """Looks from `position` on, where the index has a batch that ends with `last_offset`."""
        before = self.base_offset - 1
        while position < self.size:
            window = self.try_read(position, min(_WINDOW, self.size - position))
            if isinstance(window, NotResident):
                return window
            at = 0
            while len(window) - at >= HEADER_SIZE:
                header = BatchHeader._make(HEADER.unpack_from(window, at))
                last = header.base_offset + header.last_offset_delta
                if (
                    not self.can_be(header, position + at)
                    or last_offset not in (-1, last)
                    or header.base_offset <= before
                ):
                    return self.mistrust(position + at)
                if last >= offset:
                    return position + at
                last_offset, before = -1, last
                at += header.length + LOG_OVERHEAD
            position += at
        return self.size

    def _header_at(self, position: int) -> BatchHeader | NotResident:
        window = self.try_read(position, HEADER_SIZE)
        if isinstance(window, NotResident):
            return window
        header = BatchHeader._make(HEADER.unpack_from(window))
        return header if self.can_be(header, position) else self.mistrust(position)

    def try_read(self, position: int, size: int) -> memoryview | NotResident:
        """At least one header from the page cache."""
        view = memoryview(bytearray(size))
        got = self.open_file().try_pread_into(view, position)
        if got >= HEADER_SIZE:
            return view[:got]
        if got == WOULD_BLOCK or self.open_file().size() - position >= HEADER_SIZE:
            return self.not_resident(position, size)
        return self.mistrust(position)

    def not_resident(self, position: int, size: int) -> NotResident:
        """To be loaded into the page cache."""
        return NotResident(Window(self._disk, self.path(LOG)), position, size)

    def can_be(self, header: BatchHeader, position: int) -> bool:
        return sane_header(header) and header.length + LOG_OVERHEAD <= self.size - position

    def mistrust(self, position: int) -> NotResident:
        """No batch where one should be: the index gets the first blame, then the log itself."""
        if self._repaired:
            raise self._damaged_at(position)
        return NotResident(_Repair(self), 0, 0)

    def _damaged_at(self, position: int) -> Damaged:
        return Damaged(
            f"{self.path(LOG)} holds no record batch at {position} that goes on where the one "
            "before it ends"
        )

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
        self._repaired = True
        self.indexes.replace(offsets, times)
        if self.size == size or times.last[0] > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = times.last

    def rewind(self, offset: int, margin: int = 0) -> int:
        """Goes back to a batch that ends before `offset`, to `note` all from it on anew.

        Returns its position. Both indexes must be in memory; their last `margin` entries before
        `offset` are not believed. The file is not touched.
        """
        position = self.indexes.truncate(offset, margin)
        self.recent.clear()
        self.size = position
        self.next_offset = UNKNOWN
        self._indexed_at = position
        self.index_after = position + self.limits.index_interval if position else _AT_ONCE
        self.max_timestamp, self.max_timestamp_offset = self.indexes.times.last
        if position == 0:
            self.first_timestamp = NO_TIMESTAMP
        return position

    def seek(self, offset: int) -> tuple[int, int]:
        """Position and end offset to truncate to, so that nothing reaches `offset`.

        Waits for the device. Damaged where batches end before the file does.
        """
        self.load_indexes()
        while True:
            end, _, _ = self.indexes.offsets.locate(offset)
            file = self.open_file()
            for position, header in scan(file, end, self.size, self.base_offset, check_from=None):
                if header.last_offset >= offset:
                    return position, min(header.base_offset, offset)
                end = position + header.size
            if end == self.size:
                return end, offset
            if self._repaired:
                raise self._damaged_at(end)
            self.rebuild()  # as in `mistrust`

    def truncate(self, position: int, end_offset: int) -> list[Cut]:
        """Forgets what comes from the batch at `position` on; the files that are to be cut.

        Reads a little of what is kept, and may wait for the device for that.
        """
        self.load_indexes()
        file = self.open_file()
        self.aborted_dirty = self.aborted.truncate(end_offset) or self.aborted_dirty
        start = self.rewind(end_offset)
        for at, header in scan(file, start, position, self.base_offset, check_from=None):
            self.note(at, header.size, header.base_offset, header.last_offset, header.max_timestamp)
        if self.size != position:
            raise self._damaged_at(self.size)
        if end_offset != self.next_offset:
            self.recent.clear()  # what comes next does not follow the last batch at once
        self.next_offset = end_offset
        self.padded = False
        return [Cut(self.path(LOG), position), *self.indexes.cuts()]

    def load_indexes(self) -> None:
        """Brings both indexes into memory, built anew if need be. Waits for the device."""
        if not self.indexes.load(self.size, self.max_offset + 1):
            self.rebuild()


def _stem(directory: str, base_offset: int) -> str:
    """The path of a segment's files without their suffixes."""
    return f"{directory}/{file_name(base_offset, '')}"
