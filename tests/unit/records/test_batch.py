"""Record batches: header, checksum, records, control records."""

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import KafkaError, ParseError
from scriba.native.implementation import Implementation
from scriba.records.batch import (
    HEADER_SIZE,
    ControlType,
    EndTxnMarker,
    Record,
    build_batch,
    check_crc,
    control_batch,
    control_type,
    decode_records,
    encode_batch,
    end_txn_batch,
    next_sequence,
    read_end_txn_marker,
    read_header,
    set_log_append_time,
    stamp,
    walk,
)
from scriba.records.compression import Codec

pytestmark = pytest.mark.usefixtures("chosen")

int64 = st.integers(-(2**40), 2**40)
content = st.none() | st.binary(max_size=200)
records = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(-1, 2**45),
        key=content,
        value=content,
        headers=st.lists(st.tuples(st.text(max_size=20), content), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


@given(records, st.sampled_from(Codec), st.integers(0, 2**50))
def test_records_come_back_as_they_were_written(
    given: list[Record], codec: Codec, base: int
) -> None:
    batch = encode_batch(given, base_offset=base, codec=codec)
    header = read_header(batch)
    assert header.size == len(batch)
    assert check_crc(batch, 0, header)
    assert header.max_timestamp == max(r.timestamp for r in given)
    expected = [r._replace(offset=base + i) for i, r in enumerate(given)]
    assert decode_records(batch) == expected
    assert header.next_offset == base + len(given)


@given(records, st.sampled_from(Codec), st.data())
def test_mutated_bytes_raise_nothing_but_the_parse_error(
    given: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = encode_batch(given, codec=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(batch)))
    with contextlib.suppress(ParseError, KafkaError):
        decode_records(batch[:cut], max_bytes=1 << 16)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_batch(data: bytes) -> None:
    try:
        for _, header in walk(data):
            assert header.size <= len(data)
        decode_records(data, max_bytes=1 << 16)
    except (ParseError, KafkaError):
        pass


def test_stamp_gives_a_place_without_touching_the_checksum() -> None:
    batch = encode_batch([Record(value=b"x")] * 3)
    stamp(memoryview(batch), 0, 4711, 8)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (4711, 8, 4713)
    assert check_crc(batch, 0, header)


def test_log_append_time_replaces_every_records_timestamp() -> None:
    batch = encode_batch([Record(timestamp=5), Record(timestamp=9)])
    header = set_log_append_time(batch, 0, read_header(batch), 77)
    assert header == read_header(batch)
    assert header.log_append_time
    assert check_crc(batch, 0, header)
    assert [r.timestamp for r in decode_records(batch)] == [77, 77]


def test_walk_stops_before_a_batch_that_is_cut_short() -> None:
    one, two = encode_batch([Record()]), encode_batch([Record()] * 2, base_offset=1)
    positions = [(pos, header.base_offset) for pos, header in walk(one + two[:-1])]
    assert positions == [(0, 0)]


def test_sequences_wrap_to_zero() -> None:
    assert next_sequence(2**31 - 1) == 0
    batch = encode_batch([Record()] * 4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 1


def test_checksum_covers_everything_from_the_attributes_on() -> None:
    batch = encode_batch([Record(key=b"k", value=b"v")])
    assert read_header(batch).crc == crc32c(bytes(batch[21:]))
    batch[-1] ^= 1
    assert not check_crc(batch, 0, read_header(batch))
    assert not check_crc(batch[:-1], 0, read_header(batch))


def test_header_needs_all_its_bytes() -> None:
    with pytest.raises(ParseError):
        read_header(bytes(HEADER_SIZE - 1))


def test_transaction_markers_say_how_it_ended() -> None:
    for commit in (True, False):
        batch = end_txn_batch(7, 3, EndTxnMarker(commit, 12), timestamp=99)
        header = read_header(batch)
        assert (header.is_control, header.is_transactional) == (True, True)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
        assert read_end_txn_marker(batch) == EndTxnMarker(commit, 12)


def test_control_batches_of_the_quorum_are_no_transaction_markers() -> None:
    batch = control_batch([(ControlType.LEADER_CHANGE, b"who")], timestamp=1, leader_epoch=4)
    assert read_end_txn_marker(batch) is None
    assert control_type(decode_records(batch)[0].key) is ControlType.LEADER_CHANGE
    assert control_type(b"\0\0\0\x63") is None


def test_a_batch_grows_record_by_record(chosen: Implementation) -> None:
    builder = chosen.Builder(HEADER_SIZE)
    sizes = [builder.append(7, None, b"v" * n, ()) for n in range(3)]
    assert sizes[-1] == builder.size == len(build_batch(builder)) != HEADER_SIZE
    assert builder.size == HEADER_SIZE
    builder.append(9, b"k", None, [("h", None)])
    batch = build_batch(builder, codec=Codec.LZ4, base_offset=5, producer_id=3, base_sequence=1)
    assert decode_records(batch) == [Record(5, 9, b"k", None, (("h", None),))]
