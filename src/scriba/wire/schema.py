"""The small language in which every message of the protocol is declared.

A message is one class that holds all its versions; each attribute says in which versions it
exists, and type checkers see an ordinary keyword constructor with Kafka's defaults:

    class FetchRequest(Message, key=1, versions="4-18", flexible="12+"):
        replica_id: Int32 = field("0-14", default=-1)
        max_wait_ms: Int32 = field("0+")
        topics: list[FetchTopic] = field("0+")

Declaring costs next to nothing: the constructor and the codecs (`codec.py`) are generated when
they are first used, for one class and one version at a time.

Two rules save work on the hot path. Record batches are never copied: a `Records` attribute is a
view of the buffer it was decoded from. And a tagged structure that is absent is one shared
default which refuses changes: assign a new one instead.
"""

from collections.abc import Callable, Generator
from operator import attrgetter
from struct import error as StructError
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    Self,
    cast,
    dataclass_transform,
)

from scriba.errors import ParseError

Buffer = bytes | bytearray | memoryview

UNCOUNTED: Final = 1 << 31
"""More elements than a message can have."""


class TooMany(Exception):
    """A message has more elements than the caller allows."""


class Hole(Protocol):
    """Records that are sent from elsewhere (a file) and leave a hole in the encoded bytes."""

    @property
    def size(self) -> int: ...


class Kind(NamedTuple):
    """A type that is not built from others; `code` is its letter in a struct format, if any."""

    name: str
    code: str = ""
    size: int = 0
    zero: Any = 0


Int8 = Annotated[int, Kind("int8", "b", 1)]
Int16 = Annotated[int, Kind("int16", "h", 2)]
Int32 = Annotated[int, Kind("int32", "i", 4)]
Int64 = Annotated[int, Kind("int64", "q", 8)]
UInt16 = Annotated[int, Kind("uint16", "H", 2)]
UInt32 = Annotated[int, Kind("uint32", "I", 4)]
Float64 = Annotated[float, Kind("float64", "d", 8, 0.0)]
Bool = Annotated[bool, Kind("bool", "?", 1, False)]
Uuid = Annotated[bytes, Kind("uuid", "16s", 16, bytes(16))]
Str = Annotated[str, Kind("string", zero="")]
NullableStr = Annotated[str | None, Kind("string", zero="")]
Bytes = Annotated[bytes, Kind("bytes", zero=b"")]
NullableBytes = Annotated[bytes | None, Kind("bytes", zero=b"")]
Records = Annotated[bytes | bytearray | memoryview | None, Kind("records", zero=None)]
SendableRecords = Annotated[
    bytes | bytearray | memoryview | Hole | None, Kind("records", zero=None)
]


class Type(NamedTuple):
    """What an annotation means: exactly one of `kind`, `struct` and `element` is set."""

    kind: Kind | None
    struct: "type[Struct] | None"
    element: "Type | None"
    optional: bool = False


class Versions(NamedTuple):
    """A closed range of versions; empty when `low > high`."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


NONE: Final = Versions(0, -1)
LATEST: Final = 32767
_ranges: dict[str, Versions] = {"none": NONE}


def parse_versions(text: str) -> Versions:
    """`"3"`, `"2-5"`, `"4+"` or `"none"`."""
    found = _ranges.get(text)
    if found is None:
        low, dash, high = text.rstrip("+").partition("-")
        top = LATEST if text.endswith("+") else int(high if dash else low)
        found = _ranges[text] = Versions(int(low), top)
    return found


class Unset:
    """The default of a default."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()

OWN_TAGS: Final = 10_000
"""Tagged fields from here on are ours; Kafka passes over tags that it does not know (KIP-482)."""


class Field:
    """One attribute of a declared structure."""

    __slots__ = ("_default", "_type", "annotation", "ignorable", "name", "null_in", "tag", "within")

    def __init__(
        self, within: str, default: Any, nullable: str | None, tag: int | None, ignorable: bool
    ) -> None:
        self.name = ""
        self.annotation: Any = None
        self.within = parse_versions(within)
        self.null_in = parse_versions(nullable) if nullable else None
        self.tag = tag
        self.ignorable = ignorable
        self._default = default
        self._type: Type | None = None

    @property
    def type(self) -> Type:
        if self._type is None:
            self._type = _read(self.annotation)
        return self._type

    @property
    def nullable(self) -> Versions:
        """The versions in which None can be sent."""
        return self.null_in or (self.within if self.type.optional else NONE)

    @property
    def shared_default(self) -> bool:
        """Whether every object may hold the same default, because it cannot change."""
        if self._default is not UNSET or self.type.kind is not None:
            return True
        struct = self.type.struct
        plain = struct is not None and all(f.type.kind is not None for f in struct.FIELDS)
        return plain and self.tag is not None

    def default(self) -> Any:
        """The value of an attribute nobody set: fresh unless it is shared."""
        if self._default is not UNSET:
            return self._default
        if self.type.kind is not None:
            return self.type.kind.zero
        if self.type.struct is not None:
            return _absent(self.type.struct) if self.shared_default else self.type.struct()
        return []


def field(
    versions: str = "0+",
    *,
    default: Any = UNSET,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """Declares an attribute that exists in `versions`.

    `nullable` narrows the versions in which None is allowed (all of them if the annotation
    allows None). `tag` makes it a tagged field. Setting an attribute that the version sent does
    not have is an error, unless the attribute is `ignorable`.
    """
    return Field(versions, default, nullable, tag, ignorable)


def _read(annotation: Any) -> Type:
    metadata = getattr(annotation, "__metadata__", None)
    if metadata is not None:
        optional = type(None) in getattr(annotation.__origin__, "__args__", ())
        return Type(metadata[0], None, None, optional)
    arguments = getattr(annotation, "__args__", None)
    if arguments is None:
        return Type(None, annotation, None)
    if type(None) in arguments:
        return _read(arguments[0])._replace(optional=True)
    return Type(None, None, _read(arguments[0]))


class _StructType(type):
    """Turns the declared attributes of a class into slots."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any
    ) -> "_StructType":
        fields = []
        for attribute, annotation in namespace.get("__annotations__", {}).items():
            declared = namespace.get(attribute)
            if isinstance(declared, Field):
                declared.name = attribute
                declared.annotation = annotation
                fields.append(declared)
                del namespace[attribute]
        namespace["__slots__"] = tuple([f.name for f in fields])
        if fields or "FIELDS" not in namespace:
            namespace["FIELDS"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace, **keywords)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=_StructType):
    """A structure inside a message."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    _values: ClassVar[Callable[[Any], Any]]

    def __init_subclass__(cls) -> None:
        names = [f.name for f in cls.FIELDS]
        cls._values = attrgetter(*names) if names else lambda _: ()

    def __init__(self, **values: Any) -> None:
        # Replaced by a generated constructor the first time an object of the class is made.
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.FIELDS is not other.FIELDS:
            return NotImplemented
        return bool(type(self)._values(self) == type(other)._values(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in self.FIELDS
            if getattr(self, f.name) != f.default()
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def first_version(cls: type[Struct], name: str) -> int:
    """The first version of a message in which a structure has the field of this name."""
    (found,) = (field.within.low for field in cls.FIELDS if field.name == name)
    return found


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    scope: dict[str, Any] = {"UNSET": UNSET}
    parameters, body = [], []
    for f in cls.FIELDS:
        scope[f"_{f.name}"] = f.default() if f.shared_default else f.default
        if f.shared_default:
            parameters.append(f"{f.name}=_{f.name}")
            body.append(f"self.{f.name} = {f.name}")
        else:
            make = "[]" if f.type.struct is None else f"_{f.name}()"
            parameters.append(f"{f.name}=UNSET")
            body.append(f"self.{f.name} = {make} if {f.name} is UNSET else {f.name}")
    star = ["*"] if parameters else []
    source = f"def __init__({', '.join(['self', *star, *parameters])}):\n "
    exec(source + "\n ".join(body or ["pass"]), scope)
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


_absences: dict[type[Struct], Struct] = {}


def _refuse(self: Struct, name: str, value: object) -> None:
    raise AttributeError(f"{type(self).__name__} is a shared default: assign a new one instead")


def _absent(cls: type[Struct]) -> Struct:
    """The one default of `cls`, which cannot be changed; a copy of it is itself."""
    if cls not in _absences:
        namespace = {
            "FIELDS": cls.FIELDS,
            "__setattr__": _refuse,
            "__reduce__": lambda _: (_absent, (cls,)),
        }
        frozen = cast(type[Struct], _StructType(cls.__name__, (cls,), namespace))
        absent = object.__new__(frozen)
        for f in cls.FIELDS:
            object.__setattr__(absent, f.name, f.default())
        _absences[cls] = absent
    return _absences[cls]


Decoder = Callable[[Buffer, int, int], Any]
"""Takes the bytes, where they start, and how many elements there may be."""
Encoder = Callable[[Any, bytearray, list[tuple[int, Hole]] | None, int], Any]


class _Decoders(dict[int, Decoder]):
    def __init__(self, cls: "type[Message]", in_slices: bool = False) -> None:
        self.cls = cls
        self.in_slices = in_slices

    def __missing__(self, version: int) -> Decoder:
        if version not in self.cls.VERSIONS:
            raise ParseError(f"{self.cls.__name__} has no version {version}")
        from scriba.wire import codec

        self[version] = decoder = codec.compile_decoder(self.cls, version, self.in_slices)
        return decoder


class _Encoders(dict[int, Encoder]):
    def __init__(self, cls: "type[Message]", in_slices: bool = False) -> None:
        self.cls = cls
        self.in_slices = in_slices

    def __missing__(self, version: int) -> Encoder:
        if version not in self.cls.VERSIONS:
            raise ValueError(f"{self.cls.__name__} has no version {version}")
        from scriba.wire import codec

        self[version] = encoder = codec.compile_encoder(self.cls, version, self.in_slices)
        return encoder


@dataclass_transform(kw_only_default=True)
class Message(Struct):
    """A request, a response or a stored record: a structure that can be encoded by itself."""

    KEY: ClassVar[int | None] = None
    VERSIONS: ClassVar[Versions] = NONE
    FLEXIBLE: ClassVar[Versions] = NONE
    _decoders: ClassVar[_Decoders]
    _slow_decoders: ClassVar[_Decoders]
    _encoders: ClassVar[_Encoders]
    _slow_encoders: ClassVar[_Encoders]
    _element_encoders: ClassVar[dict[tuple[str, int], Encoder]]

    def __init_subclass__(
        cls, key: int | None = None, versions: str = "0", flexible: str = "none"
    ) -> None:
        super().__init_subclass__()
        cls.KEY = key
        cls.VERSIONS = parse_versions(versions)
        cls.FLEXIBLE = parse_versions(flexible)
        cls._decoders = _Decoders(cls)
        cls._slow_decoders = _Decoders(cls, in_slices=True)
        cls._encoders = _Encoders(cls)
        cls._slow_encoders = _Encoders(cls, in_slices=True)
        cls._element_encoders = {}

    @classmethod
    def decode(cls, buf: Buffer, version: int) -> Self:
        """The message that fills `buf` exactly; ParseError for anything else."""
        message, end = cls.decode_from(buf, 0, version)
        if end != len(buf):
            raise ParseError(f"{cls.__name__} v{version}: {len(buf) - end} bytes left over")
        return message

    @classmethod
    def decode_from(
        cls, buf: Buffer, pos: int, version: int, limit: int = UNCOUNTED
    ) -> tuple[Self, int]:
        """The message that starts at `pos`, and where it ends; TooMany if its arrays have more
        elements than `limit`."""
        decoder = cls._decoders[version]
        try:
            message, end = decoder(buf, pos, limit)
        except (StructError, ValueError, IndexError) as e:
            raise ParseError(f"{cls.__name__} v{version}: {e}") from e
        # Decoders let slices run past the end, so that this one check covers them all.
        if end > len(buf):
            raise ParseError(f"{cls.__name__} v{version}: {end - len(buf)} bytes missing")
        return message, end

    @classmethod
    def decode_in_slices(
        cls, buf: Buffer, pos: int, version: int, limit: int
    ) -> Generator[None, None, tuple[Self, int]]:
        """As `decode_from`, in steps: one for each element of an array."""
        decoder = cls._slow_decoders[version]
        try:
            message, end = yield from decoder(buf, pos, limit)
        except (StructError, ValueError, IndexError) as e:
            raise ParseError(f"{cls.__name__} v{version}: {e}") from e
        if end > len(buf):
            raise ParseError(f"{cls.__name__} v{version}: {end - len(buf)} bytes missing")
        return message, end

    @classmethod
    def element_encoder(cls, name: str, version: int) -> Encoder:
        """Writes one element of the array `name`, which is one of structures, in slices."""
        known = cls._element_encoders.get((name, version))
        if known is None:
            from scriba.wire import codec

            (declared,) = (f for f in cls.FIELDS if f.name == name)
            element = declared.type.element
            assert element is not None
            assert element.struct is not None
            known = cls._element_encoders[name, version] = codec.compile_element_encoder(
                element.struct, version, version in cls.FLEXIBLE
            )
        return known

    def encode(self, version: int) -> bytes:
        out = bytearray()
        self.encode_into(out, version)
        return bytes(out)

    def encode_in_slices(
        self, out: bytearray, version: int, holes: list[tuple[int, Hole]] | None = None
    ) -> Generator[None, None, None]:
        """As `encode_into`, in steps: one for each element of an array."""
        encoder = self._slow_encoders[version]
        start = len(out)
        try:
            yield from encoder(self, out, holes, UNCOUNTED)
        except (StructError, ValueError, TypeError, AttributeError) as e:
            del out[start:]
            raise ValueError(f"{type(self).__name__} v{version}: {e}") from e

    def encode_into(
        self,
        out: bytearray,
        version: int,
        holes: list[tuple[int, Hole]] | None = None,
        limit: int = UNCOUNTED,
    ) -> None:
        """Appends to `out`; ValueError, and `out` as it was, when a value cannot be sent; TooMany,
        and what was written so far, where there are more elements than `limit`, or as many bytes
        as would take longer.

        Records that are a `Hole` are left out and noted in `holes` with their place in `out`.
        """
        encoder = self._encoders[version]
        start = len(out)
        try:
            encoder(self, out, holes, limit)
        except (StructError, ValueError, TypeError, AttributeError) as e:
            del out[start:]
            raise ValueError(f"{type(self).__name__} v{version}: {e}") from e
