"""What the broker says to a produced batch, code by code as Kafka does."""

import contextlib
import struct
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode, KafkaError
from scriba.native.implementation import Implementation
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    assemble,
    check_crc,
    decode_records,
    encode_batch,
    end_txn_batch,
    read_header,
)
from scriba.records.compression import Codec
from scriba.records.validate import MOST_NAMED, BadRecord, Heavy, needs_offload, prepare
from scriba.settings import TopicSettings

pytestmark = pytest.mark.usefixtures("chosen")

NOW = 1_700_000_000_000


def batch(*records: Record, **more: Any) -> bytearray:
    return encode_batch(records or [Record(timestamp=NOW, key=b"k", value=b"v" * 50)] * 3, **more)


def remade(data: bytearray, **fields: Any) -> bytearray:
    """The batch with other header fields and a checksum that fits them."""
    return assemble(read_header(data)._replace(**fields), data[61:])


def verdict(data: bytearray, settings: TopicSettings | None = None, **more: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        prepare(memoryview(data), settings or TopicSettings(), NOW, **more)
    return refused.value.code


def test_a_good_batch_passes_untouched() -> None:
    data = batch()
    before = bytes(data)
    prepared = prepare(memoryview(data), TopicSettings(), NOW)
    assert bytes(prepared.view) == before
    assert prepared.header == read_header(data)


def test_a_bad_checksum_is_corrupt() -> None:
    data = batch()
    data[-1] ^= 1
    assert verdict(data) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 11, 16, 60, 100])
def test_a_batch_cut_short_is_no_batch(size: int) -> None:
    assert verdict(batch()[:size]) is ErrorCode.INVALID_RECORD


def test_an_impossible_length_is_corrupt() -> None:
    for length in (-1, 0, 13, 30):
        data = batch()
        struct.pack_into(">i", data, 8, length)
        assert verdict(data) is ErrorCode.CORRUPT_MESSAGE


def test_magic_of_the_past_is_invalid_and_of_the_future_corrupt() -> None:
    for magic, code in ((0, 87), (1, 87), (3, 2), (-1, 2)):
        data = batch()
        struct.pack_into(">b", data, 16, magic)
        assert verdict(data) == code


def test_several_batches_are_invalid_but_part_of_one_behind_is_overlooked() -> None:
    assert verdict(batch() + batch()) is ErrorCode.INVALID_RECORD
    whole = batch()
    for cut in (5, 40, 70):
        prepared = prepare(memoryview(whole + batch()[:cut]), TopicSettings(), NOW)
        assert len(prepared.view) == len(whole)
    assert verdict(whole + b"\0" * 20) is ErrorCode.CORRUPT_MESSAGE


def test_counts_and_deltas_must_agree() -> None:
    for fields in (
        {"count": 2},
        {"count": 0},
        {"count": -1},
        {"last_offset_delta": 7},
        {"last_offset_delta": -1, "count": 0},
    ):
        assert verdict(remade(batch(), **fields)) is ErrorCode.INVALID_RECORD


def test_clients_may_not_choose_offsets_or_write_control_records() -> None:
    assert verdict(remade(batch(), base_offset=5)) is ErrorCode.INVALID_RECORD
    marker = end_txn_batch(7, 0, EndTxnMarker(True, 1), NOW)
    assert verdict(marker) is ErrorCode.INVALID_RECORD


def test_an_idempotent_batch_needs_a_sequence() -> None:
    assert verdict(batch(producer_id=5, producer_epoch=0)) is ErrorCode.INVALID_RECORD
    assert prepare(
        memoryview(batch(producer_id=5, producer_epoch=0, base_sequence=0)), TopicSettings(), NOW
    )


def test_sizes_are_bounded_by_topic_and_segment() -> None:
    assert verdict(batch(), TopicSettings(max_message_bytes=100)) is ErrorCode.MESSAGE_TOO_LARGE
    assert verdict(batch(), TopicSettings(segment_bytes=100)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_an_unknown_codec_is_refused() -> None:
    assert verdict(remade(batch(), attributes=5)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_timestamps_must_lie_in_the_topics_window() -> None:
    settings = TopicSettings(
        message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500
    )
    for stamp, good in ((-1000, True), (-1001, False), (500, True), (501, False)):
        data = batch(Record(timestamp=NOW + stamp))
        if good:
            assert prepare(memoryview(data), settings, NOW)
        else:
            assert verdict(data, settings) is ErrorCode.INVALID_TIMESTAMP
    assert prepare(memoryview(batch(Record(timestamp=-1))), settings, NOW)


def test_a_missing_largest_timestamp_is_filled_in() -> None:
    data = remade(batch(Record(timestamp=NOW)), max_timestamp=-1)
    prepared = prepare(memoryview(data), TopicSettings(), NOW)
    assert prepared.header.max_timestamp == NOW
    assert check_crc(prepared.view, 0, read_header(prepared.view))


def test_log_append_time_is_the_brokers_to_set() -> None:
    settings = TopicSettings(message_timestamp_type="LogAppendTime")
    prepared = prepare(memoryview(batch(Record(timestamp=3))), settings, NOW)
    assert prepared.header.log_append_time
    assert prepared.header.max_timestamp == NOW
    assert check_crc(prepared.view, 0, prepared.header)
    theirs = batch(Record(timestamp=3), log_append_time=NOW)
    assert verdict(theirs, settings) is ErrorCode.INVALID_TIMESTAMP
    cleared = prepare(
        memoryview(batch(Record(timestamp=NOW), log_append_time=NOW)), TopicSettings(), NOW
    )
    assert not cleared.header.log_append_time


def test_compacted_topics_need_keys() -> None:
    settings = TopicSettings(cleanup_policy=("compact",))
    assert prepare(memoryview(batch()), settings, NOW)
    for codec in Codec:
        keyless = batch(Record(timestamp=NOW, key=b"a"), Record(timestamp=NOW), codec=codec)
        assert verdict(keyless, settings) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("target", ["producer", "gzip"])
def test_all_records_to_blame_are_named(codec: Codec, target: str) -> None:
    settings = TopicSettings(
        cleanup_policy=("compact",), message_timestamp_after_max_ms=1000, compression_type=target
    )
    good, keyless = Record(timestamp=NOW, key=b"k"), Record(timestamp=NOW)
    late = Record(timestamp=NOW + 1001, key=b"k")
    for records, code, blamed in (
        ([good, keyless, keyless], ErrorCode.INVALID_RECORD, [(1, "key"), (2, "key")]),
        (
            [late, good, keyless, late],
            ErrorCode.INVALID_TIMESTAMP,
            [(0, "timestamp"), (2, "key"), (3, "timestamp")],
        ),
        (
            [keyless] * MOST_NAMED + [good, late],
            ErrorCode.INVALID_TIMESTAMP,
            [(index, "key") for index in range(MOST_NAMED)],
        ),
    ):
        with pytest.raises(BadRecord) as refused:
            prepare(memoryview(batch(*records, codec=codec)), settings, NOW)
        assert refused.value.code == code
        named = list(refused.value.named(MOST_NAMED))
        assert len(named) == len(blamed)
        for (index, complaint), (wanted, word) in zip(named, blamed, strict=True):
            assert index == wanted
            assert word in complaint


@given(st.sampled_from(Codec), st.sampled_from(Codec))
def test_recompression_keeps_the_records(source: Codec, target: Codec) -> None:
    name = "uncompressed" if target is Codec.NONE else target.name.lower()
    settings = TopicSettings(compression_type=name)
    data = batch(codec=source, producer_id=9, producer_epoch=1, base_sequence=4)
    prepared = prepare(memoryview(data), settings, NOW)
    assert prepared.header.codec is target
    assert check_crc(prepared.view, 0, prepared.header)
    assert prepared.header.size == len(prepared.view)
    assert decode_records(prepared.view) == decode_records(data)
    assert prepared.header.base_sequence == 4


@pytest.mark.parametrize("source", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_large_batches_are_packed_anew_piece_by_piece(source: Codec, target: str) -> None:
    settings = TopicSettings(compression_type=target, max_message_bytes=6 << 20)
    values = [bytes([index % 251]) * 10_000 for index in range(400)]
    data = batch(
        *[Record(index, NOW, b"k", value) for index, value in enumerate(values)], codec=source
    )
    prepared = prepare(memoryview(data), settings, NOW)
    assert check_crc(prepared.view, 0, prepared.header)
    assert prepared.header.size == len(prepared.view)
    assert [record.value for record in decode_records(prepared.view)] == values


def test_what_is_bad_is_told_before_that_it_would_be_too_large() -> None:
    """Snappy makes more of three million zeros than zstd, and more than the topic accepts."""
    settings = TopicSettings(
        compression_type="snappy", cleanup_policy=("compact",), max_message_bytes=50_000
    )
    keyed = batch(Record(timestamp=NOW, key=b"k", value=bytes(3 << 20)), codec=Codec.ZSTD)
    keyless = batch(Record(timestamp=NOW, value=bytes(3 << 20)), codec=Codec.ZSTD)
    assert verdict(keyed, settings) is ErrorCode.MESSAGE_TOO_LARGE
    assert verdict(keyless, settings) is ErrorCode.INVALID_RECORD


def test_recompression_refuses_bombs_and_records_that_do_not_add_up() -> None:
    settings = TopicSettings(compression_type="uncompressed")
    bomb = batch(Record(timestamp=NOW, value=bytes(200 << 20)), codec=Codec.ZSTD)
    assert verdict(bomb, settings) is ErrorCode.MESSAGE_TOO_LARGE
    header = read_header(batch(codec=Codec.LZ4))
    wrong = assemble(header, b"not lz4 at all")
    assert verdict(wrong, settings) is ErrorCode.INVALID_RECORD
    growing = batch(Record(timestamp=NOW, value=bytes(2 << 20)), codec=Codec.ZSTD)
    assert verdict(growing, settings) is ErrorCode.MESSAGE_TOO_LARGE


def test_long_work_leaves_the_loop(chosen: Implementation) -> None:
    keyed = Record(timestamp=NOW, key=b"k", value=bytes(50))
    large, small = batch(*[keyed] * 2000), batch()
    compacted = TopicSettings(cleanup_policy=("compact",))
    repacked = TopicSettings(compression_type="zstd")
    for settings, heavy in (
        (TopicSettings(), False),
        (repacked, True),
        (compacted, not chosen.native),
    ):
        assert needs_offload(read_header(large), settings) is heavy
        if heavy:
            with pytest.raises(Heavy):
                prepare(memoryview(large), settings, NOW, on_loop=True)
        assert prepare(memoryview(large), settings, NOW)
        assert prepare(memoryview(small), settings, NOW, on_loop=True)


def test_many_empty_blocks_of_snappy_leave_the_loop() -> None:
    block = bytes(cramjam.snappy.compress_raw(b""))
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    good = batch(codec=Codec.SNAPPY)
    padded = header + (struct.pack(">i", len(block)) + block) * 100 + bytes(good[61 + 16 :])
    settings = TopicSettings(cleanup_policy=("compact",))
    data = assemble(read_header(good), padded)
    with pytest.raises(Heavy):
        prepare(memoryview(data), settings, NOW, on_loop=True)
    assert prepare(memoryview(data), settings, NOW)


def test_what_is_too_large_for_the_topic_is_refused_where_it_is() -> None:
    data = batch(Record(timestamp=NOW, key=b"k", value=bytes(100_000)))
    packed = TopicSettings(compression_type="zstd", max_message_bytes=50_000)
    assert verdict(data, packed, on_loop=True) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_batch_that_grows_large_leaves_the_loop_unchanged(codec: Codec) -> None:
    settings = TopicSettings(cleanup_policy=("compact",), message_timestamp_type="LogAppendTime")
    data = batch(Record(timestamp=NOW, key=b"k", value=bytes(3 << 20)), codec=codec)
    before = bytes(data)
    with pytest.raises(Heavy):
        prepare(memoryview(data), settings, NOW, on_loop=True)
    assert data == before
    assert prepare(memoryview(data), settings, NOW).header.log_append_time


@given(st.binary(max_size=150), st.data())
def test_any_bytes_give_a_verdict(noise: bytes, data: st.DataObject) -> None:
    raw = bytearray(noise) if data.draw(st.booleans()) else batch() + noise
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(0, 255))
    with contextlib.suppress(KafkaError):
        prepare(memoryview(raw), TopicSettings(), NOW)
