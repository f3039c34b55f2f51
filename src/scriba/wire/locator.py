"""Plans by which the fields of a message are found without decoding it (`scriba.native.locate`).

A plan is compiled from the declared message, for one version of it. So whatever depends on a
version (which fields there are, how lengths are written, where tagged fields may be) is told by the
schema alone, to the fast paths as to the decoders.
"""

from scriba.native.locate import (
    ARRAY,
    BYTES,
    COMPACT,
    CONSTANT,
    NULLABLE,
    NUMBER,
    PLACE,
    SKIP,
    SPAN,
    STRING,
    TAGS,
    WANTED,
)
from scriba.wire.schema import Field, Message, Struct, Type

_CORRELATION_ID = bytes((NUMBER, 4))
_CLIENT_ID = bytes((STRING, NULLABLE))
_TAGS = bytes((TAGS, 0))


def plan(
    message: type[Message],
    version: int,
    wanted: frozenset[str],
    places: frozenset[str] = frozenset(),
) -> bytes:
    """For frames with a request of this version; of the header the correlation id is told, first.

    Fields are named by their path, as in `topics.partitions.index`. Of numbers in `wanted` the
    value is told, of everything else where it begins and ends; of fields in `places` only where
    they begin. The length of each array is told in any case. A number or an array in `wanted` that
    the version does not have is told as well, as its default or as empty, so that what is told of
    all versions has one shape. Tagged fields are never told: there must be none.
    """
    assert message.KEY is not None, f"{message.__name__} is not a request"
    flexible = version in message.FLEXIBLE
    out = bytearray(message.KEY.to_bytes(2, "big") + version.to_bytes(2, "big"))
    out += _CORRELATION_ID + _CLIENT_ID
    if flexible:
        out += _TAGS
    _Steps(version, flexible, wanted, places).struct(message, "", out)
    return bytes(out)


def stored_plan(message: type[Message], version: int, places: frozenset[str]) -> bytes:
    """For the key of a kind of stored record, with its value of this version behind it.

    It tells where the fields in `places` begin, and ends with the last of them: of what comes
    behind it, tagged fields say, nothing is asked.
    """
    assert message.KEY is not None, f"{message.__name__} is not stored under a key"
    out = bytearray(message.KEY.to_bytes(2, "big") + version.to_bytes(2, "big"))
    steps = _Steps(version, version in message.FLEXIBLE, frozenset(), places)
    left = set(places)
    for field in message.FIELDS:
        if left and version in field.within and field.tag is None:
            steps.field(field, field.name, out)
            left.discard(field.name)
    assert not left, f"{message.__name__} {version} has no {', '.join(sorted(left))}"
    return bytes(out)


class _Steps:
    def __init__(
        self, version: int, flexible: bool, wanted: frozenset[str], places: frozenset[str]
    ) -> None:
        self._version = version
        self._flexible = flexible
        self._wanted = wanted
        self._places = places

    def struct(self, cls: type[Struct], path: str, out: bytearray) -> None:
        for field in cls.FIELDS:
            if field.tag is not None:
                continue
            if self._version in field.within:
                self.field(field, path + field.name, out)
            elif path + field.name in self._wanted:
                out += _absent(field)
        if self._flexible:
            out += _TAGS

    def field(self, field: Field, path: str, out: bytearray) -> None:
        nullable = self._version in field.nullable
        if field.type.element is not None:
            self._array(field.type.element, path, out)
        elif field.type.struct is not None:
            assert not nullable, f"{path}: a structure that may be null is not located"
            self.struct(field.type.struct, path + ".", out)
        else:
            self._value(field.type, path, nullable, out)

    def _value(self, type_: Type, path: str, nullable: bool, out: bytearray) -> None:
        kind = type_.kind
        assert kind is not None
        if not kind.code:
            code = STRING if kind.name == "string" else BYTES
            flags = COMPACT * self._flexible | NULLABLE * nullable
            out += bytes((code, flags | WANTED * (path in self._wanted)))
        elif path in self._places:
            out += bytes((PLACE, kind.size))
        elif path in self._wanted:
            out += bytes((SPAN if kind.name == "uuid" else NUMBER, kind.size))
        else:
            out += bytes((SKIP, kind.size))

    def _array(self, element: Type, path: str, out: bytearray) -> None:
        """A null is left to the decoder, even where there may be one."""
        steps = bytearray()
        if element.struct is not None:
            self.struct(element.struct, path + ".", steps)
        else:
            self._value(element, path, False, steps)
        out += bytes((ARRAY, COMPACT * self._flexible)) + len(steps).to_bytes(2, "big") + steps


def _absent(field: Field) -> bytes:
    if field.type.element is not None:
        return bytes((CONSTANT, 0))
    kind = field.type.kind
    if kind is None or not kind.code or kind.name == "uuid":
        return b""
    return bytes((CONSTANT,)) + int(field.default()).to_bytes(1, "big", signed=True)
