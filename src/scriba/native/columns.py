"""Records by column, in the layout of Arrow's arrays of bytes, in Python.

`_native` does the same in C where it was built. What a column is, is told in `arrow`.
"""

from array import array
from typing import NamedTuple

from scriba.native.arrow import Given, field, rows_of
from scriba.native.fallback import Builder, decode_records, murmur2
from scriba.records.header import Buffer
from scriba.records.numbers import wrapped

_MAX_INT32 = 0x7FFF_FFFF
_MAX_BYTES = _MAX_INT32


class Column(NamedTuple):
    ends: bytes
    data: bytes
    bits: bytes
    nulls: int


class Columns:
    """The records of batches until there are enough of them."""

    __slots__ = ("_keys", "_kinds", "_offsets", "_times", "_values", "bytes")

    def __init__(self) -> None:
        self._start_anew()

    def _start_anew(self) -> None:
        self._offsets, self._times, self._kinds = array("q"), array("q"), array("i")
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self.bytes = 0
        """Of keys and values."""

    @property
    def rows(self) -> int:
        return len(self._offsets)

    def add(
        self,
        data: Buffer,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None,
        first: int,
        end: int,
        /,
    ) -> int:
        """Adds the records that fill `data`, as `decode_records` reads them, with offsets from
        `first` on and before `end`; how many rows there are."""
        records = decode_records(data, count, base_offset, base_timestamp, append_time)
        if self.bytes + len(data) > _MAX_BYTES:
            raise OverflowError(f"a column has at most {_MAX_BYTES} bytes")
        for offset, timestamp, key, value, _ in records:
            if first <= offset < end:
                self._offsets.append(offset)
                self._times.append(wrapped(timestamp * 1000))
                self._kinds.append(0 if append_time is None else 1)
                self._keys.append(key)
                self._values.append(value)
                self.bytes += len(key or b"") + len(value or b"")
        return self.rows

    def take(self) -> tuple[int, bytes, bytes, bytes, Column, Column]:
        """Rows, offsets, times in microseconds, kinds (1 for times that the broker gave), keys and
        values; none are left."""
        taken = (
            self.rows,
            self._offsets.tobytes(),
            self._times.tobytes(),
            self._kinds.tobytes(),
            _column(self._keys),
            _column(self._values),
        )
        self._start_anew()
        return taken


def _column(fields: list[bytes | None]) -> Column:
    ends, bits, at = array("i", [0]), bytearray((len(fields) + 7) // 8), 0
    for row, content in enumerate(fields):
        if content is not None:
            at += len(content)
            bits[row >> 3] |= 1 << (row & 7)
        ends.append(at)
    data = b"".join(content for content in fields if content is not None)
    return Column(ends.tobytes(), data, bytes(bits), fields.count(None))


def place_keys(keys: Given, begin: int, end: int, partitions: int, otherwise: int, /) -> bytes:
    """The partition of each key, as numbers of 32 bits; `otherwise` for rows without one."""
    if (
        not 0 <= begin <= end <= rows_of(keys)
        or not 1 <= partitions <= _MAX_INT32
        or not ~_MAX_INT32 <= otherwise <= _MAX_INT32
    ):
        raise ValueError("there are not so many rows, or no such partitions")
    found = (field(keys, row) for row in range(begin, end))
    return array(
        "i",
        (otherwise if key is None else (murmur2(key) & 0x7FFF_FFFF) % partitions for key in found),
    ).tobytes()


def append_rows(
    builder: Builder,
    timestamp: int,
    keys: Given | None,
    values: Given,
    begin: int,
    end: int,
    limit: int,
    /,
) -> int:
    """Adds rows without headers, until all are in the builder or its size reaches the limit; the
    row behind the last one added."""
    fewest = min(rows_of(column) for column in (keys, values) if column is not None)
    if begin < 0 or end > fewest:
        raise ValueError("there are not so many rows")
    for row in range(begin, end):
        key = None if keys is None else field(keys, row)
        if builder.append(timestamp, key, field(values, row), ()) >= limit:
            return row + 1
    return max(begin, end)
