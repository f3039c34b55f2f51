"""Record batches whole: their headers (from `header`), and the records inside.

Single records are read and written only by clients, by compaction, and where the broker itself
must look inside (keys of compacted topics, timestamp look-up, its own topics). A record is a
length and that many bytes: attributes (1, unused), timestamp delta, offset delta, key, value and
headers, all numbers zigzag varints, a length of -1 meaning null.
"""

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from scriba.errors import ParseError
from scriba.records.compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
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
    "ControlType",
    "EndTxnMarker",
    "Headers",
    "Record",
    "assemble",
    "check_crc",
    "check_records",
    "control_batch",
    "control_key",
    "control_type",
    "decode_records",
    "encode_batch",
    "end_txn_batch",
    "next_sequence",
    "read_end_txn_marker",
    "read_header",
    "records_bytes",
    "sane_header",
    "set_log_append_time",
    "set_timestamps",
    "stamp",
    "walk",
]

Headers = Sequence[tuple[str, bytes | None]]

_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_VALUE: Final = struct.Struct(">hi")
_CRC: Final = struct.Struct(">I")
_MAX_VARINT: Final = 10


class Record(NamedTuple):
    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


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


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends. IndexError past the end of `buf`."""
    byte = buf[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    value = byte & 0x7F
    shift = 7
    for at in range(pos + 1, pos + _MAX_VARINT):
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFFFFFFFFFF
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise ParseError("a number in a record has too many bytes")


def write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def records_bytes(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes:
    """The records of a batch that lies at the start of `batch`, decompressed."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], max_bytes)


def decode_records(batch: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """All records of the batch at the start of `batch`; ParseError unless they fill it exactly."""
    header = read_header(batch)
    if header.length + LOG_OVERHEAD > len(batch):
        raise ParseError("the batch is cut short")
    data = records_bytes(batch, header, max_bytes)
    fixed_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records: list[Record] = []
    pos = 0
    try:
        for _ in range(header.count):
            record, pos = _read_record(data, pos, header, fixed_time)
            records.append(record)
    except (IndexError, UnicodeDecodeError):
        raise ParseError("a record is malformed") from None
    if pos != len(data):
        raise ParseError(f"{len(data) - pos} bytes follow the last record of the batch")
    return records


def _read_record(
    data: bytes, pos: int, header: BatchHeader, fixed_time: int | None
) -> tuple[Record, int]:
    size, pos = read_varint(data, pos)
    end = pos + size
    if size < 0 or end > len(data):
        raise ParseError("a record reaches past the end of its batch")
    time_delta, pos = read_varint(data, pos + 1)
    offset_delta, pos = read_varint(data, pos)
    key, pos = _read_bytes(data, pos, end)
    value, pos = _read_bytes(data, pos, end)
    count, pos = read_varint(data, pos)
    headers: Headers = ()
    if count:
        if not 0 < count <= end - pos:
            raise ParseError("a record has an impossible number of headers")
        pairs: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, pos = _read_bytes(data, pos, end)
            if name is None:
                raise ParseError("the name of a record header is null")
            content, pos = _read_bytes(data, pos, end)
            pairs.append((name.decode(), content))
        headers = tuple(pairs)
    if pos != end:
        raise ParseError("a record's length does not fit its content")
    timestamp = header.base_timestamp + time_delta if fixed_time is None else fixed_time
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), pos


def _read_bytes(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size, pos = read_varint(data, pos)
    if size < 0:
        return None, pos
    if size > end - pos:
        raise ParseError("a field reaches past the end of its record")
    return data[pos : pos + size], pos + size


def check_records(data: bytes, count: int, need_keys: bool) -> int | None:
    """Steps over `count` records that must fill `data`; ParseError otherwise.

    Returns the index of the first record without a key when keys are needed.
    """
    pos = 0
    keyless: int | None = None
    try:
        for index in range(count):
            size, pos = read_varint(data, pos)
            if size < 0 or size > len(data) - pos:
                raise ParseError("a record reaches past the end of its batch")
            if need_keys and keyless is None:
                _, at = read_varint(data, pos + 1)
                _, at = read_varint(data, at)
                if read_varint(data, at)[0] < 0:
                    keyless = index
            pos += size
    except IndexError:
        raise ParseError("the batch holds fewer records than it says") from None
    if pos != len(data):
        raise ParseError("the batch holds more than the records it counts")
    return keyless


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
    body = bytearray()
    record = bytearray()
    base_timestamp: int | None = None
    max_timestamp = NO_TIMESTAMP
    count = 0
    for _, timestamp, key, value, headers in records:
        if base_timestamp is None:
            base_timestamp = timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        record.clear()
        record.append(0)
        write_varint(record, timestamp - base_timestamp)
        write_varint(record, count)
        _write_bytes(record, key)
        _write_bytes(record, value)
        write_varint(record, len(headers))
        for name, content in headers:
            _write_bytes(record, name.encode())
            _write_bytes(record, content)
        write_varint(body, len(record))
        body += record
        count += 1
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=NO_TIMESTAMP if base_timestamp is None else base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )
    return assemble(header, compress(codec, body, level) if codec else body)


def assemble(header: BatchHeader, payload: Buffer) -> bytearray:
    """A batch of this header and these records; its length and checksum are worked out here."""
    header = header._replace(length=HEADER_SIZE - LOG_OVERHEAD + len(payload))
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the varint of -1
    else:
        write_varint(out, len(data))
        out += data


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
