"""A segment's two sparse indexes and their files.

They are written in strides, and rarely synced. So that recovery still knows what to believe, at
most UNSURE_ENTRIES of them are ever less durable than the batches they name: those it reads anew.
"""

from contextlib import suppress
from typing import Final

from scriba.runtime.ports import WOULD_BLOCK, Disk
from scriba.storage.directory.names import INDEX, TIME_INDEX
from scriba.storage.room import WithRoom, opened
from scriba.storage.segments.cut import Cut
from scriba.storage.segments.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from scriba.storage.segments.not_resident import NotResident, Window

UNSURE_ENTRIES: Final = 256
"""Entries before the recovery point that a crash may have torn."""

_IN_MEMORY: Final = 256
"""Entries that an index keeps when nobody reads it, and that it gathers before a write."""


class Indexes:
    __slots__ = ("_disk", "_durable", "_unsynced", "offsets", "stem", "times")

    def __init__(
        self, disk: Disk, stem: str, base_offset: int, offset_bytes: int, time_bytes: int
    ) -> None:
        self._disk = disk
        self.stem = stem
        self.offsets = OffsetIndex(base_offset, offset_bytes // OFFSET_ENTRY)
        self.times = TimeIndex(base_offset, time_bytes // TIME_ENTRY)
        self._durable = len(self.offsets)
        self._unsynced: set[str] = set()
        """Files that were cut: a lost entry only costs time, but one that comes back lies."""

    def __len__(self) -> int:
        return max(len(self.offsets), len(self.times))

    # ---- writing ----

    def create(self) -> None:
        """Makes both files, empty."""
        for suffix in (INDEX, TIME_INDEX):
            file = self._disk.open(self.stem + suffix, create=True)
            if file.size():
                file.truncate(0)
                self._unsynced.add(suffix)
            file.close()

    def append(
        self,
        first_offset: int,
        last_offset: int,
        position: int,
        max_timestamp: int,
        max_timestamp_offset: int,
    ) -> int:
        """Takes note of a batch, and of the latest timestamp up to and with it.

        Returns the number of entries, of whichever index has more since then.
        """
        offsets, times = self.offsets, self.times
        entries = offsets.append(first_offset, last_offset, position)
        if entries - offsets.written > _IN_MEMORY:
            with suppress(OSError):  # they stay in memory, and the next write tries again
                self.write()
        if max_timestamp > times.last[0]:
            return max(entries, times.append(max_timestamp, max_timestamp_offset))
        return entries  # the time index is as long as when it was last told

    @property
    def written(self) -> bool:
        """Whether the files are up to date."""
        offsets, times = self.offsets, self.times
        return not (offsets.unwritten or offsets.shrunk or times.unwritten or times.shrunk)

    def write(self) -> None:
        """Brings the files up to date and leaves only the ends in memory."""
        offsets, times = self.offsets, self.times
        if offsets.unwritten or offsets.shrunk:
            self._write(INDEX, offsets.fresh(), offsets.written * OFFSET_ENTRY, offsets.shrunk)
            offsets.written, offsets.shrunk = len(offsets), False
        if times.unwritten or times.shrunk:
            self._write(TIME_INDEX, times.fresh(), times.written * TIME_ENTRY, times.shrunk)
            times.written, times.shrunk = len(times), False
        self.forget(_IN_MEMORY)

    def _write(self, suffix: str, data: bytes, position: int, cut: bool) -> None:
        file = self._disk.open(self.stem + suffix, create=True)
        try:
            if cut:
                file.truncate(position)
                self._unsynced.add(suffix)
            file.pwrite(data, position)
        finally:
            file.close()

    def cuts(self) -> list[Cut]:
        """The files that are longer than what is left of them. They count as cut from now on."""
        found: list[Cut] = []
        offsets, times = self.offsets, self.times
        if offsets.shrunk:
            offsets.shrunk = False
            found.append(self._cut(INDEX, offsets.written * OFFSET_ENTRY))
        if times.shrunk:
            times.shrunk = False
            found.append(self._cut(TIME_INDEX, times.written * TIME_ENTRY))
        return found

    def _cut(self, suffix: str, size: int) -> Cut:
        self._unsynced.add(suffix)
        return Cut(self.stem + suffix, size)

    async def sync(self, complete: bool, with_room: WithRoom) -> None:
        """Makes durable what has to be: all if `complete`, else what must not fall behind."""
        full = complete or len(self.offsets) - self._durable >= UNSURE_ENTRIES
        if full:
            await with_room(self.write)
        suffixes = set(self._unsynced)
        durable = self._durable
        if full:
            self._durable = len(self.offsets)
            if len(self.offsets):
                suffixes.add(INDEX)
            if len(self.times):
                suffixes.add(TIME_INDEX)
        try:
            for suffix in sorted(suffixes):
                await self._sync(suffix, with_room)
        except BaseException:
            self._durable = min(self._durable, durable)
            raise

    async def _sync(self, suffix: str, with_room: WithRoom) -> None:
        file = await opened(with_room, self._disk, self.stem + suffix, create=True)
        self._unsynced.discard(suffix)  # what is cut from now on is another matter
        try:
            await file.datasync()
        except BaseException:
            self._unsynced.add(suffix)
            raise
        finally:
            file.close()

    def forget(self, keep: int = 0) -> None:
        """Gives memory back, all but the last `keep` entries."""
        self.offsets.forget(keep)
        self.times.forget(keep)

    # ---- reading ----

    def load_offsets(self, log_size: int) -> bool | NotResident:
        """Brings the offset index into memory; False if it is damaged."""
        data = self._try_read(INDEX, self.offsets.skipped * OFFSET_ENTRY)
        if isinstance(data, NotResident):
            return data
        return data is not None and self.offsets.load(data, log_size)

    def load_times(self, end_offset: int) -> bool | NotResident:
        """Brings the time index into memory; False if it is damaged."""
        data = self._try_read(TIME_INDEX, self.times.skipped * TIME_ENTRY)
        if isinstance(data, NotResident):
            return data
        return data is not None and self.times.load(data, end_offset)

    def _try_read(self, suffix: str, size: int) -> bytes | NotResident | None:
        """The first `size` bytes of a file; None if it does not have as many."""
        if not size:
            return b""
        path = self.stem + suffix
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            view = memoryview(bytearray(size))
            done = 0
            while done < size:
                got = file.try_pread_into(view[done:], done)
                if got == WOULD_BLOCK:
                    return NotResident(Window(self._disk, path), done, size - done)
                if got == 0:
                    return None
                done += got
            return bytes(view)
        finally:
            file.close()

    def load(self, log_size: int, end_offset: int) -> bool:
        """Brings both into memory; False if one is damaged. Waits for the device."""
        offsets, times = self.offsets, self.times
        try:
            offset_data = self._disk.read(self.stem + INDEX) if offsets.skipped else b""
            time_data = self._disk.read(self.stem + TIME_INDEX) if times.skipped else b""
        except FileNotFoundError:
            return False
        return (
            len(offset_data) >= offsets.skipped * OFFSET_ENTRY
            and len(time_data) >= times.skipped * TIME_ENTRY
            and offsets.load(offset_data, log_size)
            and times.load(time_data, end_offset)
        )

    def last_time_window(self) -> NotResident | None:
        """Where the time index's last entry lies, if it is not in memory."""
        if not self.times.skipped:
            return None
        window = Window(self._disk, self.stem + TIME_INDEX)
        return NotResident(window, (self.times.skipped - 1) * TIME_ENTRY, TIME_ENTRY)

    def learn_last_time(self) -> bool:
        """Reads the time index's last entry; False if no index ends so. Waits for the device."""
        if not self.times.skipped:
            return True
        try:
            file = self._disk.open(self.stem + TIME_INDEX)
        except FileNotFoundError:
            return False
        try:
            view = memoryview(bytearray(TIME_ENTRY))
            file.pread_into(view, (self.times.skipped - 1) * TIME_ENTRY)
            return self.times.read_last(bytes(view))
        finally:
            file.close()

    # ---- going back ----

    def replace(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Takes indexes that were built anew in place of files that are missing or damaged."""
        self.offsets.replace(offsets)
        self.times.replace(times)

    def truncate(self, offset: int, margin: int) -> int:
        """Forgets what reaches `offset`, and `margin` entries before; the last position left."""
        position = self.offsets.truncate(offset, margin)
        known = self.offsets.last()[0] + 1 if position else self.offsets.base_offset
        self.times.truncate(known)
        self._durable = min(self._durable, len(self.offsets))
        return position
