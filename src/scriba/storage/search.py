"""Finding records by their timestamps."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from scriba.records.batch import Record, decode_records
from scriba.records.header import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from scriba.runtime.ports import Offload
from scriba.storage.cold import settled
from scriba.storage.scan import read_batch
from scriba.storage.segment import Damaged, Segment
from scriba.storage.segments import Segments

_WINDOW: Final = 64 << 10
_OFFLOAD_BYTES: Final = 16 << 10


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
            for record in await _records(segment, at, header, offload):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimedOffset(record.offset, record.timestamp, header.leader_epoch)
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
            for record in await _records(newest, at, header, offload):
                if record.timestamp == timestamp:
                    return TimedOffset(record.offset, timestamp, header.leader_epoch)
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


async def _records(
    segment: Segment, position: int, header: BatchHeader, offload: Offload
) -> list[Record]:
    file = segment.open_file()
    size = header.length + LOG_OVERHEAD
    await file.load(position, size)
    batch = read_batch(file, position, size)
    if size > _OFFLOAD_BYTES or header.is_compressed:
        return await offload.run(decode_records, batch)
    return decode_records(batch)
