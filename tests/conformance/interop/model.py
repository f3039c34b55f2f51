"""The records of the interop matrix, and how a reading of them is compared."""

import hashlib
import random
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tools.kafka.rawkafka import T0

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_SHOWN = 1000
"""A longer value is compared by its hash, so that a difference can still be read."""


@dataclass(frozen=True)
class Record:
    """What a writer is asked to write. Without a timestamp the writer takes its own."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class Seen(NamedTuple):
    """What a reader saw."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def seen(
    offset: int,
    timestamp: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> Seen:
    if value is not None and len(value) > _SHOWN:
        value = b"%d bytes %s" % (len(value), hashlib.sha256(value).hexdigest().encode())
    return Seen(offset, timestamp, key, value, headers)


LARGE = random.Random(9).randbytes(225_000).hex().encode() + b"again " * 75_000
"""900 KB, close under what one request may carry, which every codec makes smaller: lz4 and snappy
only find what repeats."""

HEADERS: Headers = (("a", b"1"), ("a", b"again"), ("empty", b""))

LINES = (
    Record(b"key", b"value", HEADERS),
    Record(None, b"no key"),
    Record(b"gone", None),
    Record(b"empty", b""),
    Record(b"", b"empty key"),
    Record(b"large", LARGE),
)
"""What a program that takes lines of text can write."""

EVERYTHING = tuple(
    Record(record.key, record.value, record.headers, T0 + number * 1000)
    for number, record in enumerate(
        (
            *LINES,
            Record(bytes(range(256)), bytes(reversed(range(256))), (("\u00e9", b"\xfe\xff"),)),
            Record(b"null header", b"value", (("null", None),)),
        )
    )
)
"""What a library can write: every byte, and a time of its own choice."""

NO_NULL_HEADER = EVERYTHING[:-1]
"""For libraries that refuse a header without a value."""
