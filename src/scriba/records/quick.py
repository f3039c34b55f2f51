"""Two functions that know the good case alone, in Python: twins of what `scriba._native` has.

Both answer None for everything else: what is special, or what is wrong, is found out at leisure by
whoever called. Where the extension was built `take_plain` looks at every record as well; here it
believes the header, as `validate` does.
"""

import struct
from typing import Final

from scriba.errors import KafkaError, ParseError
from scriba.records import pure
from scriba.records.compression import Codec, decompress
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
)

_NO_TAGS: Final = b"\0\0\0"
"""How a request ends that has no tagged fields: of the partition, the topic and the request."""

_INT32: Final = struct.Struct(">i")


def check_lz4(
    frame: Buffer,
    max_bytes: int,
    count: int,
    base_timestamp: int,
    need_keys: bool,
    earliest: int,
    latest: int,
) -> tuple[int, int, int] | None:
    """As `check_records`, of records that are an lz4 frame; None if it is no good one.

    Nor if it grows to more than `max_bytes`. ParseError is for the records in it.
    """
    try:
        data = decompress(Codec.LZ4, frame, max_bytes)
    except (KafkaError, ParseError):
        return None
    return pure.check_records((data,), count, base_timestamp, need_keys, earliest, latest)


def take_plain(
    frame: memoryview, at: int, compact: bool, most_bytes: int, earliest: int, latest: int
) -> tuple[memoryview, BatchHeader] | None:
    """The one batch in the field that ends a request, if it is a good and plain one.

    Plain is what has no codec, transaction or other specialities. `compact` says how the field at
    `at` tells its size, and that the request ends in tagged fields, of which it has none.
    """
    view = _last_field(frame, at, compact)
    if view is None or not HEADER_SIZE <= len(view) <= most_bytes:
        return None
    header = BatchHeader._make(HEADER.unpack_from(view))
    count = header.count
    if (
        header.length + LOG_OVERHEAD != len(view)
        or header.magic != MAGIC
        or header.attributes
        or header.base_offset
        or count <= 0
        or header.last_offset_delta + 1 != count
        or (header.producer_id >= 0 and header.base_sequence < 0)
        or not _timely(header, earliest, latest)
        or crc32c(view[CRC_START:]) != header.crc
    ):
        return None
    return view, header


def _timely(header: BatchHeader, earliest: int, latest: int) -> bool:
    base, largest = header.base_timestamp, header.max_timestamp
    if largest < base or base < NO_TIMESTAMP:
        return False
    if largest == NO_TIMESTAMP:
        return True
    return earliest <= largest <= latest and (base == NO_TIMESTAMP or base >= earliest)


def _last_field(frame: memoryview, at: int, compact: bool) -> memoryview | None:
    if not compact:
        try:
            (size,) = _INT32.unpack_from(frame, at)
        except struct.error:
            return None
        return frame[at + 4 :] if at + 4 + size == len(frame) else None
    size = shift = 0
    while shift < 35 and at < len(frame):
        byte = frame[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            end = at + size - 1
            return frame[at:end] if size and bytes(frame[end:]) == _NO_TAGS else None
    return None
