"""Records by column: both implementations read and write the same, from any bytes."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ParseError
from scriba.native import implementation
from scriba.native.arrow import Given, field
from scriba.native.implementation import Implementation
from scriba.records.numbers import wrapped
from scriba.records.record import Record
from tests.unit.native.sections import section

content = st.none() | st.binary(max_size=80)
times = st.integers(-(2**63), 2**63 - 1)
records = st.lists(st.builds(Record, timestamp=times, key=content, value=content), max_size=12)


def base_time(given: list[Record]) -> int:
    return given[0].timestamp if given else 0


def column(fields: list[bytes | None]) -> Given:
    """As Arrow has it, with a row before the first that nobody asks for."""
    ends, bits, data = array("i", [0, 1]), bytearray(len(fields) // 8 + 1), b"x"
    for row, each in enumerate(fields, 1):
        if each is not None:
            data += each
            bits[row >> 3] |= 1 << (row & 7)
        ends.append(len(data))
    return ends.tobytes(), data, bytes(bits) if None in fields else None


def fields(taken: tuple[bytes, bytes, bytes, int], rows: int) -> list[bytes | None]:
    ends, data, bits, nulls = taken
    found = [field((ends, data, bits), row) for row in range(rows)]
    assert nulls == found.count(None)
    return found


@given(records, records, st.integers(0, 20), st.integers(0, 20), st.none() | times)
def test_columns_hold_what_the_records_hold(
    chosen: Implementation,
    one: list[Record],
    two: list[Record],
    first: int,
    size: int,
    append_time: int | None,
) -> None:
    columns, end = chosen.Columns(), first + size
    assert columns.rows == columns.bytes == 0
    expected = []
    for base, batch in ((0, one), (len(one), two)):
        columns.add(section(batch), len(batch), base, base_time(batch), append_time, first, end)
        kept = enumerate(batch, base)
        expected += [(offset, record) for offset, record in kept if first <= offset < end]
    assert columns.rows == len(expected)
    rows, offsets, stamps, kinds, keys, values = columns.take()
    assert (rows, columns.rows) == (len(expected), 0)
    assert list(array("q", offsets)) == [offset for offset, _ in expected]
    asked = [r.timestamp if append_time is None else append_time for _, r in expected]
    assert list(array("q", stamps)) == [wrapped(stamp * 1000) for stamp in asked]
    assert list(array("i", kinds)) == [0 if append_time is None else 1] * rows
    assert fields(keys, rows) == [record.key for _, record in expected]
    assert fields(values, rows) == [record.value for _, record in expected]


@given(records, st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4))
def test_a_malformed_batch_leaves_the_columns_as_they_were(
    chosen: Implementation, batch: list[Record], changes: list[tuple[int, int]]
) -> None:
    data = section([*batch, Record(timestamp=0, key=b"k", value=b"v")])
    for place, byte in changes:
        data[place % len(data)] = byte
    columns, whole = chosen.Columns(), section([Record(timestamp=5, key=None, value=b"before")])
    columns.add(whole, 1, 7, 5, None, 0, 100)
    outcomes: list[int | None] = []
    for each in (columns, implementation.FALLBACK.Columns()):
        try:
            outcomes.append(each.add(bytes(data), len(batch) + 1, 0, 0, None, 0, 100))
        except ParseError:
            outcomes.append(None)
    mine, other = outcomes
    assert (mine is None) == (other is None)
    if mine is None:
        rows, offsets, _, _, keys, values = columns.take()
        assert (rows, list(array("q", offsets))) == (1, [7])
        assert (fields(keys, 1), fields(values, 1)) == ([None], [b"before"])


@given(st.lists(st.tuples(content, content), max_size=15), st.integers(1, 300), st.booleans())
def test_rows_are_appended_as_records_until_the_batch_is_full(
    chosen: Implementation, rows: list[tuple[bytes | None, bytes | None]], limit: int, keyed: bool
) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    builder, row, batches = chosen.Builder(), 1, []
    while row <= len(rows):
        begin = row
        row = chosen.append_rows(
            builder, 9, column(keys) if keyed else None, column(values), row, len(rows) + 1, limit
        )
        expected = implementation.FALLBACK.Builder()
        size = 0
        for n in range(begin, row):
            assert size < limit
            size = expected.append(9, keys[n - 1] if keyed else None, values[n - 1], ())
        assert row > len(rows) or size >= limit
        batches.append(row - begin)
        assert builder.take() == expected.take()
    assert sum(batches) == len(rows)


@given(st.lists(content, max_size=40), st.integers(1, 2**31 - 1))
def test_keys_find_their_partition(
    chosen: Implementation, keys: list[bytes | None], partitions: int
) -> None:
    found = chosen.place_keys(column(keys), 1, len(keys) + 1, partitions, -7)
    assert list(array("i", found)) == [
        -7 if key is None else (implementation.FALLBACK.murmur2(key) & 0x7FFF_FFFF) % partitions
        for key in keys
    ]


def test_columns_that_lead_outside_are_refused(chosen: Implementation) -> None:
    wrong = array("i", [0, 5]).tobytes(), b"four", None
    for call in (
        lambda: chosen.place_keys(wrong, 0, 1, 3, 0),
        lambda: chosen.place_keys(wrong, 0, 2, 3, 0),
        lambda: chosen.place_keys(column([b"k"]), 0, 1, 0, 0),
        lambda: chosen.append_rows(chosen.Builder(), 0, None, wrong, 0, 1, 99),
        lambda: chosen.append_rows(chosen.Builder(), 0, None, column([]), 0, 2, 99),
        lambda: chosen.append_rows(chosen.Builder(), 0, wrong, column([b"v"]), -1, 1, 99),
    ):
        with pytest.raises(ValueError, match=r"outside|so many rows"):
            call()
