"""Record batches, format 2: the unit that is sent, stored, checked and fetched.

A batch is a header of 61 bytes and its records, compressed as a whole or not at all. The base
offset, the length and the leader epoch lie before the checksum and outside of it, so a broker
stamps them in place without looking at a single record:

    0 base offset (8) · 8 length (4) · 12 leader epoch (4) · 16 magic (1) · 17 crc (4)
    21 attributes (2) · 23 last offset delta (4) · 27 base timestamp (8) · 35 max timestamp (8)
    43 producer id (8) · 51 producer epoch (2) · 53 base sequence (4) · 57 record count (4)

Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon.
`length` counts what follows it, so a batch is `length + 12` bytes long.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from scriba.errors import ParseError
from scriba.records.compression import Codec
from scriba.records.crc import crc32c

Buffer = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Base offset and length: what comes before the bytes that `length` counts."""

MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC: Final = 2
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
CRC_START: Final = 21
"""Where the bytes begin that the checksum covers."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
PLACE: Final = struct.Struct(">qii")
"""Base offset, length and leader epoch: what a broker stamps on a batch."""
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's word; nobody counts in a header's tuple

    @property
    def size(self) -> int:
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """ParseError for the three numbers that no codec has."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise ParseError(f"no codec has the number {self.attributes & CODEC_MASK}") from None

    @property
    def is_compressed(self) -> bool:
        return self.attributes & CODEC_MASK != 0

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)


def next_sequence(sequence: int, step: int = 1) -> int:
    """Sequences wrap from the largest 32-bit number to zero."""
    return (sequence + step) & MAX_SEQUENCE


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`, whatever it says: `sane_header` judges it."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error:
        raise ParseError(f"{len(buf) - pos} bytes are too few for a batch header") from None


def sane_header(header: BatchHeader) -> bool:
    """Whether this can be the header of a batch at all; what a scan of a file goes by."""
    return (
        header.magic == MAGIC
        and header.length >= MIN_LENGTH
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
    )


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the whole batch is there and its checksum is right."""
    end = pos + header.length + LOG_OVERHEAD
    if header.length < MIN_LENGTH or end > len(buf):
        return False
    return crc32c(memoryview(buf)[pos + CRC_START : end]) == header.crc


def stamp(view: memoryview | bytearray, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Gives the batch at `pos` its place in the log. The checksum does not cover these fields."""
    _BASE_OFFSET.pack_into(view, pos, base_offset)
    _LEADER_EPOCH.pack_into(view, pos + 12, leader_epoch)


def set_timestamps(
    view: memoryview | bytearray, pos: int, header: BatchHeader, max_timestamp: int, append: bool
) -> BatchHeader:
    """Writes the largest timestamp and its kind, and the checksum that follows from them."""
    attributes = header.attributes & ~LOG_APPEND_TIME | (LOG_APPEND_TIME if append else 0)
    _ATTRIBUTES.pack_into(view, pos + CRC_START, attributes)
    _MAX_TIMESTAMP.pack_into(view, pos + 35, max_timestamp)
    crc = crc32c(memoryview(view)[pos + CRC_START : pos + header.size])
    _CRC.pack_into(view, pos + CRC_OFFSET, crc)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)


def set_log_append_time(
    view: memoryview | bytearray, pos: int, header: BatchHeader, timestamp: int
) -> BatchHeader:
    """Every record of the batch then counts as written at `timestamp`."""
    return set_timestamps(view, pos, header, timestamp, append=True)


def walk(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch in `buf` with its position; a part of one at the end is left out.

    Raises ParseError at bytes that cannot be a batch.
    """
    end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
        if not sane_header(header):
            raise ParseError(f"no record batch at position {pos}")
        following = pos + header.length + LOG_OVERHEAD
        if following > end:
            return
        yield pos, header
        pos = following
