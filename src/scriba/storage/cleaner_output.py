"""A compacted segment in the making: its files, under names that no start takes for a segment."""

from scriba.records.header import NO_TIMESTAMP, Buffer
from scriba.runtime.ports import Disk, File
from scriba.storage.aborted import AbortedTxns
from scriba.storage.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from scriba.storage.names import CLEANED, INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from scriba.storage.producers import AbortedTxn


class Output:
    def __init__(self, disk: Disk, directory: str, base_offset: int, interval: int) -> None:
        self._disk = disk
        self._stem = f"{directory}/{file_name(base_offset, '')}"
        self._interval = interval
        self._since_index = 0
        self._pending = bytearray()
        self._latest = (NO_TIMESTAMP, base_offset)
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.aborted = AbortedTxns()
        self.size = 0
        """Bytes added so far, written or not."""
        self._file = self._create(LOG)

    def _create(self, suffix: str) -> File:
        file = self._disk.open(self._stem + suffix + CLEANED, create=True)
        if file.size():  # of an attempt that was given up
            file.truncate(0)
        return file

    def add(self, batch: Buffer, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        if max_timestamp > self._latest[0]:
            self._latest = (max_timestamp, last_offset)
        if self._since_index > self._interval:
            self._since_index = 0
            self.offsets.append(base_offset, last_offset, self.size)
            self.times.append(*self._latest)
        size = len(batch)
        self._since_index += size
        self.size += size
        self._pending += batch

    def note_aborted(self, txn: AbortedTxn) -> None:
        self.aborted.append(txn)

    def flush(self) -> int:
        """Writes what was added; how many bytes."""
        written = len(self._pending)
        if written:
            self._file.pwritev((self._pending,), self.size - written)
            self._pending.clear()
        return written

    def finish(self) -> tuple[int, int]:
        """Completes all files; the sizes of both indexes."""
        self.flush()
        self._file.close()
        self.times.append(*self._latest)
        self._write(INDEX, self.offsets.fresh())
        self._write(TIME_INDEX, self.times.fresh())
        if self.aborted:
            self._write(TXN_INDEX, self.aborted.encode())
        return len(self.offsets) * OFFSET_ENTRY, len(self.times) * TIME_ENTRY

    def _write(self, suffix: str, data: bytes) -> None:
        file = self._create(suffix)
        try:
            file.pwritev((data,), 0)
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
