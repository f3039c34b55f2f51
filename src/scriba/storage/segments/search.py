"""Finding records by their timestamps.

Batches are as their producers made them, and a few kilobytes may hold millions of records or
headers. So they are walked, never turned into objects, and off the loop unless they are small.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from scriba.records.batch import find_record
from scriba.records.compression import memory_for
from scriba.records.header import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from scriba.runtime.ports import Offload
from scriba.runtime.work.budget import run_within
from scriba.storage.segments.ascent import readable
from scriba.storage.segments.not_resident import settled
from scriba.storage.segments.scan import read_batch
from scriba.storage.segments.segment import Damaged, Segment
from scriba.storage.segments.segments import Segments

_WINDOW: Final = 64 << 10
_OFFLOAD_BYTES: Final = 16 << 10
_LAST_TIME: Final = 2**63 - 1


class TimedOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


async def first_after(
    segments: Segments, timestamp: int, start_offset: int, offload: Offload
) -> TimedOffset | None:
    """The first record at or after `start_offset` that is not older than `timestamp`."""
    for segment in segments.from_offset(start_offset):
        await segment.load_times()
        if segment.max_timestamp < timestamp:
            continue
        segments.touch(segment)
        await settled(segment.load_time_index)
        offset = max(segment.indexes.times.locate(timestamp), start_offset)
        position = await settled(partial(segment.locate, offset))
        async for at, header in _headers(segment, position):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            found = await _find(segment, at, header, offload, start_offset, timestamp, _LAST_TIME)
            if found is not None:
                return found
    return None


async def latest(segments: Segments, offload: Offload) -> TimedOffset | None:
    """The first record that carries the largest timestamp of all."""
    candidates = list(segments)
    for segment in candidates:
        await segment.load_times()
    newest = await _newest(candidates)
    segments.touch(newest)
    timestamp = newest.max_timestamp
    if timestamp < 0:
        return None
    position = await settled(partial(newest.locate, newest.max_timestamp_offset))
    async for at, header in _headers(newest, position):
        if header.max_timestamp == timestamp:
            found = await _find(newest, at, header, offload, 0, timestamp, timestamp)
            if found is not None:
                return found
    return None


async def _newest(segments: Sequence[Segment]) -> Segment:
    """The segment with the largest timestamp, of which its records were asked."""
    while True:
        newest = max(segments, key=lambda segment: segment.max_timestamp)
        claimed = newest.max_timestamp
        await newest.confirm_times()
        if newest.max_timestamp == claimed:
            return newest


async def _headers(segment: Segment, position: int) -> AsyncIterator[tuple[int, BatchHeader]]:
    """Batch headers from `position` on; each window is brought into the page cache first."""
    while segment.size - position >= HEADER_SIZE:
        file = segment.open_file()
        size = min(_WINDOW, segment.size - position)
        await file.load(position, size)
        window = read_batch(file, position, size)
        at = 0
        while len(window) - at >= HEADER_SIZE:
            header = BatchHeader._make(HEADER.unpack_from(window, at))
            if header.length <= 0:
                raise Damaged(f"{file.path} holds no record batch at {position + at}")
            yield position + at, header
            at += header.length + LOG_OVERHEAD
        if not at:
            return
        position += at


async def _find(
    segment: Segment,
    position: int,
    header: BatchHeader,
    offload: Offload,
    least_offset: int,
    earliest: int,
    latest: int,
) -> TimedOffset | None:
    """The first record of a batch within the bounds."""
    upper = segment.max_offset + 1
    await settled(partial(readable, segment, position, position, 0, upper, True))
    file = segment.open_file()
    size = header.length + LOG_OVERHEAD
    await file.load(position, size)
    batch = read_batch(file, position, size)
    if size > _OFFLOAD_BYTES or header.is_compressed:
        need = memory_for(header.codec, memoryview(batch)[HEADER_SIZE:])
        found = await run_within(offload, need, find_record, batch, least_offset, earliest, latest)
    else:
        found = find_record(batch, least_offset, earliest, latest)
    return None if found is None else TimedOffset(*found, header.leader_epoch)
