"""Requests and responses as they travel: a header and a message, without the length before them.

A request header names the API and its version, which decide whether the header itself ends in
tagged fields. The answer to ApiVersions never does: the client that asks cannot know yet what the
broker speaks (KIP-511).
"""

from struct import Struct as Layout
from struct import error as StructError
from typing import NamedTuple, TypeVar

from scriba.errors import ParseError
from scriba.wire.apis import API, ApiKey
from scriba.wire.schema import Buffer, Hole, Message
from scriba.wire.varint import skip_tags

M = TypeVar("M", bound=Message)

_HEAD = Layout(">hhih")
_INT32 = Layout(">i")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(buf: Buffer, pos: int = 0) -> tuple[RequestHeader, int]:
    """The header that starts at `pos`, and where the request's body starts."""
    try:
        key, version, correlation_id, length = _HEAD.unpack_from(buf, pos)
        pos += _HEAD.size
        client_id = None
        if length >= 0:
            end = pos + length
            client_id = str(buf[pos:end], "utf-8")
            pos = end
        api = API.get(key)
        if api is None:
            raise ParseError(f"unknown API key {key}")
        if version >= api.flexible_from:
            pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos)
    except (StructError, ValueError, IndexError) as e:
        raise ParseError(f"request header: {e}") from e
    if pos > len(buf):
        raise ParseError("request header: truncated")
    return RequestHeader(key, version, correlation_id, client_id), pos


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    key = message.KEY
    if key is None:
        raise ValueError(f"{type(message).__name__} is not a request")
    name = (client_id or "").encode()
    length = -1 if client_id is None else len(name)
    out = bytearray(_HEAD.pack(key, version, correlation_id, length))
    out += name
    if version in message.FLEXIBLE:
        out.append(0)
    message.encode_into(out, version)
    return bytes(out)


def response_header_version(api_key: int, version: int) -> int:
    return int(api_key != ApiKey.API_VERSIONS and version >= API[api_key].flexible_from)


def response_header(message: Message, version: int, correlation_id: int) -> bytearray:
    """The start of a response, to which `message` is appended."""
    out = bytearray(_INT32.pack(correlation_id))
    if version in message.FLEXIBLE and message.KEY != ApiKey.API_VERSIONS:
        out.append(0)
    return out


def encode_response(message: Message, version: int, correlation_id: int) -> bytearray:
    out = response_header(message, version, correlation_id)
    message.encode_into(out, version)
    return out


def encode_response_parts(
    message: Message, version: int, correlation_id: int
) -> tuple[list[memoryview | Hole], int]:
    """A response whose records may be holes: encoded bytes and the holes in turn, and the total.

    The bytes between two holes are views of one buffer, so nothing is copied; replacing each hole
    by its bytes gives what `encode_response` gives.
    """
    out = response_header(message, version, correlation_id)
    holes: list[tuple[int, Hole]] = []
    message.encode_into(out, version, holes)
    view = memoryview(out)
    parts: list[memoryview | Hole] = []
    start, total = 0, len(out)
    for end, hole in holes:
        if start < end:
            parts.append(view[start:end])
        parts.append(hole)
        total += hole.size
        start = end
    if start < len(out):
        parts.append(view[start:])
    return parts, total


def decode_response(cls: type[M], buf: Buffer, version: int) -> tuple[int, M]:
    """The correlation id and the message of a response to a request of `cls`'s API."""
    try:
        (correlation_id,) = _INT32.unpack_from(buf)
        pos = 4
        if version in cls.FLEXIBLE and cls.KEY != ApiKey.API_VERSIONS:
            pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos)
    except (StructError, ValueError, IndexError) as e:
        raise ParseError(f"response header: {e}") from e
    message, end = cls.decode_from(buf, pos, version)
    if end != len(buf):
        raise ParseError(f"{cls.__name__} v{version}: {len(buf) - end} bytes left over")
    return correlation_id, message
