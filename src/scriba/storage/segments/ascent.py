"""Whether the offsets of a segment's batches ascend, looked at before every read.

A batch's base offset, its length and its leader epoch lie outside its checksum. A byte that flips
in a base offset would send good records out under wrong offsets. Within a segment they ascend,
though: so before a stretch of a file is handed out, its headers are walked, the one behind it
included, and each must begin where the one before has ended, or later. What may lie at the
beginning is known of the batches that were appended last, and otherwise from the offset index,
whose entries have a batch's last offset: the walk begins at one.

Nothing is remembered, so it does not matter when a byte flips, nor who wrote the batch. A gap
between two batches is no fault: compaction leaves them. A flip within such a gap cannot be told.
"""

from typing import TYPE_CHECKING, Final

from scriba.native import headers, implementation
from scriba.records.header import HEADER_SIZE
from scriba.storage.segments.not_resident import NotResident

if TYPE_CHECKING:
    from scriba.storage.segments.segment import Segment

MOST_HEADERS: Final = 8192
"""Passed for one read: below a millisecond in C. A read of more batches gets fewer of them."""


def readable(
    segment: "Segment", start: int, stop: int, offset: int, upper: int, min_one: bool
) -> int | NotResident:
    """The size of the batches from the one at `start` on, which holds `offset`, that end by `stop`.

    With `min_one` that of the first one at least. All offsets must be below `upper`. Raises
    `Damaged` where they do not ascend.
    """
    position, next_offset, last_offset = segment.anchor(start)
    file, size = segment.file or segment.open_file(), segment.size
    terms = (position, start, stop, size, next_offset, last_offset, offset, upper, MOST_HEADERS)
    end = implementation.chosen.walk_headers(file.fd, *terms, min_one) if file.fd >= 0 else None
    if end is not None:
        return end - start
    how, here = headers.walk(file.try_pread_into, *terms, min_one)
    if how == headers.ASCENDING:
        return here - start
    if how == headers.DAMAGED:
        return segment.mistrust(here)
    return _not_read(segment, here, min(stop + HEADER_SIZE, size))


def _not_read(segment: "Segment", position: int, end: int) -> NotResident:
    """What is to be read is to be sent, too: it is loaded in one piece, not header by header."""
    found = segment.try_read(position, HEADER_SIZE)
    if isinstance(found, NotResident) and not found.size:
        return found  # the file is shorter than it was: the index is built anew
    return segment.not_resident(position, max(end - position, HEADER_SIZE))
