"""A compacted segment in the making: its files, under names that no start takes for a segment."""

from scriba.native.fallback import Walk
from scriba.records.header import NO_TIMESTAMP, Buffer
from scriba.runtime.ports import Disk, File
from scriba.storage.directory.names import CLEANED, INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from scriba.storage.producers.state import AbortedTxn
from scriba.storage.segments.aborted import AbortedTxns
from scriba.storage.segments.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex


class Output:
    def __init__(
        self, disk: Disk, directory: str, base_offset: int, interval: int, buffer: bytearray
    ) -> None:
        self._disk = disk
        self._stem = f"{directory}/{file_name(base_offset, '')}"
        self.interval = interval
        """Bytes between two entries of the indexes."""
        self.since_index = 0
        self.latest = (NO_TIMESTAMP, base_offset)
        """The largest timestamp, and the last offset of the batch that has it."""
        self.buffer = buffer
        """What is to be written next lies here, up to `used`."""
        self.used = 0
        self._written = 0
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.aborted = AbortedTxns()
        self._file = self._create(LOG)

    @property
    def size(self) -> int:
        """Bytes added so far, written or not."""
        return self._written + self.used

    def _create(self, suffix: str) -> File:
        file = self._disk.open(self._stem + suffix + CLEANED, create=True)
        if file.size():  # of an attempt that was given up
            file.truncate(0)
        return file

    def add(self, batch: Buffer, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self.latest[0]:
            self.latest = (max_timestamp, last_offset)
        if self.since_index > self.interval:
            self.since_index = 0
            self.offsets.append(base_offset, last_offset, self.size)
            self.times.append(*self.latest)
        size = len(batch)
        self.since_index += size
        if size > len(self.buffer) - self.used:
            self.flush()
        if size > len(self.buffer):
            self._file.pwrite(batch, self._written)
            self._written += size
        else:
            self.buffer[self.used : self.used + size] = batch
            self.used += size

    def added(self, walk: Walk) -> None:
        """Takes note of batches that a walk has put into the buffer."""
        for base_offset, last_offset, place, timestamp, offset in walk.entries:
            self.offsets.append(base_offset, last_offset, self._written + place)
            self.times.append(timestamp, offset)
        self.used, self.since_index = walk.used, walk.since_index
        self.latest = (walk.max_timestamp, walk.max_timestamp_offset)

    def note_aborted(self, txn: AbortedTxn) -> None:
        self.aborted.append(txn)

    def flush(self) -> None:
        """Writes what is in the buffer."""
        if self.used:
            self._file.pwrite(memoryview(self.buffer)[: self.used], self._written)
            self._written += self.used
            self.used = 0

    def finish(self) -> tuple[int, int]:
        """Completes all files; the sizes of both indexes."""
        self.flush()
        self._file.close()
        self.times.append(*self.latest)
        self._write(INDEX, self.offsets.fresh())
        self._write(TIME_INDEX, self.times.fresh())
        if self.aborted:
            self._write(TXN_INDEX, self.aborted.encode())
        return len(self.offsets) * OFFSET_ENTRY, len(self.times) * TIME_ENTRY

    def _write(self, suffix: str, data: bytes) -> None:
        file = self._create(suffix)
        try:
            file.pwrite(data, 0)
        finally:
            file.close()

    def abandon(self) -> None:
        """Removes what there is."""
        self._file.close()
        discard(self._disk, self._stem)


def discard(disk: Disk, stem: str) -> None:
    """Removes a compacted segment that did not take its place."""
    for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
        path = stem + suffix + CLEANED
        if disk.exists(path):
            disk.unlink(path)
