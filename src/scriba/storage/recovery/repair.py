"""What of a damaged segment can be kept, decided from its bytes alone.

Batches whose checksum is right are found first, in their places or by looking for the next one
behind bytes that are none. Three fields lie outside the checksum and are mended where only one
value is possible: the magic, a length that ends where the next batch begins, and a base offset.
Those that fit into one ascending order are right; one that does not is given the only offset
between its neighbours that differs from what it says in one byte, or that fills the room between
them. Whatever else is damaged is dropped, and told.

Offsets never change otherwise: what is dropped leaves a gap, as compaction does.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from scriba.records.crc import crc32c
from scriba.records.header import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MIN_LENGTH,
    BatchHeader,
    read_header,
)
from scriba.storage.segments.index import MAX_RELATIVE_OFFSET

_FOR_EVER: Final = 2**63 - 1
_CHUNK: Final = 1 << 20


class Kept(NamedTuple):
    position: int
    size: int
    header: BatchHeader
    """As it is to be written."""
    mended: str
    """What is not as it was; empty for a batch that is sound."""


class Dropped(NamedTuple):
    position: int
    size: int
    first_offset: int
    end_offset: int
    """Offsets that nobody has any more; compaction may have dropped some of them before."""
    why: str


class Plan(NamedTuple):
    pieces: list[Kept | Dropped]
    padding: int
    """Bytes behind the last batch that were reserved for more."""

    @property
    def kept(self) -> list[Kept]:
        return [piece for piece in self.pieces if isinstance(piece, Kept)]

    @property
    def dropped(self) -> list[Dropped]:
        return [piece for piece in self.pieces if isinstance(piece, Dropped)]

    @property
    def sound(self) -> bool:
        return not any(isinstance(each, Dropped) or each.mended for each in self.pieces)

    def end_offset(self, base_offset: int) -> int:
        kept = self.kept
        return kept[-1].header.next_offset if kept else base_offset


class _Found(NamedTuple):
    position: int
    size: int
    header: BatchHeader
    mended: str


def plan(data: memoryview, base_offset: int, following: int | None) -> Plan:
    """`data` is a whole file; `following` is where what comes next begins, None if unknown."""
    limit = min(
        _FOR_EVER if following is None else following, base_offset + MAX_RELATIVE_OFFSET + 1
    )
    found, gaps, padding = _structure(data, base_offset, limit)
    right = _ascending([each.header for each in found], base_offset, limit)
    pieces: list[Kept | Dropped] = []
    low = base_offset
    for number, each in enumerate(found):
        header, mended = each.header, each.mended
        if number not in right:
            later = (
                found[i].header.base_offset for i in range(number + 1, len(found)) if i in right
            )
            high = next(later, limit)
            at = _only_place(header, low, high, known_end=high < limit or following is not None)
            if at is None:
                if high == limit and following is None:
                    high = low + header.last_offset_delta + 1
                why = f"its offset, {header.base_offset}, is wrong and cannot be told"
                pieces.append(Dropped(each.position, each.size, low, high, why))
                continue
            mended = f"its offset is {at}, not {header.base_offset}"
            header = header._replace(base_offset=at)
        pieces.append(Kept(each.position, each.size, header, mended))
        low = header.next_offset
    return Plan(_with_gaps(pieces, gaps, base_offset, following), padding)


# ---- the batches, whatever offsets they claim ----


def _structure(
    data: memoryview, base_offset: int, limit: int
) -> tuple[list[_Found], list[tuple[int, int]], int]:
    """Batches whose checksum is right, stretches that are none, and how much padding follows."""
    found: list[_Found] = []
    gaps: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        batch = _batch_at(data, position)
        if batch is None:
            if _only_zeros(data, position):
                return found, gaps, len(data) - position
            following = _next_batch(data, position + 1, base_offset, limit)
            batch = _with_length(data, position, following)
            if batch is None:
                gaps.append((position, following))
                position = following
                continue
        found.append(batch)
        position += batch.size
    return found, gaps, 0


def _only_zeros(data: memoryview, position: int) -> bool:
    chunks = range(position, len(data), _CHUNK)
    return not any(bytes(data[at : at + _CHUNK]).strip(b"\0") for at in chunks)


def _batch_at(data: memoryview, position: int) -> _Found | None:
    """The batch at `position`, also if only its magic is wrong."""
    if len(data) - position < HEADER_SIZE:
        return None
    header = read_header(data, position)
    size = header.length + LOG_OVERHEAD
    if header.length < MIN_LENGTH or size > len(data) - position or header.last_offset_delta < 0:
        return None
    if not _sum_is_right(data, position, size, header):
        return None
    if header.magic == MAGIC:
        return _Found(position, size, header, "")
    mended = f"its magic is {MAGIC}, not {header.magic}"
    return _Found(position, size, header._replace(magic=MAGIC), mended)


def _with_length(data: memoryview, position: int, end: int) -> _Found | None:
    """The batch that fills the room up to `end`, if only its length is wrong."""
    size = end - position
    if size < HEADER_SIZE:
        return None
    header = read_header(data, position)
    if header.magic != MAGIC or not _sum_is_right(data, position, size, header):
        return None
    length = size - LOG_OVERHEAD
    mended = f"its length is {length}, not {header.length}"
    return _Found(position, size, header._replace(length=length), mended)


def _next_batch(data: memoryview, position: int, base_offset: int, limit: int) -> int:
    """Where the next batch begins that is sound in every respect; the end if there is none."""
    whole: Any = data.obj  # which a view has no way to search
    mark = bytes([MAGIC])
    at: int = whole.find(mark, position + MAGIC_OFFSET)
    while at >= 0:
        start = at - MAGIC_OFFSET
        batch = _batch_at(data, start)
        if batch is not None and base_offset <= batch.header.base_offset < limit:
            return start
        at = whole.find(mark, at + 1)
    return len(data)


def _sum_is_right(data: memoryview, position: int, size: int, header: BatchHeader) -> bool:
    return crc32c(data[position + CRC_START : position + size]) == header.crc


# ---- their offsets ----


def _ascending(headers: Sequence[BatchHeader], base_offset: int, limit: int) -> set[int]:
    """The most batches whose offsets ascend together: those are right."""
    ends: list[int] = []  # the lowest end of an ascending run of each length
    last: list[int] = []  # the number of the batch it ends with
    before: dict[int, int | None] = {}
    for number, header in enumerate(headers):
        if not base_offset <= header.base_offset <= header.last_offset < limit:
            continue
        length = bisect_left(ends, header.base_offset + 1)
        before[number] = last[length - 1] if length else None
        if length == len(ends):
            ends.append(header.next_offset)
            last.append(number)
        elif header.next_offset < ends[length]:
            ends[length] = header.next_offset
            last[length] = number
    right: set[int] = set()
    number_or_none = last[-1] if last else None
    while number_or_none is not None:
        right.add(number_or_none)
        number_or_none = before[number_or_none]
    return right


def _only_place(header: BatchHeader, low: int, high: int, known_end: bool) -> int | None:
    """The one base offset from `low` on that the batch can have, below `high`."""
    highest = high - header.last_offset_delta - 1
    if known_end and highest == low:
        return low
    places = {at for at in _one_byte_off(header.base_offset) if low <= at <= highest}
    return places.pop() if len(places) == 1 else None


def _one_byte_off(number: int) -> Iterator[int]:
    told = number.to_bytes(8, "big", signed=True)
    for at in range(8):
        for byte in range(256):
            if byte != told[at]:
                other = told[:at] + bytes([byte]) + told[at + 1 :]
                yield int.from_bytes(other, "big", signed=True)


def _with_gaps(
    pieces: list[Kept | Dropped],
    gaps: list[tuple[int, int]],
    base_offset: int,
    following: int | None,
) -> list[Kept | Dropped]:
    """The pieces in their order in the file, with the stretches that hold no batch."""
    for start, end in gaps:
        kept = [piece for piece in pieces if isinstance(piece, Kept)]
        before = [each.header.next_offset for each in kept if each.position < start]
        after = [each.header.base_offset for each in kept if each.position >= end]
        low = before[-1] if before else base_offset
        high = after[0] if after else low if following is None else following
        why = "damaged" if end - start >= HEADER_SIZE else "no batch"
        pieces.append(Dropped(start, end - start, low, high, why))
    return sorted(pieces, key=lambda piece: piece.position)
