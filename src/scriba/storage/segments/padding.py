"""Room that a segment's file was given beyond its batches (`preallocate`), after a crash.

The file is trimmed when its segment is sealed and when the log is closed. In the last segment
recovery finds the end by itself, as it reads on to the last valid batch. But a power cut may also
undo the trimming of a sealed segment whose batches all were flushed before: then nobody would look.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from scriba.records.header import HEADER_SIZE
from scriba.storage.directory.names import LOG
from scriba.storage.segments.scan import scan
from scriba.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

_NO_HEADER: Final = bytes(HEADER_SIZE)


def trim_sealed(segments: Sequence[Segment]) -> bool:
    """Trims those of which all batches are there, up to the next segment; whether any was."""
    trimmed = False
    for segment, following in pairwise(segments):
        if _ends_in_zeros(segment):
            end = _end_of_batches(segment, following.base_offset)
            if end < segment.size:
                logger.info("%s: trimmed to %d bytes", segment.path(LOG), end)
                segment.open_file().truncate(end)
                segment.size = end
                trimmed = True
        file = segment.release_file()
        if file is not None:
            file.close()
    return trimmed


def _ends_in_zeros(segment: Segment) -> bool:
    if segment.size < HEADER_SIZE:
        return False
    tail = memoryview(bytearray(HEADER_SIZE))
    segment.open_file().pread_into(tail, segment.size - HEADER_SIZE)
    return tail == _NO_HEADER


def _end_of_batches(segment: Segment, following: int) -> int:
    """Where the batch ends that the next segment follows; the end of the file if there is none."""
    base = segment.base_offset
    segment.load_indexes()
    for start in (segment.indexes.offsets.last()[1], 0):
        for at, header in scan(segment.open_file(), start, segment.size, base, check_from=None):
            if header.next_offset == following:
                return at + header.size
    return segment.size
