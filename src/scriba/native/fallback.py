"""Work on single records, in Python: what `scriba.native._native` does where it could not be built.

A record is a length and that many bytes: attributes (1, unused), timestamp delta, offset delta,
key, value and headers, all numbers zigzag varints, a length below zero meaning null. Both
implementations give the same results and raise the same errors, ParseError for bytes that are no
records; sums wrap as Java's `long` does. What they read may be any buffer and is never written to.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from scriba.errors import KafkaError, ParseError
from scriba.records.compression import Codec, decompress
from scriba.records.header import HEADER_SIZE, NO_TIMESTAMP, Buffer
from scriba.records.numbers import read_varint, read_varlong, wrapped, write_varint
from scriba.records.record import Headers, Record

MIN_RECORD_BYTES: Final = 7
"""A length, attributes, two deltas, two lengths and a number of headers, one byte each."""

SEED_BYTES: Final = 16
MOST_BLAMED: Final = 1 << 20

_MAX_INT32: Final = 2**31 - 1
_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1

_ENTRY_BYTES: Final = 232
"""Of an OffsetMap: a hash takes 64, an offset 32, their part of a growing dict the rest."""

_USUAL_LOAD: Final = 0.9
"""How full the extension's table gets; a dict that is given less room is emptier by as much."""


# ---- reading ----


_Scan = tuple[int, int, int, int, int, int, int, int, int]
"""Where the parts of a record lie: its end, timestamp delta, offset delta, then places and sizes of
key and value, the number of headers and the place of the first. Sizes below zero are null."""


def _scan(data: bytes, pos: int, index: int) -> _Scan:
    """The record at `pos`, which is the one at `index` in its batch."""
    try:
        return _scan_at(data, pos)
    except IndexError:
        why = "a number in it is cut short or too long"
    except ParseError as error:
        why = str(error)
    raise ParseError(f"record {index} is malformed: {why}")


def _scan_at(data: bytes, pos: int) -> _Scan:
    # Nearly all numbers have one byte: looking at it here saves most of the time.
    size, pos = read_varint(data, pos)
    end = pos + size
    if size < 0 or end > len(data):
        raise ParseError("it reaches past the end of the batch")
    byte = data[pos + 1]
    if byte < 0x80:
        time_delta, pos = (byte >> 1) ^ -(byte & 1), pos + 2
    else:
        time_delta, pos = read_varlong(data, pos + 1)
    byte = data[pos]
    if byte < 0x80:
        offset_delta, pos = (byte >> 1) ^ -(byte & 1), pos + 1
    else:
        offset_delta, pos = read_varint(data, pos)
    if data[pos] == 1:
        key_at, key_size, pos = pos, -1, pos + 1
    else:
        key_at, key_size, pos = _span(data, pos, end)
    value_at, value_size, pos = _span(data, pos, end)
    header_count = data[pos]
    headers_at = pos + 1
    if header_count:
        header_count, headers_at = read_varint(data, pos)
        pos = _skip_headers(data, headers_at, end, header_count)
    else:
        pos = headers_at
    if pos != end:
        raise ParseError("its length does not fit its content")
    return (
        end,
        time_delta,
        offset_delta,
        key_at,
        key_size,
        value_at,
        value_size,
        header_count,
        headers_at,
    )


def _skip_headers(data: bytes, pos: int, end: int, count: int) -> int:
    if not 0 <= count <= end - pos:
        raise ParseError("its number of headers is impossible")
    for _ in range(count):
        _, name_size, pos = _span(data, pos, end)
        if name_size < 0:
            raise ParseError("a header has no name")
        _, _, pos = _span(data, pos, end)
    return pos


def _span(data: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """Where a field begins, its size, and where the next one begins."""
    size, pos = read_varint(data, pos)
    if size < 0:
        return pos, -1, pos
    if size > end - pos:
        raise ParseError("a field reaches past its end")
    return pos, size, pos + size


def _headers(data: bytes, pos: int, count: int) -> Headers:
    pairs: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        at, size, pos = _span(data, pos, len(data))
        name = data[at : at + size].decode(errors="replace")
        at, size, pos = _span(data, pos, len(data))
        pairs.append((name, None if size < 0 else data[at : at + size]))
    return tuple(pairs)


def _check_count(count: int, size: int) -> None:
    if not 0 <= count <= size // MIN_RECORD_BYTES:
        raise ParseError(f"{size} bytes cannot hold {count} records")


def _check_rest(rest: int) -> None:
    if rest:
        raise ParseError("more follows the last record of the batch")


def decode_records(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None, /
) -> list[Record]:
    """The `count` records that fill `data`; all of the same time if `append_time` is given."""
    data = bytes(memoryview(data))
    _check_count(count, len(data))
    records: list[Record] = []
    pos = 0
    for index in range(count):
        pos, delta, offset_delta, key_at, key_size, value_at, value_size, headers, at = _scan(
            data, pos, index
        )
        records.append(
            Record(
                wrapped(base_offset + offset_delta),
                wrapped(base_timestamp + delta) if append_time is None else append_time,
                None if key_size < 0 else data[key_at : key_at + key_size],
                None if value_size < 0 else data[value_at : value_at + value_size],
                _headers(data, at, headers) if headers else (),
            )
        )
    _check_rest(len(data) - pos)
    return records


def value_spans(data: Buffer, count: int) -> list[tuple[int, int]]:
    """Where the values of the records that fill `data` begin and end, but for tombstones."""
    data = bytes(memoryview(data))
    _check_count(count, len(data))
    spans: list[tuple[int, int]] = []
    pos = 0
    for index in range(count):
        pos, _, _, _, _, value_at, value_size, _, _ = _scan(data, pos, index)
        if value_size >= 0:
            spans.append((value_at, value_at + value_size))
    return spans


def check_records(
    pieces: Iterable[Buffer],
    count: int,
    base_timestamp: int,
    need_keys: bool,
    earliest: int,
    latest: int,
    /,
) -> tuple[int, int, int]:
    """Checks the `count` records that must fill the pieces, each with its place as offset delta.

    Returns the largest timestamp, the index of the first record without a key if keys are needed,
    and of the first record with a timestamp outside of `earliest` to `latest`; -1 for none.
    """
    max_timestamp = NO_TIMESTAMP
    keyless = untimely = -1
    for index, delta, offset_delta, has_key in _gists(pieces, count):
        if offset_delta != index:
            raise ParseError(
                f"record {index} is malformed: its offset is not its place in the batch"
            )
        timestamp = wrapped(base_timestamp + delta)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if need_keys and not has_key:
            if keyless < 0:
                keyless = index
        elif timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest and untimely < 0:
            untimely = index
    return max_timestamp, keyless, untimely


def blame_records(
    pieces: Iterable[Buffer],
    count: int,
    base_timestamp: int,
    need_keys: bool,
    earliest: int,
    latest: int,
    most: int,
    /,
) -> tuple[int, list[tuple[int, int | None]]]:
    """How many records `check_records` finds bad, and the first `most` of them: the index of each,
    and the timestamp that it is bad for, None where it is the key."""
    if not 1 <= most <= MOST_BLAMED:
        raise ValueError(f"from 1 to {MOST_BLAMED} records can be named")
    total = 0
    blamed: list[tuple[int, int | None]] = []
    for index, delta, offset_delta, has_key in _gists(pieces, count):
        if offset_delta != index:
            raise ParseError(
                f"record {index} is malformed: its offset is not its place in the batch"
            )
        timestamp = wrapped(base_timestamp + delta)
        keyless = need_keys and not has_key
        if keyless or (timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest):
            total += 1
            if total <= most:
                blamed.append((index, None if keyless else timestamp))
    return total, blamed


def find_record(
    pieces: Iterable[Buffer],
    count: int,
    base_timestamp: int,
    skip: int,
    least_delta: int,
    earliest: int,
    latest: int,
    /,
) -> tuple[int, int] | None:
    """Offset delta and timestamp of the first record, after `skip` others, from `least_delta` on
    whose timestamp lies within `earliest` to `latest`. What comes behind it is not looked at."""
    for index, delta, offset_delta, _ in _gists(pieces, count):
        timestamp = wrapped(base_timestamp + delta)
        if index >= skip and offset_delta >= least_delta and earliest <= timestamp <= latest:
            return offset_delta, timestamp
    return None


def _gists(pieces: Iterable[Buffer], count: int) -> Iterator[tuple[int, int, int, bool]]:
    """Index, time delta, offset delta and whether there is a key of each of `count` records, which
    must fill the pieces. No more of them is in memory than the record at hand needs."""
    source = iter(pieces)
    data, pos, index = b"", 0, 0
    while index < count:
        try:
            after, delta, offset_delta, _, key_size, *_ = _scan(data, pos, index)
        except ParseError:
            more = None if _whole(data, pos) else _enough(source, data, pos)
            if more is None:
                raise
            data, pos = more, 0
            continue
        yield index, delta, offset_delta, key_size >= 0
        pos, index = after, index + 1
    _check_rest(len(data) - pos or any(memoryview(piece).nbytes for piece in source))


def _whole(data: bytes, pos: int) -> bool:
    """Whether the record at `pos` ends within the data, or could not end anywhere."""
    try:
        size, pos = read_varint(data, pos)
    except IndexError:
        return False
    except ParseError:
        return True
    return size <= len(data) - pos


def _enough(source: Iterator[Buffer], data: bytes, pos: int) -> bytes | None:
    """The bytes from `pos` on and at least as many more; None at the end of the pieces."""
    parts = [data[pos:]]
    wanted = max(len(parts[0]), 1)
    for piece in source:
        parts.append(bytes(memoryview(piece)))
        wanted -= len(parts[-1])
        if wanted <= 0:
            break
    return b"".join(parts) if len(parts) > 1 else None


# ---- writing ----


class Builder:
    """The records of a batch, encoded one after the other.

    `room` bytes are left free at the front, for the header of the batch; `size` counts them too.
    It grows as it must; the extension stops for a while at the `expected` size.
    """

    __slots__ = ("_buffer", "_record", "_room", "base_timestamp", "count", "max_timestamp")

    def __init__(self, room: int = 0, expected: int = 0, /) -> None:
        if room < 0:
            raise ValueError("room cannot be negative")
        self._room = room
        self._record = bytearray()
        self._start_anew()

    def _start_anew(self) -> None:
        self._buffer = bytearray(self._room)
        self.count = 0
        self.base_timestamp = NO_TIMESTAMP
        """Of the first record; the others are told as differences to it."""
        self.max_timestamp = NO_TIMESTAMP

    @property
    def size(self) -> int:
        return len(self._buffer)

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers, /
    ) -> int:
        """Adds a record; the size of all."""
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:
            raise OverflowError("a timestamp has 64 bits")
        base = self.base_timestamp if self.count else timestamp
        record = self._record
        record.clear()
        record.append(0)
        write_varint(record, wrapped(timestamp - base))
        write_varint(record, self.count)
        _write_bytes(record, key)
        _write_bytes(record, value)
        write_varint(record, len(headers))
        for name, content in headers:
            _write_bytes(record, name.encode())
            _write_bytes(record, content)
        if len(record) > _MAX_INT32:
            raise OverflowError(f"a record has at most {_MAX_INT32} bytes")
        write_varint(self._buffer, len(record))
        self._buffer += record
        self.base_timestamp = base
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        return len(self._buffer)

    def take(self) -> bytearray:
        """Hands over what was built and begins anew."""
        taken = self._buffer
        self._start_anew()
        return taken


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the varint of -1
    else:
        write_varint(out, len(data))
        out += data


# ---- keys ----


def murmur2(key: Buffer, /) -> int:
    """The hash by which clients of Kafka choose a key's partition, 32 bits without a sign."""
    key = memoryview(key).tobytes()
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ (len(key) & mask)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * factor & mask
        k = (k ^ k >> 24) * factor & mask
        h = (h * factor & mask) ^ k
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * factor & mask
    h = (h ^ h >> 13) * factor & mask
    return h ^ h >> 15


class Walk(NamedTuple):
    """How far `retain_plain` came."""

    at: int
    next_offset: int
    used: int
    read: int
    """Records gone over."""
    kept: int
    changed: bool
    """Whether anything went."""
    full: bool
    """Whether it stopped for lack of room."""
    since_index: int
    max_timestamp: int
    max_timestamp_offset: int
    entries: "list[IndexEntry]"
    """Of the indexes, that became due."""


IndexEntry = tuple[int, int, int, int, int]
"""Base offset, last offset and place of a batch; the largest timestamp so far and its offset."""


class OffsetMap:
    """The last offset of each key in a log, within `memory` bytes, for compaction.

    It is filled up to `load` of what it can hold. Keys are kept as hashes of 128 bits that nobody
    can foresee without the seed; two keys with the same hash would be taken for one.
    """

    __slots__ = ("_offsets", "_seed", "capacity")

    def __init__(self, memory: int, seed: bytes, load: float = _USUAL_LOAD, /) -> None:
        if not 0 < load <= 1:
            raise ValueError("a map is filled to more than nothing, and to 1 at most")
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed has {SEED_BYTES} bytes, not {len(seed)}")
        fit = memory // _ENTRY_BYTES
        self.capacity = max(int(fit * min(load / _USUAL_LOAD, 1)), 1)
        """How many keys it takes."""
        if fit < 1:
            raise ValueError(f"a map of {memory} bytes is too small or too large")
        self._seed = seed
        self._offsets: dict[bytes, int] = {}

    def _hash(self, key: Buffer) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._seed).digest()

    def __len__(self) -> int:
        return len(self._offsets)

    def _put(self, key: Buffer, offset: int) -> bool:
        """Remembers where a key was written; False when it is new and there is no room for it."""
        hashed = self._hash(key)
        if len(self._offsets) >= self.capacity and hashed not in self._offsets:
            return False
        self._offsets[hashed] = offset
        return True

    def get(self, key: Buffer, /) -> int:
        """Where the key was last written; -1 if it is not known."""
        return self._offsets.get(self._hash(key), -1)

    def put_records(self, data: Buffer, count: int, base_offset: int, start_offset: int, /) -> int:
        """Puts the keys of the `count` records that fill `data`, from `start_offset` on.

        Returns how many records it went over: fewer than `count` when the map is full.
        """
        data = bytes(memoryview(data))
        _check_count(count, len(data))
        pos = 0
        for index in range(count):
            pos, _, offset_delta, key_at, key_size, *_ = _scan(data, pos, index)
            offset = wrapped(base_offset + offset_delta)
            if not 0 <= offset < _MAX_INT64:
                raise ParseError(
                    f"record {index} is malformed: its offset is not its place in the batch"
                )
            if key_size < 0 or offset < start_offset:
                continue
            if not self._put(data[key_at : key_at + key_size], offset):
                return index
        _check_rest(len(data) - pos)
        return count

    def retain(
        self,
        data: Buffer,
        count: int,
        base_offset: int,
        latest_offset: int,
        base_timestamp: int,
        drop_tombstones: bool,
        horizon: int,
        /,
    ) -> tuple[bytearray | None, int, int, bool]:
        """What compaction leaves of the `count` records that fill `data`.

        A record goes if its key was written again later, if it has none, or, with
        `drop_tombstones`, if it has no value; beyond `latest_offset` all stay. With a `horizon`
        that is not -1, the timestamps of a batch in which a tombstone stays count from there.
        Returns the records behind room for a batch header, or None where nothing changes; how many
        stay; their largest timestamp; and whether the horizon is set.
        """
        data = bytes(memoryview(data))
        _check_count(count, len(data))
        pos, spans, max_timestamp, tombstones = 0, [], NO_TIMESTAMP, False
        for index in range(count):
            start = pos
            pos, delta, offset_delta, key_at, key_size, _, value_size, *_ = _scan(data, pos, index)
            offset = wrapped(base_offset + offset_delta)
            if offset <= latest_offset:
                if key_size < 0 or (value_size < 0 and drop_tombstones):
                    continue
                if offset < self.get(data[key_at : key_at + key_size]):
                    continue
            timestamp = wrapped(base_timestamp + delta)
            max_timestamp = max(max_timestamp, timestamp)
            tombstones = tombstones or value_size < 0
            spans.append((start, pos, timestamp))
        _check_rest(len(data) - pos)
        rebase = tombstones and horizon >= 0
        if len(spans) == count and not rebase:
            return None, count, max_timestamp, False
        kept = bytearray(HEADER_SIZE)
        for start, end, timestamp in spans:
            if rebase:
                _write_rebased(kept, data[start:end], wrapped(timestamp - horizon))
            else:
                kept += data[start:end]
        return kept, len(spans), max_timestamp, rebase

    def put_plain(
        self, data: Buffer, at: int, next_offset: int, start_offset: int, /
    ) -> tuple[int, int]:
        """Puts the keys of the plain batches at `at`, as far as there are such, one after another.

        Plain ones are sound, of data, not compressed and in no transaction, and do not begin
        before `next_offset`. Returns where it stopped, and the offset that follows. The fallback
        stops at once: walking over batches in Python gains nothing here.
        """
        return at, next_offset

    def retain_plain(
        self,
        data: Buffer,
        at: int,
        next_offset: int,
        last_end: int,
        out: bytearray,
        used: int,
        latest_offset: int,
        now_ms: int,
        horizon: int,
        interval: int,
        needed: "array[int] | memoryview",
        since_index: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        /,
    ) -> tuple[Any, ...]:
        """Writes into `out`, from `used` on, what stays of the plain batches at `at`.

        It also stops before a batch of which nothing would stay, if that ends at `last_end` or its
        last offset is among `needed` (in rising order), and where `out` has no room. An entry of
        the indexes is due when more than `interval` bytes were written since the last one.

        Returns the fields of a `Walk`. The fallback stops at once.
        """
        state = (since_index, max_timestamp, max_timestamp_offset)
        return at, next_offset, used, 0, 0, False, False, *state, []


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

    Nor if it grows to more than `max_bytes`: what is wrong with a frame is found out by whoever
    called. ParseError is for the records in it.
    """
    try:
        data = decompress(Codec.LZ4, frame, max_bytes)
    except (KafkaError, ParseError):
        return None
    return check_records((data,), count, base_timestamp, need_keys, earliest, latest)


def rebase(data: Buffer, count: int, base_timestamp: int, base: int, /) -> bytearray:
    """The same records, timestamps counted from `base`, behind room for a batch header."""
    data = bytes(memoryview(data))
    rebased = bytearray(HEADER_SIZE)
    pos = 0
    for index in range(count):
        start = pos
        pos, delta, *_ = _scan(data, pos, index)
        _write_rebased(rebased, data[start:pos], wrapped(base_timestamp + delta - base))
    return rebased


def _write_rebased(out: bytearray, record: bytes, time_delta: int) -> None:
    """The same record with another timestamp delta."""
    _, attributes_at = read_varint(record, 0)
    _, rest_at = read_varlong(record, attributes_at + 1)
    body = bytearray(record[attributes_at : attributes_at + 1])
    write_varint(body, time_delta)
    body += record[rest_at:]
    write_varint(out, len(body))
    out += body
