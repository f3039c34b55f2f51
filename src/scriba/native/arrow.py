"""A column of bytes as Arrow lays it out: a buffer of ends of 32 bits, of which the first is where
the first row begins, one of contents, and one of bits, set for every row that is not null."""

import struct

from scriba.records.header import Buffer

Given = tuple[Buffer, Buffer, Buffer | None]
"""Ends, contents, and bits unless no row is null."""


def field(column: Given, row: int) -> bytes | None:
    """A row of a column."""
    ends, data, bits = column
    if bits is not None and not memoryview(bits)[row >> 3] & 1 << (row & 7):
        return None
    start, end = struct.unpack_from("=ii", ends, 4 * row)
    if not 0 <= start <= end <= len(memoryview(data)):
        raise ValueError("a column's ends lead outside of it")
    return bytes(memoryview(data)[start:end])


def rows_of(column: Given) -> int:
    """How many rows both its ends and its bits have."""
    ends, _, bits = column
    rows = len(memoryview(ends)) // 4 - 1
    return rows if bits is None else min(rows, 8 * len(memoryview(bits)))
