"""What must hold of every codec, for any value and any bytes."""

from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scriba.wire
from scriba.errors import ParseError
from scriba.outcome import at_once
from scriba.wire.frame import decode_request_header
from scriba.wire.messages.stored import decode_metadata_record, decode_quorum_state
from scriba.wire.schema import Field, Message, Struct, Type

MODULES = [
    import_module(module.name) for module in walk_packages(scriba.wire.__path__, "scriba.wire.")
]
MESSAGES = {
    cls.__name__: cls
    for module in MODULES
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
}

each_message = pytest.mark.parametrize("cls", MESSAGES.values(), ids=MESSAGES)
few = settings(
    max_examples=4,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
some = settings(few, max_examples=20)

TEXT = st.text(st.characters(codec="utf-8"), max_size=5) | st.just("é" * 70)
BYTES = st.binary(max_size=5) | st.just(bytes(200))
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(1 << 7), (1 << 7) - 1),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint16": st.integers(0, (1 << 16) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": TEXT,
    "bytes": BYTES,
    "records": BYTES,
}


def values(type_: Type, version: int) -> st.SearchStrategy[Any]:
    if type_.element is not None:
        return st.lists(values(type_.element, version), max_size=2)
    if type_.struct is not None:
        return structs(type_.struct, version)
    assert type_.kind is not None
    return KINDS[type_.kind.name]


def field_values(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = values(field.type, version)
    return st.none() | strategy if version in field.nullable else strategy


@cache
def structs(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    present = [f for f in cls.FIELDS if version in f.within]
    required = {f.name: field_values(f, version) for f in present if f.tag is None}
    tagged = {f.name: field_values(f, version) for f in present if f.tag is not None}
    return st.fixed_dictionaries(required, optional=tagged).map(lambda given: cls(**given))


@st.composite
def messages(draw: st.DrawFn, cls: type[Message]) -> tuple[Message, int]:
    version = draw(st.integers(*cls.VERSIONS))
    return draw(structs(cls, version)), version


@each_message
@few
@given(st.data())
def test_what_is_encoded_decodes_to_the_same(cls: type[Message], data: st.DataObject) -> None:
    message, version = data.draw(messages(cls))
    encoded = message.encode(version)
    assert cls.decode(encoded, version) == message
    around, end = cls.decode_from(b"??" + encoded + b"???", 2, version)
    assert around == message
    assert end == 2 + len(encoded)
    in_slices = bytearray()
    at_once(message.encode_in_slices(in_slices, version))
    assert in_slices == encoded
    read = at_once(cls.decode_in_slices(b"??" + encoded + b"???", 2, version, 1 << 20))
    assert read == (message, 2 + len(encoded))


@each_message
@few
@given(st.data())
def test_bad_bytes_raise_nothing_but_the_parse_error(
    cls: type[Message], data: st.DataObject
) -> None:
    message, version = data.draw(messages(cls))
    damaged = bytearray(message.encode(version))
    if damaged:
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + 1] = data.draw(st.binary(max_size=3))
        attempt(cls, bytes(damaged), version)
        attempt(cls, bytes(damaged[:place]), version)
    attempt(cls, data.draw(st.binary(max_size=64)), version)


def attempt(cls: type[Message], buf: bytes, version: int) -> None:
    """Decodes; what comes out, if anything, must be sound enough to be sent on."""
    try:
        message = cls.decode(buf, version)
    except ParseError:
        return
    message.encode(version)


@each_message
def test_every_truncation_is_noticed(cls: type[Message]) -> None:
    version = cls.VERSIONS.high
    encoded = cls().encode(version)
    for size in range(len(encoded)):
        with pytest.raises(ParseError):
            cls.decode(encoded[:size], version)


@some
@given(st.binary(max_size=40))
def test_headers_and_stored_frames_raise_nothing_but_the_parse_error(buf: bytes) -> None:
    for decode in (decode_request_header, decode_metadata_record, decode_quorum_state):
        try:
            decode(buf)
        except ParseError:
            continue
