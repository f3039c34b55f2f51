"""What a broker checks, and may change, before a produced batch goes into a log.

Everything is judged from the header; single records are stepped over only when the topic demands
it: a compacted topic needs keys, and a `compression.type` other than the producer's makes the
records pass through here anyway. Each refusal has the code that Kafka gives.
"""

import enum
from typing import Final, NamedTuple, Protocol

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.records.batch import assemble, check_records, records_bytes
from scriba.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    codec_named,
    compress,
)
from scriba.records.crc import crc32c
from scriba.records.header import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    set_timestamps,
)

_MIN_RECORD_LENGTH: Final = 14
"""Below this not even the oldest message format fits; Kafka calls it corrupt, not invalid."""

_OFFLOAD_BYTES: Final = 16 << 10
_OFFLOAD_RECORDS: Final = 500


class Origin(enum.Enum):
    """Who wrote the batch. Clients are not trusted with offsets, control records or sequences."""

    CLIENT = enum.auto()
    COORDINATOR = enum.auto()


class TopicRules(Protocol):
    """The topic settings that judge a batch."""

    @property
    def cleanup_policy(self) -> tuple[str, ...]: ...
    @property
    def compression_type(self) -> str: ...
    @property
    def compression_gzip_level(self) -> int: ...
    @property
    def compression_lz4_level(self) -> int: ...
    @property
    def compression_zstd_level(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def message_timestamp_before_max_ms(self) -> int: ...
    @property
    def message_timestamp_after_max_ms(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...


class Prepared(NamedTuple):
    """A batch that may be appended: its bytes, writable, and its header as it now is."""

    view: memoryview
    header: BatchHeader


def peek(view: memoryview) -> BatchHeader:
    """The header of the one whole batch in `view`; KafkaError when there is none, or more."""
    size = len(view)
    if size < MAGIC_OFFSET + 1:
        raise _invalid("the request holds no whole record batch")
    if size < HEADER_SIZE:
        raise _no_batch(view, size)
    header = BatchHeader._make(HEADER.unpack_from(view))
    batch_size = header.length + LOG_OVERHEAD
    if batch_size != size or header.magic != MAGIC or header.length < MIN_LENGTH:
        _check_frame(view, header.length, header.magic, size)
    return header


def _no_batch(view: memoryview, size: int) -> KafkaError:
    length = int.from_bytes(view[8:12], "big", signed=True)
    magic = int.from_bytes(view[MAGIC_OFFSET : MAGIC_OFFSET + 1], "big", signed=True)
    _check_frame(view, length, magic, size)
    return _corrupt("the record batch is shorter than its header")


def _check_frame(view: memoryview, length: int, magic: int, size: int) -> None:
    """Refuses what is not exactly one batch; part of another one behind it is overlooked."""
    if length < _MIN_RECORD_LENGTH:
        raise _corrupt(f"a record batch cannot be {length} bytes long")
    if not 0 <= magic <= MAGIC:
        raise _corrupt(f"no record format has the number {magic}")
    end = length + LOG_OVERHEAD
    if end > size:
        raise _invalid("the request holds no whole record batch")
    if magic != MAGIC:
        raise _invalid(f"record format {magic} is too old: produce with format {MAGIC}")
    if length < MIN_LENGTH:
        raise _corrupt("the record batch is shorter than its header")
    rest = size - end
    if rest >= LOG_OVERHEAD:
        following = int.from_bytes(view[end + 8 : end + 12], "big", signed=True)
        if following < _MIN_RECORD_LENGTH:
            raise _corrupt(f"a record batch cannot be {following} bytes long")
        if following + LOG_OVERHEAD <= rest:
            raise _invalid("a produce request carries exactly one record batch per partition")


def prepare(
    view: memoryview,
    config: TopicRules,
    now_wall_ms: int,
    *,
    origin: Origin = Origin.CLIENT,
    allow_zstd: bool = True,
) -> Prepared:
    """Checks a produced batch and makes it what the topic stores; KafkaError says why not.

    `view` must be writable: timestamps are set in place, recompression gives new bytes.
    """
    header = peek(view)
    size = header.length + LOG_OVERHEAD
    if size != len(view):
        view = view[:size]
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and not allow_zstd):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            "zstd needs Produce version 7 or later" if codec == Codec.ZSTD else "unknown codec",
        )
    if origin is Origin.CLIENT and header.base_offset != 0:
        raise _invalid(f"a produced batch starts at offset 0, not {header.base_offset}")
    if size > config.max_message_bytes:
        raise _too_large(size, config.max_message_bytes)
    if crc32c(view[CRC_START:]) != header.crc:
        raise _corrupt("the checksum of the record batch is wrong")
    if origin is Origin.CLIENT:
        _check_client_header(header)
    header = _settle_timestamps(view, header, config, now_wall_ms)
    target = codec_named(config.compression_type)
    if target is None or (not codec and attributes & CONTROL):
        target = Codec(codec)
    if target != codec:
        view, header = _recompress(view, header, target, config)
    elif "compact" in config.cleanup_policy and not attributes & CONTROL:
        _open_records(view, header, need_keys=True)
    if header.length + LOG_OVERHEAD > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {header.size} bytes, a segment of this topic {config.segment_bytes}",
        )
    return Prepared(view, header)


def needs_offload(header: BatchHeader, config: TopicRules) -> bool:
    """Whether `prepare` would hold the loop for long: recompression, or a walk over records."""
    target = codec_named(config.compression_type)
    codec = header.attributes & CODEC_MASK
    if target is not None and target != codec:
        return header.length > _OFFLOAD_BYTES or header.count > _OFFLOAD_RECORDS
    if "compact" in config.cleanup_policy:
        return header.count > _OFFLOAD_RECORDS or (codec != 0 and header.length > _OFFLOAD_BYTES)
    return False


def _check_client_header(header: BatchHeader) -> None:
    if header.last_offset_delta < 0 or header.count <= 0:
        raise _invalid(f"a batch of {header.count} records is not acceptable")
    if header.last_offset_delta + 1 != header.count:
        raise _invalid(
            f"the batch counts {header.count} records but spans {header.last_offset_delta + 1}"
        )
    if header.attributes & CONTROL:
        raise _invalid("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} sent sequence {header.base_sequence}")


def _settle_timestamps(
    view: memoryview, header: BatchHeader, config: TopicRules, now: int
) -> BatchHeader:
    base, largest = header.base_timestamp, header.max_timestamp
    by_producer_append_time = header.attributes & LOG_APPEND_TIME
    if config.message_timestamp_type == "LogAppendTime":
        if by_producer_append_time:
            raise _bad_time("a producer may not set the timestamp type LogAppendTime")
        return set_timestamps(view, 0, header, now, append=True)
    if largest < base:  # some clients leave it unset; the base is at least one record's time
        largest = base
    if largest == NO_TIMESTAMP:
        if by_producer_append_time:
            raise _bad_time("a producer may not set the timestamp type LogAppendTime")
        return header
    earliest = now - config.message_timestamp_before_max_ms
    latest = now + config.message_timestamp_after_max_ms
    if largest > latest or largest < earliest or NO_TIMESTAMP != base < earliest:
        raise _bad_time(
            f"timestamps {base} to {largest} are not within {earliest} to {latest}, "
            "which this topic accepts now"
        )
    if by_producer_append_time or largest != header.max_timestamp:
        return set_timestamps(view, 0, header, largest, append=False)
    return header


def _open_records(view: memoryview, header: BatchHeader, need_keys: bool) -> bytes:
    try:
        data = records_bytes(view, header, MAX_DECOMPRESSED_BYTES)
        keyless = check_records(data, header.count, need_keys)
    except ParseError as error:
        raise _invalid(str(error)) from None
    if keyless is not None:
        raise _invalid(f"record {keyless} has no key, which a compacted topic cannot accept")
    return data


def _recompress(
    view: memoryview, header: BatchHeader, target: Codec, config: TopicRules
) -> tuple[memoryview, BatchHeader]:
    """The same records under another codec: they are packed anew, never encoded anew."""
    data = _open_records(view, header, need_keys="compact" in config.cleanup_policy)
    attributes = header.attributes & ~CODEC_MASK | target
    payload = compress(target, data, _level(target, config)) if target else data
    batch = assemble(header._replace(attributes=attributes), payload)
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config.max_message_bytes)
    return memoryview(batch), BatchHeader._make(HEADER.unpack_from(batch))


def _level(codec: Codec, config: TopicRules) -> int | None:
    match codec:
        case Codec.GZIP:
            level = config.compression_gzip_level
            return None if level == -1 else level
        case Codec.LZ4:
            level = config.compression_lz4_level
            return None if level == 9 else level  # Kafka's default asks for the fast compressor
        case Codec.ZSTD:
            return config.compression_zstd_level
        case _:
            return None


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def _bad_time(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, message)


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, the topic accepts {limit}"
    )
