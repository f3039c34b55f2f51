"""The five codecs of a record batch, in the framing that other Kafka clients read and write.

Bytes from outside may claim any size, so they are unpacked piece by piece and never to more than
`max_bytes`: MESSAGE_TOO_LARGE is raised beyond that, and ParseError for what no codec can read.
"""

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, Protocol

import cramjam
import lz4.frame
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
_FEED: Final = 1 << 14
"""What a reader of gzip is given at once: it copies what follows the end of each member."""
_ZSTD_WINDOW: Final = 1 << 23
"""What zstd looks back at, at most, up to its level 19. More is remembered for single batches."""
_SNAPPY_RATIO: Final = 22
"""No more bytes come out of one byte of snappy: three of them copy 64."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10
_INT32: Final = struct.Struct(">i")
_ZSTD_FRAME_HEADER: Final = 18


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
    packer = _gzip_stream(level)
    return packer.compress(data) + packer.flush()


def _gzip_stream(level: int | None) -> "Stream":
    if level is None:
        fast: Stream = fast_zlib.compressobj(wbits=_GZIP)
        return fast
    return zlib.compressobj(level, wbits=_GZIP)


def _gunzip(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    """Reads every member, as Java's stream does, and refuses a member cut short."""
    view = memoryview(data)
    fed, end = 0, len(view)
    while fed < end:
        member = fast_zlib.decompressobj(wbits=_GZIP)
        tail: Buffer = b""
        while not member.eof:
            if not tail:
                tail = view[fed : fed + _FEED]
                fed += len(tail)
            given = bool(tail)
            part = member.decompress(tail, _STEP)
            tail = member.unconsumed_tail
            if part:
                yield part
            elif not given:
                raise ParseError("gzip data ends in the middle")
        fed -= len(member.unused_data)


def _snap(data: Buffer, level: int | None) -> bytes:
    """Framed as snappy-java does: Java's consumer reads nothing else."""
    return b"".join((_XERIAL_HEADER, *_snappy_blocks(memoryview(data))))


def _snappy_blocks(view: memoryview) -> Iterator[bytes]:
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK])))
        yield _INT32.pack(len(block))
        yield block


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
    size = cramjam.snappy.decompress_raw_len(block)
    if size > max_bytes:
        raise _refuse(max_bytes)
    if size > len(block) * _SNAPPY_RATIO:
        raise ParseError(f"{len(block)} bytes of snappy data cannot hold {size}")
    return memoryview(cramjam.snappy.decompress_raw(block))


def _lz4(data: Buffer, level: int | None) -> bytes:
    return bytes(lz4.frame.compress(bytes(data), store_size=False, **_lz4_options(level)))


def _lz4_options(level: int | None) -> dict[str, Any]:
    """Independent blocks of at most 64 KB: Java's reader refuses linked ones."""
    return {
        "compression_level": 0 if level is None else level,
        "block_size": lz4.frame.BLOCKSIZE_MAX64KB,
        "block_linked": False,
    }


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
    window = _zstd_window(data)
    try:
        unpacker = (
            zstandard.ZstdDecompressor(max_window_size=window) if window else _idle_unpackers.pop()
        )
    except IndexError:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    reader = unpacker.stream_reader(data, read_across_frames=True)
    pieces = 0
    while part := reader.read(_STEP):
        pieces += 1
        yield part
    if pieces <= 4 and not window:  # one that unpacked much keeps much memory
        _idle_unpackers.append(unpacker)


def _zstd_window(data: Buffer) -> int:
    """How far the frame looks back, if that is unusually far; otherwise 0."""
    try:
        window = zstandard.get_frame_parameters(bytes(data[:_ZSTD_FRAME_HEADER])).window_size
    except zstandard.ZstdError:
        return 0  # unpacking tells what is wrong
    return window if _ZSTD_WINDOW < window <= MAX_DECOMPRESSED_BYTES else 0


def memory_for(codec: Codec, data: Buffer) -> int:
    """About how much memory `unpack` needs at once."""
    match codec:
        case Codec.ZSTD:
            return 2 * _STEP + (_zstd_window(data) or _ZSTD_WINDOW)
        case Codec.SNAPPY:
            return min(len(data) * _SNAPPY_RATIO, MAX_DECOMPRESSED_BYTES)
        case _:
            return 4 * _STEP


# ---- packing what comes in pieces ----


class Stream(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: Buffer) -> bytes:
        return bytes(data)

    def flush(self) -> bytes:
        return b""


class _SnappyStream:
    def __init__(self) -> None:
        self._out = _XERIAL_HEADER
        self._held = bytearray()

    def compress(self, data: Buffer) -> bytes:
        self._held += data
        whole = len(self._held) // _XERIAL_BLOCK * _XERIAL_BLOCK
        return self._blocks(whole)

    def flush(self) -> bytes:
        return self._blocks(len(self._held))

    def _blocks(self, size: int) -> bytes:
        out = [self._out, *_snappy_blocks(memoryview(bytes(self._held[:size])))]
        self._out = b""
        del self._held[:size]
        return b"".join(out)


class _Lz4Stream:
    def __init__(self, level: int | None) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor(**_lz4_options(level))
        self._out = bytes(self._frame.begin())

    def compress(self, data: Buffer) -> bytes:
        out, self._out = self._out, b""
        return out + bytes(self._frame.compress(data))

    def flush(self) -> bytes:
        return self._out + bytes(self._frame.flush())


def stream(codec: Codec, level: int | None = None) -> Stream:
    """As `compress`, of bytes that come in pieces; what it makes of them comes in pieces, too."""
    match codec:
        case Codec.GZIP:
            return _gzip_stream(level)
        case Codec.SNAPPY:
            return _SnappyStream()
        case Codec.LZ4:
            return _Lz4Stream(level)
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(3 if level is None else level).compressobj()
        case _:
            return _Plain()


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
