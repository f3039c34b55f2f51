"""Codecs: round trips, bounds, and the framing of other clients."""

import contextlib
import gzip
import os

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.records.compression import Codec, compress, decompress


@given(st.sampled_from(Codec), st.binary(max_size=5000), st.integers(1, 40))
def test_what_was_compressed_comes_back_from_any_buffer(codec, data, times):
    data *= times
    packed = compress(codec, data)
    for buffer in (packed, bytearray(packed), memoryview(bytearray(packed))):
        assert decompress(codec, buffer, len(data)) == data


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"\0" * 3_000_000, os.urandom(300_000)])
def test_decompression_stops_at_its_bound(codec, data):
    with pytest.raises(KafkaError) as refused:
        decompress(codec, compress(codec, data), len(data) - 1)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@given(st.sampled_from([c for c in Codec if c]), st.binary(max_size=300))
def test_garbage_is_a_parse_error(codec, data):
    with contextlib.suppress(ParseError, KafkaError):
        assert len(decompress(codec, data, 1 << 16)) <= 1 << 16


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_data_that_ends_in_the_middle_is_refused(codec):
    packed = compress(codec, os.urandom(100_000))
    with pytest.raises(ParseError):
        decompress(codec, packed[:-5], 1 << 20)


def test_gzip_of_several_members_is_read_to_the_end():
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, packed, 100) == b"onetwo"


def test_gzip_level_is_honoured():
    data = b"the quick brown fox " * 5000
    assert len(compress(Codec.GZIP, data, 9)) <= len(compress(Codec.GZIP, data, 1))
    assert gzip.decompress(compress(Codec.GZIP, data)) == data


def test_snappy_is_written_framed_and_read_framed_or_bare():
    data = b"abc" * 50_000
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01")
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data)) == data


def test_snappy_bomb_is_refused_before_memory_is_taken():
    claims_four_gigabytes = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    with pytest.raises(KafkaError):
        decompress(Codec.SNAPPY, claims_four_gigabytes, 1 << 20)


def test_lz4_blocks_are_independent_because_java_reads_no_others():
    packed = compress(Codec.LZ4, os.urandom(200_000))
    info = lz4.frame.get_frame_info(packed)
    assert info["block_linked"] is False
    assert info["block_size"] == 64 << 10


def test_zstd_without_a_content_size_is_read():
    data = b"scriba" * 10_000
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert decompress(Codec.ZSTD, packed, len(data)) == data
