"""What a broker checks, and may change, before a produced batch goes into a log.

The header is judged first. Then, where the records are walked at native speed, every one of them
is checked as Kafka does: that it is well-formed and in its place, has a key if the topic needs
one, and a timestamp that the topic accepts. Without the extension single records are looked at
only when the topic demands it: a compacted topic needs keys, and a `compression.type` other than
the producer's makes the records pass through here anyway. Each refusal has the code that Kafka
gives.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.native import implementation
from scriba.records.batch import ANY_TIME, Buffer, seal
from scriba.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    Stream,
    codec_named,
    compress,
    memory_for,
    stream,
    unpack,
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

_ATTRIBUTES_LOW_BYTE: Final = CRC_START + 1


# What may be done on the event loop: each is about a millisecond of work at most.
LOOP_PLAIN_BYTES: Final = 2 << 20
_LOOP_PACKED_BYTES: Final = 32 << 10
_LOOP_UNPACKED_BYTES: Final = 512 << 10
LOOP_LZ4_BYTES: Final = 2 << 20  # packed or not: checked while it is unpacked
_LOOP_REPACKED_BYTES: Final = 32 << 10
_LOOP_WALKED_RECORDS: Final = 500  # in Python
_LOOP_PIECES: Final = 64  # each costs some calls, even if nothing is in it

_WHOLE_BYTES: Final = 1 << 20
"""Records that are packed anew in one go; more of them go through the codec piece by piece."""
_PACKING_BYTES: Final = 8 << 20
"""What a codec needs to pack, about."""


_NATIVE_LIMITS: Final[dict[int, int]] = {Codec.NONE: LOOP_PLAIN_BYTES, Codec.LZ4: LOOP_LZ4_BYTES}


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


class Heavy(Exception):
    """Preparing the batch would hold the event loop for too long: do it through Offload."""


MOST_NAMED: Final = 10_000
"""Of so many bad records in a batch it is told which they are; librdkafka sends no more in one."""


class BadRecord(KafkaError):
    """A refusal because of some records of a batch; `named` has the first `MOST_NAMED` of them."""

    def __init__(
        self,
        code: ErrorCode,
        total: int,
        blamed: list[tuple[int, int | None]],
        window: tuple[int, int],
    ) -> None:
        records = f"{total} records are" if total > 1 else "a record is"
        index, timestamp = blamed[0]
        super().__init__(
            code,
            f"the batch is refused because {records} not acceptable; "
            f"record {index}: {_complaint(timestamp, window)}",
        )
        self._blamed = blamed
        self._window = window

    def named(self, most: int) -> Iterator[tuple[int, str]]:
        """The bad records by their index in the batch, and what is wrong with each."""
        for index, timestamp in self._blamed[: max(most, 1)]:
            yield index, _complaint(timestamp, self._window)


def _complaint(timestamp: int | None, window: tuple[int, int]) -> str:
    if timestamp is None:
        return "a compacted topic cannot accept a record without a key"
    return f"timestamp {timestamp} is not {_accepted(window)}"


class Prepared(NamedTuple):
    """A batch that may be appended: its bytes, writable, and its header as it now is."""

    view: memoryview
    header: BatchHeader


def is_light(batches: Iterable[Buffer | None]) -> bool:
    """Whether a topic without demands takes all of these in no time, by their first bytes."""
    for batch in batches:
        if batch is not None and (
            len(batch) > LOOP_PLAIN_BYTES
            or (len(batch) > _ATTRIBUTES_LOW_BYTE and batch[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK)
        ):
            return False
    return True


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
    on_loop: bool = False,
) -> Prepared:
    """Checks a client's batch and makes it what the topic stores; KafkaError says why not.

    `view` must be writable: timestamps are set in place, recompression gives new bytes. With
    `on_loop` it raises Heavy, having changed nothing, when the work is too much for that.
    """
    header = peek(view)
    size = header.length + LOG_OVERHEAD
    if on_loop and size <= config.max_message_bytes and needs_offload(header, config):
        raise Heavy  # what is too large is refused without a look at it
    if size != len(view):
        view = view[:size]
    _check_header(view, header, config)
    try:
        view, header = _settle(view, header, config, now_wall_ms, on_loop)
    except ParseError as error:
        raise _invalid(str(error)) from None
    if header.length + LOG_OVERHEAD > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {header.size} bytes, a segment of this topic {config.segment_bytes}",
        )
    return Prepared(view, header)


def stores_as_sent(config: TopicRules, codec: Codec) -> bool:
    """Whether the topic stores a batch in this codec as it came."""
    return config.message_timestamp_type != "LogAppendTime" and (
        codec_named(config.compression_type) in (None, codec)
    )


def needs_offload(header: BatchHeader, config: TopicRules) -> bool:
    """Whether `prepare` would hold the loop for long, as far as the header tells."""
    chosen = implementation.chosen
    if chosen.native and header.length <= _LOOP_REPACKED_BYTES:
        return False
    codec = header.attributes & CODEC_MASK
    repack = _target(header, config) != codec
    if repack and header.length > _LOOP_REPACKED_BYTES:
        return True
    if chosen.native:
        return header.length > _NATIVE_LIMITS.get(codec, _LOOP_PACKED_BYTES)
    if not repack and "compact" not in config.cleanup_policy:
        return False
    return header.count > _LOOP_WALKED_RECORDS or (
        codec != 0 and header.length > _LOOP_PACKED_BYTES
    )


def _target(header: BatchHeader, config: TopicRules) -> int:
    """The codec that the topic stores the batch with; control records stay as they are."""
    codec = header.attributes & CODEC_MASK
    target = codec_named(config.compression_type)
    if target is None or (not codec and header.attributes & CONTROL):
        return codec
    return target


def _check_header(view: memoryview, header: BatchHeader, config: TopicRules) -> None:
    """Clients are not trusted with offsets, control records or sequences."""
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "unknown codec")
    if header.base_offset != 0:
        raise _invalid(f"a produced batch starts at offset 0, not {header.base_offset}")
    if len(view) > config.max_message_bytes:
        raise _too_large(len(view), config.max_message_bytes)
    if crc32c(view[CRC_START:]) != header.crc:
        raise _corrupt("the checksum of the record batch is wrong")
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


def _settle(
    view: memoryview, header: BatchHeader, config: TopicRules, now: int, on_loop: bool
) -> tuple[memoryview, BatchHeader]:
    """Judges the records, and gives the batch the timestamps and the codec that the topic wants."""
    codec = header.attributes & CODEC_MASK
    target = _target(header, config)
    need_keys = "compact" in config.cleanup_policy and not header.attributes & CONTROL
    append = config.message_timestamp_type == "LogAppendTime"
    producers_append = header.attributes & LOG_APPEND_TIME
    window = ANY_TIME
    if not append:
        window = (
            max(ANY_TIME[0], now - config.message_timestamp_before_max_ms),
            min(ANY_TIME[1], now + config.message_timestamp_after_max_ms),
        )
    walked = implementation.chosen.native or need_keys or target != codec
    repacked = Repacked(Codec(target), config) if target != codec else None
    if walked:
        payload = view[HEADER_SIZE:]
        times = ANY_TIME if producers_append else window
        found = None
        if implementation.chosen.native and codec == target == Codec.LZ4:
            found = _check_lz4(payload, header, need_keys, times, on_loop)
        if found is None:
            pieces = _pieces(payload, codec, target, config, on_loop)
            found = implementation.chosen.check_records(
                pieces if repacked is None else repacked.passed(pieces),
                header.count,
                header.base_timestamp,
                need_keys,
                *times,
            )
        largest, keyless, untimely = found
        if keyless >= 0 or untimely >= 0:
            pieces = _pieces(payload, codec, target, config, on_loop)
            total, blamed = implementation.chosen.blame_records(
                pieces, header.count, header.base_timestamp, need_keys, *times, MOST_NAMED
            )
            # As in Kafka: one bad timestamp makes it a matter of timestamps.
            code = ErrorCode.INVALID_TIMESTAMP if untimely >= 0 else ErrorCode.INVALID_RECORD
            raise BadRecord(code, total, blamed, times)
    if producers_append and (append or header.max_timestamp == NO_TIMESTAMP):
        raise _bad_time("a producer may not set the timestamp type LogAppendTime")
    if append:
        largest = now
    elif producers_append or not walked:
        largest = _check_header_times(header, window)
    if repacked is not None:
        return repacked.batch(header, largest, append)
    if append or producers_append or largest != header.max_timestamp:
        header = set_timestamps(view, 0, header, largest, append)
    return view, header


def _check_header_times(header: BatchHeader, window: tuple[int, int]) -> int:
    """Judges the two timestamps in the header; the largest that a record can have."""
    base, largest = header.base_timestamp, header.max_timestamp
    if header.attributes & LOG_APPEND_TIME:
        base = largest
    elif largest < base:  # some clients leave it unset; the base is at least one record's time
        largest = base
    earliest, latest = window
    if largest != NO_TIMESTAMP and (
        not earliest <= largest <= latest or NO_TIMESTAMP != base < earliest
    ):
        raise _bad_time(f"timestamps {base} to {largest} are not {_accepted(window)}")
    return largest


def _pieces(
    payload: memoryview, codec: int, target: int, config: TopicRules, on_loop: bool
) -> Iterable[Buffer]:
    """The records, decompressed. What a batch grows to shows only then: on the loop, Heavy."""
    if not codec:
        return (payload,)
    if on_loop:
        limit = _LOOP_UNPACKED_BYTES if target == codec else _LOOP_REPACKED_BYTES
        return _light(unpack(Codec(codec), payload, limit))
    limit = MAX_DECOMPRESSED_BYTES
    if not target:  # it has to fit as it is
        limit = min(limit, config.max_message_bytes)
    return unpack(Codec(codec), payload, limit)


def _light(pieces: Iterator[Buffer]) -> Iterator[Buffer]:
    try:
        for count, piece in enumerate(pieces):
            if count >= _LOOP_PIECES:
                raise Heavy
            yield piece
    except KafkaError:
        raise Heavy from None


def _check_lz4(
    payload: memoryview,
    header: BatchHeader,
    need_keys: bool,
    window: tuple[int, int],
    on_loop: bool,
) -> tuple[int, int, int] | None:
    """Looks at the records while they are unpacked; None where that has to be done in pieces."""
    limit = LOOP_LZ4_BYTES if on_loop else MAX_DECOMPRESSED_BYTES
    found = implementation.chosen.check_lz4(
        payload, limit, header.count, header.base_timestamp, need_keys, *window
    )
    if found is None and on_loop:
        raise Heavy
    return found


class Repacked:
    """The same records under another codec: they are packed anew, never encoded anew.

    They are packed as they pass on their way to being checked, so that only what comes out is held,
    and of that no more than the topic accepts.
    """

    def __init__(self, codec: Codec, config: TopicRules) -> None:
        self._codec = codec
        self._level = _level(codec, config)
        self._most = config.max_message_bytes
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._stream: Stream | None = None
        self._batch = bytearray(HEADER_SIZE)
        self._size = HEADER_SIZE

    def passed(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        for piece in pieces:
            self._take(piece)
            yield piece

    def _take(self, piece: Buffer) -> None:
        if self._stream is None:
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes <= _WHOLE_BYTES:
                return
            self._stream = stream(self._codec, self._level)
            piece = b"".join(self._held)
            self._held.clear()
        self._put(self._stream.compress(piece))

    def _put(self, packed: Buffer) -> None:
        self._size += len(packed)
        if self._size <= self._most:  # beyond that it is refused, once it is known to be good
            self._batch += packed

    def batch(
        self, header: BatchHeader, max_timestamp: int, append: bool
    ) -> tuple[memoryview, BatchHeader]:
        """All that passed as one batch with the header of the one that it came in."""
        if self._stream is None:
            self._put(compress(self._codec, b"".join(self._held), self._level))
        else:
            self._put(self._stream.flush())
        if self._size > self._most:
            raise _too_large(self._size, self._most)
        attributes = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME) | self._codec
        if append:
            attributes |= LOG_APPEND_TIME
        header = header._replace(
            attributes=attributes,
            max_timestamp=max_timestamp,
            length=self._size - LOG_OVERHEAD,
        )
        seal(self._batch, header)
        return memoryview(self._batch), BatchHeader._make(HEADER.unpack_from(self._batch))


def memory_to_prepare(view: memoryview, config: TopicRules) -> int:
    """About how much memory `prepare` needs at once, beside the batch."""
    header = peek(view)
    codec = header.attributes & CODEC_MASK
    need = memory_for(Codec(codec), view[HEADER_SIZE:]) if codec <= Codec.ZSTD else 0
    if _target(header, config) != codec:
        need += _PACKING_BYTES + min(config.max_message_bytes, MAX_DECOMPRESSED_BYTES)
    return need


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


def _accepted(window: tuple[int, int]) -> str:
    return f"within {window[0]} to {window[1]}, which this topic accepts now"


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, the topic accepts {limit}"
    )
