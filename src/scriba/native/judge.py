"""Judges the batches of a Produce, all in one call: the twin of `judge_produce` in C. And those
that a leader sent: `checked_batches`.

It knows the plain good case alone, and answers None for everything else: what is special, or what
is wrong, is found out by `scriba.records.validate`. The extension looks at every record as well;
here the header is believed, as `validate` does without the extension.
"""

from itertools import chain
from typing import Any, Final, Literal

from scriba.native.locate import Located, locate
from scriba.records.crc import crc32c
from scriba.records.header import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_crc,
    sane_header,
)

TOPICS_AT: Final = 6
"""Where topics begin in what a plan of Produce tells: behind correlation id, begin and end of the
transactional id, acks, time-out and the number of topics."""
BATCHES_AT: Final = 3
"""Where batches begin in what is told of a topic: behind begin and end of its name or id, and their
number. Of each there are three numbers: its partition, its begin and its end."""

LZ4: Final = 3
"""The attributes of a batch in lz4 that has no others."""
_MAX_INT64: Final = 2**63 - 1

Found = tuple[Any, ...]
"""Correlation id, acks and time-out of a request. Then of each batch, one after the other: its
partition, as it is in the tables, its bytes and its header."""


def judge_produce(
    plan: bytes,
    frame: memoryview,
    most_elements: int,
    topics: dict[bytes, Any],
    now_ms: int,
    most_unpacked: int,
    /,
) -> Found | Literal[False] | None:
    """What is in a request, if all of its batches are good and plain.

    Plain is what has no codec but lz4, no transaction or other specialities, and names every
    partition once. `topics` has tuples: the size that a batch without a codec may have, whether
    records need keys, how far their timestamps may be before and after now, the partitions by their
    index, and the size that a batch in lz4 may have; whatever follows is the caller's. To look at
    records in lz4 the extension unpacks so many bytes of them at the most, of a whole request.
    False tells that a topic or a partition is not in these tables.
    """
    located = locate(plan, frame, most_elements)
    if located is None:
        return None
    transactional_id, acks, count = located[1], located[3], located[TOPICS_AT - 1]
    if transactional_id >= 0 or not -1 <= acks <= 1 or not count:
        return None
    known_topics: list[Any] = []
    batches: list[tuple[Any, memoryview, BatchHeader]] = []
    at = TOPICS_AT
    for _ in range(count):
        topic = topics.get(bytes(frame[located[at] : located[at + 1]]))
        if topic is None:
            return False
        entries = range(at + BATCHES_AT, at + BATCHES_AT + 3 * located[at + 2], 3)
        if not entries or any(known is topic for known in known_topics):
            return None
        known_topics.append(topic)
        at = entries.stop
        for entry in entries:
            partition = topic[4].get(located[entry])
            if partition is None:
                return False
            batch = _batch(frame, located, entry, topic, now_ms)
            if batch is None or any(known is partition for known, *_ in batches):
                return None
            batches.append((partition, *batch))
    if any(crc32c(view[CRC_START:]) != header.crc for _, view, header in batches):
        return None
    return (located[0], acks, located[4], *chain.from_iterable(batches))


def _batch(
    frame: memoryview, located: Located, entry: int, topic: Any, now_ms: int
) -> tuple[memoryview, BatchHeader] | None:
    most_bytes, need_keys, before_ms, after_ms, _, most_lz4 = topic[:6]
    begin, end = located[entry + 1], located[entry + 2]
    if need_keys or begin < 0 or end - begin < HEADER_SIZE:
        return None  # whether there are keys only a walk over the records can tell
    header = BatchHeader._make(HEADER.unpack_from(frame, begin))
    if end - begin > (most_lz4 if header.attributes == LZ4 else most_bytes):
        return None
    if not _plain(header, end - begin) or not _timely(
        header, now_ms - before_ms, now_ms + after_ms
    ):
        return None
    return frame[begin:end], header


def _plain(header: BatchHeader, size: int) -> bool:
    return (
        header.length + LOG_OVERHEAD == size
        and header.magic == MAGIC
        and header.attributes in (0, LZ4)
        and not header.base_offset
        and header.count > 0
        and header.last_offset_delta + 1 == header.count
        and (header.producer_id < 0 or header.base_sequence >= 0)
    )


def _timely(header: BatchHeader, earliest: int, latest: int) -> bool:
    base, largest = header.base_timestamp, header.max_timestamp
    if largest < base or base < NO_TIMESTAMP:
        return False
    if largest == NO_TIMESTAMP:
        return True
    return earliest <= largest <= latest and (base == NO_TIMESTAMP or base >= earliest)


def checked_batches(data: Buffer, next_offset: int, /) -> list[tuple[int, BatchHeader]]:
    """The batches in `data`, each with its position, as far as they are whole and right.

    Each has to go on from where the one before ends, the first from `next_offset`; there may be
    gaps. What ends the walk before the end of the data is for the caller to find out.
    """
    found: list[tuple[int, BatchHeader]] = []
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        last_offset = header.base_offset + header.last_offset_delta
        if (
            not sane_header(header)
            or not next_offset <= header.base_offset
            or last_offset >= _MAX_INT64
            or not check_crc(data, position, header)
        ):
            break
        found.append((position, header))
        position += header.length + LOG_OVERHEAD
        next_offset = last_offset + 1
    return found
