"""Record batches whole: their headers (from `header`), and the records inside.

Single records are read and written only by clients, by compaction, and where the broker itself
must look inside (checks, timestamp look-up, its own topics). The work on them is done by
`implementation.chosen`.
"""

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from scriba.errors import ParseError
from scriba.native import implementation
from scriba.native.fallback import Builder
from scriba.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    compress,
    decompress,
    unpack,
)
from scriba.records.crc import crc32c
from scriba.records.header import (
    CONTROL,
    CRC_OFFSET,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    check_crc,
    next_sequence,
    read_header,
    sane_header,
    set_log_append_time,
    set_timestamps,
    stamp,
    walk,
)
from scriba.records.numbers import write_varint
from scriba.records.record import Headers, Record

__all__ = [
    "CONTROL",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "MAGIC",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "TRANSACTIONAL",
    "BatchHeader",
    "Buffer",
    "Builder",
    "ControlType",
    "EndTxnMarker",
    "Headers",
    "Record",
    "assemble",
    "build_batch",
    "check_crc",
    "control_batch",
    "control_key",
    "control_type",
    "decode_records",
    "encode_batch",
    "end_txn_batch",
    "find_record",
    "next_sequence",
    "read_end_txn_marker",
    "read_header",
    "records_bytes",
    "sane_header",
    "seal",
    "set_log_append_time",
    "set_timestamps",
    "stamp",
    "walk",
    "write_varint",
]

ANY_TIME: Final = (-(2**63), 2**63 - 1)

_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_VALUE: Final = struct.Struct(">hi")
_CRC: Final = struct.Struct(">I")


class ControlType(enum.IntEnum):
    """What the key of a control record says."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(NamedTuple):
    """The last record of a transaction in one partition."""

    commit: bool
    coordinator_epoch: int


def records_bytes(batch: Buffer, header: BatchHeader, max_bytes: int) -> Buffer:
    """The records of a batch that lies at the start of `batch`: decompressed, or where they are."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], max_bytes)


def decode_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """All records of the batch at the start of `batch`; ParseError unless they fill it exactly."""
    header = read_header(batch)
    if header.length + LOG_OVERHEAD > len(batch):
        raise ParseError("the batch is cut short")
    return implementation.chosen.decode_records(
        records_bytes(batch, header, max_bytes),
        header.count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.attributes & LOG_APPEND_TIME else None,
    )


def find_record(
    batch: Buffer, least_offset: int, earliest: int, latest: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record from `least_offset` on whose timestamp lies within
    `earliest` to `latest`. The batch is walked as it is unpacked: no record becomes an object, and
    little of it is in memory, whatever it grows to."""
    header = read_header(batch)
    if header.length + LOG_OVERHEAD > len(batch):
        raise ParseError("the batch is cut short")
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    if append_time is not None:
        if not earliest <= append_time <= latest:
            return None
        earliest, latest = ANY_TIME
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    found = implementation.chosen.find_record(
        unpack(header.codec, payload, MAX_DECOMPRESSED_BYTES),
        header.count,
        header.base_timestamp,
        0,
        least_offset - header.base_offset,
        earliest,
        latest,
    )
    if found is None:
        return None
    delta, timestamp = found
    return header.base_offset + delta, timestamp if append_time is None else append_time


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    log_append_time: int | None = None,
) -> bytearray:
    """One batch of these records in their order; their offsets follow from `base_offset`."""
    builder = implementation.chosen.Builder(HEADER_SIZE)
    for _, timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return build_batch(
        builder,
        base_offset=base_offset,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
        log_append_time=log_append_time,
    )


def build_batch(
    builder: Builder,
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    log_append_time: int | None = None,
) -> bytearray:
    """One batch of what is in a `Builder(HEADER_SIZE)`, which is empty afterwards."""
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    max_timestamp = builder.max_timestamp
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    count = builder.count
    header = BatchHeader(
        base_offset=base_offset,
        length=builder.size - LOG_OVERHEAD,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=builder.base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )
    batch = builder.take()
    if codec:
        return assemble(header, compress(codec, memoryview(batch)[HEADER_SIZE:], level))
    seal(batch, header)
    return batch


def assemble(header: BatchHeader, payload: Buffer) -> bytearray:
    """A batch of this header and these records; its length and checksum are worked out here."""
    batch = bytearray(HEADER_SIZE)
    batch += payload
    seal(batch, header._replace(length=len(batch) - LOG_OVERHEAD))
    return batch


def seal(batch: bytearray, header: BatchHeader) -> None:
    """Writes the header, and the checksum, into the room before the records."""
    HEADER.pack_into(batch, 0, *header)
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))


def control_key(kind: ControlType) -> bytes:
    return _CONTROL_KEY.pack(0, kind)


def control_type(key: bytes | None) -> ControlType | None:
    """What a control record's key says; None for a kind from the future, which is skipped."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise ParseError("a control record without a proper key")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise ParseError(f"control record of version {version}")
    try:
        return ControlType(kind)
    except ValueError:
        return None


def control_batch(
    entries: Sequence[tuple[ControlType, bytes]],
    timestamp: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """One control batch of the metadata quorum: leader change, snapshot header, voters, ..."""
    return encode_batch(
        [Record(0, timestamp, control_key(kind), value) for kind, value in entries],
        control=True,
        leader_epoch=leader_epoch,
    )


def end_txn_batch(
    producer_id: int, producer_epoch: int, marker: EndTxnMarker, timestamp: int
) -> bytearray:
    """The batch that commits or aborts a producer's open transaction in a partition."""
    kind = ControlType.COMMIT if marker.commit else ControlType.ABORT
    value = _END_TXN_VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [Record(0, timestamp, control_key(kind), value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_txn_marker(batch: Buffer) -> EndTxnMarker | None:
    """The marker in a control batch; None when compaction emptied it or it is of another kind."""
    records = decode_records(batch)
    if not records:
        return None
    kind = control_type(records[0].key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = records[0].value
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise ParseError("an end of transaction without a proper value")
    _, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    return EndTxnMarker(kind is ControlType.COMMIT, coordinator_epoch)
