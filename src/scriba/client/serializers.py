"""Between Python values and the bytes of a key or value, by name or by any callable.

`None` is never handed to one: it stands for Kafka's null in both directions. The integers are
those of Java's Long (`int`) and Integer (`int32`) serializers.
"""

import json
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from scriba.client.errors import RecordError
from scriba.client.model import Headers, HeadersLike, is_text

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]

_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _to_json(value: Any) -> bytes:
    return _COMPACT.encode(value).encode()


def _from_int64(data: bytes) -> int:
    number: int = _INT64.unpack(data)[0]
    return number


def _from_int32(data: bytes) -> int:
    number: int = _INT32.unpack(data)[0]
    return number


SERIALIZERS: Final[dict[str, Serializer | None]] = {
    "bytes": None,
    "str": str.encode,
    "json": _to_json,
    "int": _INT64.pack,
    "int32": _INT32.pack,
}
DESERIALIZERS: Final[dict[str, Deserializer | None]] = {
    "bytes": None,
    "str": bytes.decode,
    "json": json.loads,
    "int": _from_int64,
    "int32": _from_int32,
}


def serializer(chosen: str | Serializer) -> Serializer | None:
    """None for bytes, which need no work."""
    return SERIALIZERS[chosen] if isinstance(chosen, str) else chosen


def deserializer(chosen: str | Deserializer) -> Deserializer | None:
    return DESERIALIZERS[chosen] if isinstance(chosen, str) else chosen


def not_bytes(value: object, what: str) -> RecordError:
    """The error for a key or value that cannot be sent without a serializer."""
    name = next((n for n, t in (("str", str), ("int", int)) if isinstance(value, t)), "json")
    return RecordError(
        f"the {what} is of type {type(value).__name__}, not bytes",
        fix=f"encode it, or give the producer {what}_serializer={name!r}",
    )


def plain_bytes(data: Any) -> bytes | bytearray:
    """The bytes of whatever has some; TypeError for what has not."""
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def read_headers(given: HeadersLike) -> tuple[Headers, int]:
    """Headers as pairs, and about how many bytes they take."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
    size = 0
    for name, content in pairs:
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise RecordError(f"the header {name!r} is not a str with bytes or None")
        if not is_text(name):
            raise RecordError(f"the name of the header {name!a} holds what is no character")
        size += 4 + len(name) + (0 if content is None else len(content))
    return pairs, size
