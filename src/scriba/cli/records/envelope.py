"""Records as lines of JSON that lose nothing: what `consume` writes, `produce` reads back.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1767225600000,
     "timestamp_type": "create", "headers": [["trace", "a1"]], "key": "k", "value": "v"}

A key, a value and a header's value is a string if its bytes are UTF-8, `{"base64": "..."}` if they
are not, and null for Kafka's null. Headers are pairs, since their order counts and names may come
twice. Reading needs only `value`; it takes headers as an object too, and passes over what a broker
decides (offset, timestamp_type).
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scriba.text import json_text

if TYPE_CHECKING:
    from scriba.client import ConsumerRecord

Headers = Sequence[tuple[str, bytes | None]]

_READ: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
_PASSED_OVER: Final = ("offset", "timestamp_type")
_BASE64: Final = "base64"
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


class Outgoing(NamedTuple):
    """A record to send; what is None is left to the producer, but a None value is a null."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
    topic: str | None = None


class EnvelopeError(ValueError):
    """A line that is no such record, and why."""


def to_line(record: "ConsumerRecord[Any, Any]") -> str:
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        "timestamp_type": "log_append" if record.timestamp_type else "create",
        "headers": [[name, to_json(content)] for name, content in record.headers],
        "key": to_json(record.key),
        "value": to_json(record.value),
    }
    return json_text(document)


def to_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(data).decode()}


def from_line(line: bytes | str) -> Outgoing:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise EnvelopeError(f"is not JSON ({error})") from None
    except RecursionError:
        raise EnvelopeError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise EnvelopeError('is not an object such as {"key": "k", "value": "v"}')
    for name in found:
        if name not in _READ and name not in _PASSED_OVER:
            raise EnvelopeError(f"has an unknown field {name!r}; there are {', '.join(_READ)}")
    if "value" not in found:
        raise EnvelopeError("has no value; write null for a record without one")
    return Outgoing(
        _bytes(found["value"], "value"),
        _bytes(found.get("key"), "key"),
        _headers(found.get("headers")),
        _number(found.get("partition"), "partition", _MAX_INT32),
        _number(found.get("timestamp"), "timestamp", _MAX_INT64),
        _name(found.get("topic")),
    )


def _name(given: object) -> str | None:
    if given is None or (isinstance(given, str) and given):
        return given
    raise EnvelopeError("has a topic that is no name")


def _bytes(given: object, what: str) -> bytes | None:
    if given is None:
        return None
    try:
        if isinstance(given, str):
            return given.encode()
        if (
            isinstance(given, dict)
            and list(given) == [_BASE64]
            and isinstance(text := given[_BASE64], str)
        ):
            return base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise EnvelopeError(f"has a {what} that cannot be read ({error})") from None
    raise EnvelopeError(f'has a {what} that is neither a string, null nor {{"{_BASE64}": "..."}}')


def _headers(given: object) -> Headers:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise EnvelopeError("has headers that are neither a list of pairs nor an object")
    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        match pair:
            case [str(name), content]:
                headers.append((name, _bytes(content, f"header {name!r}")))
            case _:
                raise EnvelopeError("has a header that is not a pair of a name and a value")
    return headers


def _number(given: object, what: str, most: int) -> int | None:
    if given is None:
        return None
    if type(given) is not int or not 0 <= given <= most:
        raise EnvelopeError(f"has a {what} that is no whole number from 0 up")
    return given
