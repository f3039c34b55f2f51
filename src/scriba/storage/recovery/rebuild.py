"""A segment's indexes, built anew from its batches."""

from scriba.records.header import NO_TIMESTAMP
from scriba.runtime.ports import Disk
from scriba.storage.segments.index import OffsetIndex, TimeIndex
from scriba.storage.segments.scan import scan


def rebuild_indexes(
    disk: Disk, path: str, base_offset: int, size: int, interval: int
) -> tuple[OffsetIndex, TimeIndex]:
    """The indexes that a segment's file should have. Waits for the device."""
    offsets, times = OffsetIndex(base_offset), TimeIndex(base_offset)
    latest = (NO_TIMESTAMP, base_offset)
    indexed = 0
    file = disk.open(path)
    try:
        for position, header in scan(file, 0, size, base_offset, check_from=None):
            if header.max_timestamp > latest[0]:
                latest = (header.max_timestamp, header.last_offset)
            if position - indexed > interval:
                offsets.append(header.base_offset, header.last_offset, position)
                times.append(*latest)
                indexed = position
    finally:
        file.close()
    times.append(*latest)
    return offsets, times
