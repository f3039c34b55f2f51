"""Codecs: round trips, bounds, and the framing of other clients."""

import contextlib
import gzip
import os
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.records.compression import (
    Codec,
    compress,
    decompress,
    memory_for,
    stream,
    unpack,
)


@given(st.sampled_from(Codec), st.binary(max_size=5000), st.integers(1, 40))
def test_what_was_compressed_comes_back_from_any_buffer(
    codec: Codec, data: bytes, times: int
) -> None:
    data *= times
    packed = compress(codec, data)
    for buffer in (packed, bytearray(packed), memoryview(bytearray(packed))):
        assert decompress(codec, buffer, len(data)) == data


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"\0" * 3_000_000, os.urandom(300_000)])
def test_decompression_stops_at_its_bound(codec: Codec, data: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        decompress(codec, compress(codec, data), len(data) - 1)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@given(st.sampled_from([c for c in Codec if c]), st.binary(max_size=300))
def test_garbage_is_a_parse_error(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(ParseError, KafkaError):
        assert len(decompress(codec, data, 1 << 16)) <= 1 << 16


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_data_that_ends_in_the_middle_is_refused(codec: Codec) -> None:
    packed = compress(codec, os.urandom(100_000))
    with pytest.raises(ParseError):
        decompress(codec, packed[:-5], 1 << 20)


def test_gzip_of_several_members_is_read_to_the_end() -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, packed, 100) == b"onetwo"


def test_gzip_of_very_many_members_is_not_copied_for_each() -> None:
    """What follows a member was copied once for each of them: a second for 800 KB."""
    packed = gzip.compress(b"") * 20_000 + gzip.compress(b"end")
    tracemalloc.start()
    assert b"".join(unpack(Codec.GZIP, packed, 100)) == b"end"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(packed) / 2


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("level", [None, 4])
def test_what_is_packed_piece_by_piece_is_read_like_what_is_packed_at_once(
    codec: Codec, level: int | None
) -> None:
    data = os.urandom(70_000) + bytes(900_000) + os.urandom(5) * 10_000
    packer = stream(codec, level)
    pieces = [memoryview(data)[at : at + 99_999] for at in range(0, len(data), 99_999)]
    packed = b"".join([*map(packer.compress, pieces), packer.flush()])
    assert decompress(codec, packed, 1 << 22) == data
    if codec is Codec.LZ4:
        at_once = compress(codec, data, level)
        assert packed[:5] == at_once[:5], "independent blocks, as Java wants them"
    if codec is Codec.SNAPPY:
        assert packed == compress(codec, data)


def test_snappy_that_claims_more_than_it_can_hold_takes_no_memory_for_it() -> None:
    claimed = 100 << 20
    bare = bytearray()
    while claimed > 127:
        bare.append(claimed & 127 | 128)
        claimed >>= 7
    bare.append(claimed)
    with pytest.raises(ParseError, match="cannot hold"):
        decompress(Codec.SNAPPY, bytes(bare) + b"abc", 1 << 30)
    most = cramjam.snappy.compress_raw(bytes(50 << 20))
    assert len(decompress(Codec.SNAPPY, bytes(most), 1 << 30)) == 50 << 20


def test_a_zstd_frame_that_looks_far_back_is_read_and_its_memory_told() -> None:
    far = zstandard.ZstdCompressionParameters(window_log=26, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=far).compressobj()
    data = os.urandom(1000) * 1000
    packed = packer.compress(data) + packer.flush()
    assert decompress(Codec.ZSTD, packed, 1 << 20) == data
    assert 1 << 26 < memory_for(Codec.ZSTD, packed) < 1 << 27
    assert memory_for(Codec.ZSTD, compress(Codec.ZSTD, data)) < 10 << 20
    assert memory_for(Codec.ZSTD, b"rubbish") < 10 << 20


def test_gzip_level_is_honoured() -> None:
    data = b"the quick brown fox " * 5000
    assert len(compress(Codec.GZIP, data, 9)) <= len(compress(Codec.GZIP, data, 1))
    assert gzip.decompress(compress(Codec.GZIP, data)) == data


def test_snappy_is_written_framed_and_read_framed_or_bare() -> None:
    data = b"abc" * 50_000
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01")
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data)) == data


def test_snappy_bomb_is_refused_before_memory_is_taken() -> None:
    claims_four_gigabytes = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    with pytest.raises(KafkaError):
        decompress(Codec.SNAPPY, claims_four_gigabytes, 1 << 20)


def test_lz4_blocks_are_independent_because_java_reads_no_others() -> None:
    packed = compress(Codec.LZ4, os.urandom(200_000))
    info = lz4.frame.get_frame_info(packed)
    assert info["block_linked"] is False
    assert info["block_size"] == 64 << 10


def test_zstd_without_a_content_size_is_read() -> None:
    data = b"scriba" * 10_000
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert decompress(Codec.ZSTD, packed, len(data)) == data
