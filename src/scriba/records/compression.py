"""The five codecs of a record batch, in the framing that other Kafka clients read and write.

Bytes from outside may claim any size, so they are unpacked piece by piece and never to more than
`max_bytes`: MESSAGE_TOO_LARGE is raised beyond that, and ParseError for what no codec can read.
"""

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard

from scriba.errors import ErrorCode, KafkaError, ParseError

try:
    from isal import isal_zlib
except ImportError:  # no wheel for this machine: the standard library reads and writes the same
    fast_zlib: ModuleType = zlib
else:
    fast_zlib = isal_zlib

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES: Final = 128 << 20
"""How much one batch may grow to when the broker itself has to look inside."""

_GZIP: Final = 31  # zlib's window bits for "gzip header and trailer"
_STEP: Final = 1 << 18
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10
_INT32: Final = struct.Struct(">i")


class Codec(enum.IntEnum):
    """The three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_named(name: str) -> Codec | None:
    """The codec a `compression.type` asks for; None for `producer`, which keeps what came."""
    return _NAMES[name]


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> Buffer:
    """What was compressed, at most `max_bytes`; without a codec `data` itself, not a copy."""
    parts = list(unpack(codec, data, max_bytes))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unpack(codec: Codec, data: Buffer, max_bytes: int) -> Iterator[Buffer]:
    """The same in pieces, so that not all of it needs to be in memory."""
    left = max_bytes
    try:
        for part in _UNPACK[codec](data, max_bytes):
            left -= len(part)
            if left < 0:
                raise _refuse(max_bytes)
            yield part
    except _CODEC_ERRORS as error:
        raise ParseError(f"{codec.name.lower()} data is corrupt: {error}") from None


_NAMES: Final[dict[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_CODEC_ERRORS: Final[tuple[type[Exception], ...]] = (
    zlib.error,
    fast_zlib.error,
    RuntimeError,  # lz4's own
    zstandard.ZstdError,
    cramjam.DecompressionError,
    struct.error,
)


def _refuse(max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch decompresses to more than {max_bytes} bytes"
    )


def _keep(data: Buffer, max_bytes: int) -> Iterator[Buffer]:
    yield data


def _gzip(data: Buffer, level: int | None) -> bytes:
    if level is None:
        packer = fast_zlib.compressobj(wbits=_GZIP)
        return bytes(packer.compress(data) + packer.flush())
    exact = zlib.compressobj(level, wbits=_GZIP)
    return exact.compress(data) + exact.flush()


def _gunzip(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    """Reads every member, as Java's stream does, and refuses a member cut short."""
    rest = data
    while len(rest):
        member = fast_zlib.decompressobj(wbits=_GZIP)
        while not member.eof:
            part = member.decompress(rest, _STEP)
            rest = member.unconsumed_tail
            if part:
                yield part
            elif not rest and not member.eof:
                raise ParseError("gzip data ends in the middle")
        rest = member.unused_data


def _snap(data: Buffer, level: int | None) -> bytes:
    """Framed as snappy-java does: Java's consumer reads nothing else."""
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK])))
        out += (_INT32.pack(len(block)), block)
    return b"".join(out)


def _unsnap(data: Buffer, max_bytes: int) -> Iterator[memoryview]:
    """Framed as above, or one bare block, which librdkafka sends."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield _unsnap_block(view, max_bytes)
        return
    position = len(_XERIAL_HEADER)
    while position < len(view):
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 <= size <= len(view) - position:
            raise ParseError("a snappy block reaches past the end of its batch")
        yield _unsnap_block(view[position : position + size], max_bytes)
        position += size


def _unsnap_block(block: memoryview, max_bytes: int) -> memoryview:
    if cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise _refuse(max_bytes)
    return memoryview(cramjam.snappy.decompress_raw(block))


def _lz4(data: Buffer, level: int | None) -> bytes:
    """Independent blocks of at most 64 KB: Java's reader refuses linked ones."""
    return bytes(
        lz4.frame.compress(
            bytes(data),
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    )


def _unlz4(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    frame = lz4.frame.LZ4FrameDecompressor()
    rest = data
    while not frame.eof:
        part = frame.decompress(rest, max_length=_STEP)
        rest = b""
        if part:
            yield part
        elif not frame.eof:
            raise ParseError("lz4 data ends in the middle")


def _zstd(data: Buffer, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(3 if level is None else level).compress(data)


_idle_unpackers: list[zstandard.ZstdDecompressor] = []
"""Making one costs as much as unpacking a small batch; each serves one batch at a time."""


def _unzstd(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    """Streamed: the size in a frame's header is optional, and not to be believed."""
    try:
        unpacker = _idle_unpackers.pop()
    except IndexError:
        unpacker = zstandard.ZstdDecompressor()
    reader = unpacker.stream_reader(data, read_across_frames=True)
    pieces = 0
    while part := reader.read(_STEP):
        pieces += 1
        yield part
    if pieces <= 4:  # one that unpacked much keeps much memory
        _idle_unpackers.append(unpacker)


_COMPRESS: Final[dict[Codec, Callable[[Buffer, int | None], bytes]]] = {
    Codec.NONE: lambda data, level: bytes(data),
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snap,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_UNPACK: Final[dict[Codec, Callable[[Buffer, int], Iterator[Buffer]]]] = {
    Codec.NONE: _keep,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnap,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
