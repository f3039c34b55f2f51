"""The extension and the fallback in Python: the same results, the same errors, for any bytes."""

import gc
import threading
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from scriba.errors import ParseError
from scriba.native import implementation
from scriba.native.fallback import Builder
from scriba.native.implementation import Implementation
from scriba.records.numbers import read_varint, read_varlong, write_varint
from scriba.records.record import Record
from tests.unit.native.sections import section

pytestmark = pytest.mark.usefixtures("chosen")

SEED = bytes(range(16))
INT64 = st.integers(-(2**63), 2**63 - 1)
ANY_TIME = (-(2**63), 2**63 - 1)

content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), content), max_size=3)
records = st.lists(
    st.builds(Record, timestamp=INT64, key=content, value=content, headers=headers), max_size=12
)
mutations = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4)
places = st.lists(st.integers(0, 2**16), max_size=6)


def cut(data: bytes | bytearray, places: list[int]) -> list[bytes]:
    """The same bytes in pieces, some of them empty."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [bytes(data[start:end]) for start, end in pairwise(ends)]


def put(offsets: Any, key: bytes, offset: int) -> bool:
    """Whether a map of offsets had room for a key."""
    return bool(offsets.put_records(section([Record(key=key)]), 1, offset, 0))


def record(body: bytes) -> bytes:
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out + body)


def outcome(function: Callable[..., object], *arguments: object) -> object:
    """What came out, or which error."""
    try:
        return function(*arguments)
    except ParseError as error:
        return type(error)


@given(records)
def test_both_write_the_same_bytes_and_read_the_same_records(
    chosen: Implementation, given: list[Record]
) -> None:
    mine, other = chosen.Builder(5), implementation.FALLBACK.Builder(5)
    for item in given:
        assert mine.append(*item[1:]) == other.append(*item[1:])
    assert (mine.count, mine.size, mine.base_timestamp, mine.max_timestamp) == (
        other.count,
        other.size,
        other.base_timestamp,
        other.max_timestamp,
    )
    data = mine.take()
    assert data == other.take()
    assert not any(data[:5])
    base = given[0].timestamp if given else -1
    expected = [
        item._replace(offset=i, headers=tuple(item.headers)) for i, item in enumerate(given)
    ]
    assert chosen.decode_records(memoryview(data)[5:], len(given), 0, base, None) == expected


@given(records, mutations, INT64, INT64, INT64 | st.none(), st.integers(-1, 2))
def test_mutated_records_are_read_alike(
    chosen: Implementation,
    given: list[Record],
    changes: list[tuple[int, int]],
    offset: int,
    timestamp: int,
    append_time: int | None,
    count_error: int,
) -> None:
    data = section(given)
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    arguments = (bytes(data), len(given) + count_error, offset, timestamp, append_time)
    assert outcome(chosen.decode_records, *arguments) == outcome(
        implementation.FALLBACK.decode_records, *arguments
    )


@given(records, mutations, places, INT64, st.booleans(), INT64, INT64, st.integers(-1, 2))
def test_mutated_records_are_judged_alike(
    chosen: Implementation,
    given: list[Record],
    changes: list[tuple[int, int]],
    cuts: list[int],
    timestamp: int,
    need_keys: bool,
    earliest: int,
    latest: int,
    count_error: int,
) -> None:
    data = section(given)
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    pieces = cut(data, cuts)
    rules = (len(given) + count_error, timestamp, need_keys, earliest, latest)
    assert outcome(chosen.check_records, pieces, *rules) == outcome(
        implementation.FALLBACK.check_records, pieces, *rules
    )
    assert outcome(chosen.blame_records, pieces, *rules, 3) == outcome(
        implementation.FALLBACK.blame_records, pieces, *rules, 3
    )
    wanted = (len(given) + count_error, timestamp, 1, count_error, earliest, latest)
    assert outcome(chosen.find_record, pieces, *wanted) == outcome(
        implementation.FALLBACK.find_record, pieces, *wanted
    )


@given(st.binary(max_size=120), st.integers(-3, 20))
@example(b"", 0)
@example(b"\0" * 7, 1)
@example(b"\xff" * 70, 3)
def test_random_bytes_are_read_and_judged_alike(
    chosen: Implementation, data: bytes, count: int
) -> None:
    pure = implementation.FALLBACK
    assert outcome(chosen.decode_records, data, count, 0, 0, None) == outcome(
        pure.decode_records, data, count, 0, 0, None
    )
    assert outcome(chosen.check_records, [data], count, 0, True, *ANY_TIME) == outcome(
        pure.check_records, [data], count, 0, True, *ANY_TIME
    )
    ours, theirs = chosen.OffsetMap(10_000, SEED), pure.OffsetMap(10_000, SEED)
    assert outcome(ours.put_records, data, count, 0, 0) == outcome(
        theirs.put_records, data, count, 0, 0
    )


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "number"),
        (b"\0", "number"),
        (b"\0\0\0\1\1", "number"),
        (b"\0" + b"\x80" * 10 + b"\0\0\1\1\0", "number"),
        (b"\0\0" + b"\x80" * 5 + b"\0\1\1\0", "number"),
        (b"\0\0\0\x10\1\1\0", "field"),
        (b"\0\0\0\1\1\1", "number of headers"),
        (b"\0\0\0\1\1\x02\0\0", None),
        (b"\0\0\0\1\1\x08\0\0", "number of headers"),
        (b"\0\0\0\1\1\x02\1\0", "no name"),
        (b"\0\0\0\1\1\0\0", "length"),
        (b"\0\0\x02\1\1\0", "place"),
        (b"\x7f\0\0\1\1\0", None),  # attributes mean nothing
        (b"\0\0\0\3\3\0", None),  # any negative length is null
        (b"\0" + b"\xff" * 9 + b"\x7f\0\1\1\0", None),  # bits beyond the type are dropped
        (b"\0\0" + b"\x80" * 4 + b"\x70\1\1\0", None),
    ],
)
def test_faults_are_found_and_leniency_is_javas(
    chosen: Implementation, body: bytes, fault: str | None
) -> None:
    data = record(body)
    rules = (1, 0, False, *ANY_TIME)
    byte_by_byte = [data[at : at + 1] for at in range(len(data))]
    for pieces in ([data], byte_by_byte, iter(byte_by_byte)):
        if fault is None:
            assert chosen.check_records(pieces, *rules)[1:] == (-1, -1)
        else:
            with pytest.raises(ParseError, match=fault):
                chosen.check_records(pieces, *rules)
    if fault is None:
        assert chosen.decode_records(data, 1, 0, 0, None)[0].key is None


def test_the_batch_must_hold_what_it_counts_and_no_more(chosen: Implementation) -> None:
    data = section([Record()] * 3, chosen)
    for count, words in ((-1, "more follows"), (2, "more follows"), (4, "record 3 is malformed")):
        with pytest.raises(ParseError, match=words):
            chosen.check_records([data], count, 0, False, *ANY_TIME)
    for count, words in ((-1, "cannot hold"), (2, "more follows"), (4, "cannot hold")):
        with pytest.raises(ParseError, match=words):
            chosen.decode_records(data, count, 0, 0, None)
    with pytest.raises(ParseError, match="record 1 is malformed: it reaches past"):
        chosen.decode_records(data[:7] + b"\x7e" + data[8:], 3, 0, 0, None)


def test_an_error_of_where_the_pieces_come_from_is_passed_on(chosen: Implementation) -> None:
    data = section([Record(value=b"v" * 50)] * 3, chosen)

    def failing() -> Iterator[bytearray]:
        yield data[:80]
        raise LookupError

    with pytest.raises(LookupError):
        chosen.check_records(failing(), 3, 0, False, *ANY_TIME)
    with pytest.raises(TypeError):
        chosen.check_records([data, "text"], 3, 0, False, *ANY_TIME)  # type: ignore[list-item]


def test_the_first_of_each_kind_is_reported_and_a_keyless_one_is_not_untimely_too(
    chosen: Implementation,
) -> None:
    times = [5, 1, 9, 9, 1, -1]
    keys = [b"k", None, b"k", None, b"k", b"k"]
    data = section([Record(0, t, k) for t, k in zip(times, keys, strict=True)], chosen)
    assert chosen.check_records([data], 6, 5, True, 2, 8) == (9, 1, 2)
    assert chosen.check_records([data], 6, 5, False, 2, 8) == (9, -1, 1)
    assert chosen.check_records([data], 6, 5, False, 1, 9) == (9, -1, -1)


def test_all_bad_records_are_named_with_what_is_wrong_up_to_a_limit(chosen: Implementation) -> None:
    times = [5, 1, 9, 9, 1, -1]
    keys = [b"k", None, b"k", None, b"k", b"k"]
    data = section([Record(0, t, k) for t, k in zip(times, keys, strict=True)], chosen)
    byte_by_byte = [data[at : at + 1] for at in range(len(data))]
    for pieces in ([data], byte_by_byte):
        bad = [(1, None), (2, 9), (3, None), (4, 1)]
        assert chosen.blame_records(pieces, 6, 5, True, 2, 8, 10) == (4, bad)
        assert chosen.blame_records(pieces, 6, 5, True, 2, 8, 4) == (4, bad)
        assert chosen.blame_records(pieces, 6, 5, True, 2, 8, 1) == (4, bad[:1])
        assert chosen.blame_records(pieces, 6, 5, False, -1, 9, 1) == (0, [])
    for most in (0, -1, (1 << 20) + 1):
        with pytest.raises(ValueError, match="can be named"):
            chosen.blame_records([data], 6, 5, True, 2, 8, most)


def test_the_first_record_of_a_time_is_found_and_nothing_behind_it_read(
    chosen: Implementation,
) -> None:
    data = section([Record(0, t, b"k") for t in (5, 1, 9, 7, 9)], chosen)

    def pieces() -> Iterator[bytearray]:
        yield data[:-3]
        raise LookupError

    assert chosen.find_record(pieces(), 5, 5, 0, 0, 6, 2**63 - 1) == (2, 9)
    assert chosen.find_record([data], 5, 5, 0, 3, 6, 2**63 - 1) == (3, 7)
    assert chosen.find_record([data], 5, 5, 4, 0, 6, 2**63 - 1) == (4, 9)
    assert chosen.find_record([data], 5, 5, 0, 3, 9, 9) == (4, 9)
    assert chosen.find_record([data], 5, 5, 0, 0, 10, 2**63 - 1) is None
    with pytest.raises(LookupError):
        chosen.find_record(pieces(), 5, 5, 0, 4, 6, 2**63 - 1)
    gaps = record(b"\0\0\x08\1\1\0") + record(b"\0\0\x0c\1\1\0")  # deltas 4 and 6
    assert chosen.find_record([gaps], 2, 100, 0, 5, 0, 100) == (6, 100)


def test_header_names_that_are_no_text_are_read_as_java_reads_them(chosen: Implementation) -> None:
    data = record(b"\0\0\0\1\1\x02\x06a\xffb\1")
    assert chosen.decode_records(data, 1, 0, 0, None)[0].headers == (("a\ufffdb", None),)


def test_any_buffer_may_hold_keys_and_values(chosen: Implementation) -> None:
    builder: Any = chosen.Builder()  # which declares bytes, and takes more
    builder.append(0, bytearray(b"k"), memoryview(b"value")[1:3], [("h", bytearray())])
    assert chosen.decode_records(builder.take(), 1, 0, 0, None) == [
        Record(0, 0, b"k", b"al", (("h", b""),))
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2**63, None, None, ()), OverflowError),
        (("now", None, None, ()), TypeError),
        ((0, "text", None, ()), TypeError),
        ((0, None, 5, ()), TypeError),
        ((0, None, None, None), TypeError),
        ((0, None, None, [("\ud800", None)]), UnicodeEncodeError),
        ((0, None, None, [("a", "b")]), TypeError),
    ],
)
def test_a_record_that_cannot_be_written_leaves_the_builder_as_it_was(
    chosen: Implementation, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    builder = chosen.Builder()
    builder.append(1, b"a", b"b", ())
    with pytest.raises(error):
        builder.append(*arguments)
    builder.append(3, None, b"c", ())
    assert chosen.decode_records(builder.take(), 2, 0, 1, None) == [
        Record(0, 1, b"a", b"b"),
        Record(1, 3, None, b"c"),
    ]


def test_a_large_record_among_small_ones(chosen: Implementation) -> None:
    items = [Record(0, 0, None, b"x"), Record(1, 0, b"k" * 200_000, b"v" * (2 << 20))] * 2
    data = section(items, chosen)
    decoded = chosen.decode_records(data, 4, 0, 0, None)
    assert [item[1:] for item in decoded] == [item[1:] for item in items]
    assert chosen.check_records([data], 4, 0, False, *ANY_TIME) == (0, -1, -1)


def test_records_survive_the_collector(chosen: Implementation) -> None:
    data = section([Record(0, 0, b"k", b"v", (("h", b"x"),))] * 500, chosen)
    decoded = chosen.decode_records(data, 500, 0, 0, None)
    gc.collect()
    assert decoded[499] == Record(499, 0, b"k", b"v", (("h", b"x"),))
    assert type(decoded[0]) is Record
    del decoded
    gc.collect()


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_of_32_bits_come_back(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varint(out, 0) == (number, len(out))


@given(INT64)
def test_varints_of_64_bits_come_back(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varlong(out, 0) == (number, len(out))


# ---- keys ----


@given(st.binary(max_size=40))
@example(b"")
def test_keys_hash_as_in_other_clients(chosen: Implementation, key: bytes) -> None:
    assert chosen.murmur2(key) == chosen.murmur2(bytearray(key)) == kafka_python_murmur2(key)


@pytest.mark.parametrize(
    ("key", "java"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_hash_as_in_java(chosen: Implementation, key: bytes, java: int) -> None:
    assert chosen.murmur2(key) == java % 2**32


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 2**60)), max_size=60),
    st.lists(st.binary(max_size=3), max_size=20),
)
def test_the_map_knows_the_last_offset_of_each_key(
    chosen: Implementation, puts: list[tuple[bytes, int]], others: list[bytes]
) -> None:
    offsets = chosen.OffsetMap(64 << 10, SEED)
    for key, offset in puts:
        assert put(offsets, key, offset)
    known = dict(puts)
    assert len(offsets) == len(known)
    for key in [*known, *others]:
        assert offsets.get(key) == known.get(key, -1)


def test_a_full_map_takes_no_new_key_but_still_moves_the_ones_it_has(
    chosen: Implementation,
) -> None:
    offsets = chosen.OffsetMap(4000, SEED)
    keys = [b"%d" % n for n in range(offsets.capacity + 1)]
    assert [put(offsets, key, 1) for key in keys] == [True] * offsets.capacity + [False]
    assert put(offsets, keys[0], 7)
    assert (offsets.get(keys[0]), offsets.get(keys[-1])) == (7, -1)
    assert len(offsets) == offsets.capacity


def test_a_batch_goes_into_the_map_from_an_offset_on_until_it_is_full(
    chosen: Implementation,
) -> None:
    items = [Record(key=None if n % 3 == 0 else b"%d" % n) for n in range(60)]
    data = section(items, chosen)
    offsets = chosen.OffsetMap(1 << 16, SEED)
    assert offsets.put_records(data, 60, 1000, 1010) == 60
    assert [offsets.get(b"%d" % n) for n in (5, 10, 11, 12, 59)] == [-1, 1010, 1011, -1, 1059]
    small = chosen.OffsetMap(1000, SEED)
    taken = small.put_records(data, 60, 0, 0)
    assert taken < 60
    assert len(small) == small.capacity == sum(item.key is not None for item in items[:taken])
    with pytest.raises(ParseError):
        offsets.put_records(data, 59, 0, 0)
    with pytest.raises(ParseError):
        offsets.put_records(data, 60, -1, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(-5, 2**41), st.integers(1, 3)),
        max_size=12,
    ),
    st.integers(0, 30),
    st.booleans(),
    st.sampled_from([-1, 5, 2**42]),
)
def test_both_keep_the_same_records_of_a_batch(
    chosen: Implementation,
    items: list[tuple[int, bool, int, int]],
    latest: int,
    drop: bool,
    horizon: int,
) -> None:
    ours, theirs = chosen.OffsetMap(10_000, SEED), implementation.FALLBACK.OffsetMap(10_000, SEED)
    data, offset, base_timestamp = bytearray(), 0, 1000
    for key, dead, timestamp, step in items:
        body = bytearray(1)
        write_varint(body, timestamp)
        write_varint(body, offset)
        body += b"\2%d" % key if key else b"\1"
        body += b"\1\0" if dead else b"\4ab\0"
        data += record(bytes(body))
        if offset <= latest and key:
            put(ours, b"%d" % key, offset)
            put(theirs, b"%d" % key, offset)
        offset += step
    rules = (len(items), 0, latest, base_timestamp, drop, horizon)
    found = ours.retain(data, *rules)
    assert found == theirs.retain(data, *rules)
    kept, count, largest, rebased = found
    before = chosen.decode_records(data, len(items), 0, base_timestamp, None)
    after = before
    if kept is not None:
        assert kept[:61] == bytes(61)
        base = horizon if rebased else base_timestamp
        after = chosen.decode_records(kept[61:], count, 0, base, None)
    last = {each.key: each.offset for each in before if each.offset <= latest}
    assert after == [
        each
        for each in before
        if each.offset > latest
        or (
            each.key is not None
            and last[each.key] == each.offset
            and not (drop and each.value is None)
        )
    ]
    assert largest == max((each.timestamp for each in after), default=-1)
    assert rebased == (horizon >= 0 and any(each.value is None for each in after))


@given(st.binary(max_size=120), st.integers(-3, 20))
def test_random_bytes_are_kept_or_refused_alike(
    chosen: Implementation, data: bytes, count: int
) -> None:
    ours, theirs = chosen.OffsetMap(10_000, SEED), implementation.FALLBACK.OffsetMap(10_000, SEED)
    rules = (count, 0, 10, 0, False, 7)
    assert outcome(ours.retain, data, *rules) == outcome(theirs.retain, data, *rules)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(-5, 5))
def test_a_walk_over_bytes_that_are_no_batches_stops_where_it_began(
    chosen: Implementation, data: bytes, at: int, offset: int
) -> None:
    offsets = chosen.OffsetMap(10_000, SEED)
    at = min(at, len(data))
    out = bytearray(100)
    assert offsets.put_plain(data, at, offset, 0) == (at, offset)
    walk = offsets.retain_plain(data, at, offset, -1, out, 7, 10, 0, 5, 100, array("q"), 1, 2, 3)
    assert walk == (at, offset, 7, 0, 0, False, False, 1, 2, 3, [])
    assert out == bytes(100)


def test_a_map_may_be_told_to_stay_emptier(chosen: Implementation) -> None:
    usual, half = chosen.OffsetMap(1 << 16, SEED), chosen.OffsetMap(1 << 16, SEED, 0.45)
    assert half.capacity == pytest.approx(usual.capacity / 2, abs=1)
    for load in (0, 1.1, -1):
        with pytest.raises(ValueError, match="filled"):
            chosen.OffsetMap(1 << 16, SEED, load)


def test_the_map_stays_within_its_memory(chosen: Implementation) -> None:
    memory = 1 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        offsets = chosen.OffsetMap(memory, SEED)
        for n in range(offsets.capacity):
            put(offsets, b"%d" % n, 10**12 + n)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before <= memory + 4096
    assert offsets.capacity >= memory // 300


@pytest.mark.parametrize(("memory", "seed"), [(10, SEED), (-1, SEED), (1000, b"short")])
def test_a_map_needs_memory_and_a_seed(chosen: Implementation, memory: int, seed: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        chosen.OffsetMap(memory, seed)
    with pytest.raises(ParseError, match="offset"):
        put(chosen.OffsetMap(1000, SEED), b"k", -1)


# ---- what only the extension can get wrong ----


class Meddler:
    """A sequence that uses the builder while the builder reads it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def __iter__(self) -> Iterator[Any]:
        self.builder.take()
        return iter(())

    def __len__(self) -> int:
        return 0


def test_a_builder_cannot_be_used_while_it_is_in_use(chosen: Implementation) -> None:
    if chosen.native:
        builder = chosen.Builder()
        builder.append(0, b"k", b"v", ())
        with pytest.raises(RuntimeError, match="in use"):
            builder.append(0, None, None, Meddler(builder))  # type: ignore[arg-type]
        assert len(builder.take()) == 9


def test_long_walks_let_other_threads_run(chosen: Implementation) -> None:
    """Many threads walk the same bytes at once and agree."""
    data = section([Record(key=b"k", value=bytes(90))] * 12_000, implementation.NATIVE or chosen)
    found: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                implementation.chosen.check_records([data], 12_000, 0, True, 0, 0)
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(0, -1, -1)] * 4


def test_wrong_arguments_are_type_errors(chosen: Implementation) -> None:
    untyped: Any = chosen
    calls: tuple[Callable[[], object], ...] = (
        lambda: untyped.decode_records(b""),
        lambda: untyped.decode_records(5, 0, 0, 0, None),
        lambda: untyped.check_records([], 0, 0, False, 0),
        lambda: untyped.check_records(5, 0, 0, False, 0, 0),
        lambda: untyped.Builder().append(0),
        lambda: untyped.OffsetMap(1000),
        lambda: untyped.OffsetMap(1000, SEED).get(5),
        lambda: untyped.OffsetMap(1000, SEED).retain(b"", 0, 0),
    )
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_bounds_hold_at_the_end_of_every_prefix(chosen: Implementation) -> None:
    whole = section([Record(0, 2**40, b"key", b"value", (("a", b"b"), ("c", None)))], chosen)
    for size in range(len(whole)):
        with pytest.raises(ParseError):
            chosen.decode_records(whole[:size], 1, 0, 0, None)
