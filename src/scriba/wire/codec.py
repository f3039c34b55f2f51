"""The codec compiler: turns a declared message and a version into straight-line Python.

Both directions collect consecutive fixed-width fields, together with the length or count that
ends such a run, into one `struct.Struct`; nested structures and arrays are unrolled into loops of
the same function. In a flexible version lengths are varints: the run takes the first byte, which
is nearly always all there is, and the rare long one is read again by `uvarint`. Sections of
tagged fields, nearly always empty, are written by functions of their own.

What a message costs is counted while it is read or written: elements of all its arrays, at whatever
depth, and tagged fields. More of them than the caller allows raise `TooMany`, before they are made.
Whoever has to allow many asks for the variant that works in slices, a generator that yields after
each element.

The source of each function is registered with `linecache`, so a traceback shows it.
"""

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Layout
from struct import pack, unpack_from
from typing import Any, Final

from scriba.wire.packed import Packed
from scriba.wire.schema import (
    Buffer,
    Decoder,
    Encoder,
    Field,
    Message,
    Struct,
    TooMany,
    Type,
)
from scriba.wire.varint import MAX_TAGS, read_uvarint, skip_tags, write_uvarint

MAX_STRING: Final = 0x7FFF


def _string_length(buf: Buffer, pos: int) -> tuple[int, int]:
    length, pos = read_uvarint(buf, pos)
    if length > MAX_STRING + 1:
        raise ValueError("string too long")
    return length, pos


def _write_string_length(length: int) -> bytes:
    if length > MAX_STRING + 1:
        raise ValueError("string too long")
    return write_uvarint(length)


def _fail(text: str) -> None:
    raise ValueError(text)


LONG: Final = 128
"""Bytes of a string, or of other bytes, that count as an element more."""


def _too_many(name: str) -> None:
    raise TooMany(f"{name}: more elements than are taken")


def _count_tags(count: int, left: int) -> int:
    """What is left once a section of that many tagged fields is paid for."""
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields in one section, {MAX_TAGS} may be")
    if count > left:
        _too_many("tagged fields")
    return left - count


class _Source:
    """Lines of one generated module, and the objects they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.scope: dict[str, Any] = {}
        self.names: dict[tuple[str, Any], str] = {}
        self.serial = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    def fresh(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def layout(self, prefix: str, codes: str, method: str) -> str:
        """The name of a method of the struct with these codes."""
        name = self.names.get((prefix, codes))
        if name is None:
            name = self.names[prefix, codes] = f"{prefix}_{codes.replace('?', 'z')}"
            self.scope[name] = getattr(Layout(">" + codes), method)
        return name

    def constant(self, prefix: str, value: object) -> str:
        name = self.names.get((prefix, id(value)))
        if name is None:
            name = self.names[prefix, id(value)] = self.fresh(prefix)
            self.scope[name] = value
        return name

    def literal(self, f: Field) -> str:
        """An expression for the field's default."""
        value = f.default()
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, list):
            return "[]"
        if f.shared_default:
            return self.constant("ABSENT", value)
        return f"{self.constant('C', f.type.struct)}()"

    def compile(self, name: str, filename: str) -> Callable[..., Any]:
        text = "\n".join(self.lines) + "\n"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.scope)
        function: Callable[..., Any] = self.scope[name]
        return function


def _width(codes: str) -> int:
    return Layout(">" + codes).size


class _DecoderSource(_Source):
    def __init__(self, version: int, flexible: bool, in_slices: bool) -> None:
        super().__init__()
        self.in_slices = in_slices
        self.version = version
        self.flexible = flexible
        self.run: list[tuple[str, str]] = []
        self.scope.update(
            new=object.__new__,
            uvarint=read_uvarint,
            skip_tags=skip_tags,
            string_length=_string_length,
            count_tags=_count_tags,
            fail=_fail,
            too_many=_too_many,
            unpack_from=unpack_from,
            memoryview=memoryview,
        )

    def flush(self) -> None:
        """Reads the pending run."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        if codes == "B":
            self.line(f"{self.run[0][1]} = buf[pos]; pos += 1")
        else:
            targets = ", ".join(target for _, target in self.run)
            comma = "," if len(self.run) == 1 else ""
            read = self.layout("U", codes, "unpack_from")
            self.line(f"{targets}{comma} = {read}(buf, pos); pos += {_width(codes)}")
        self.run.clear()

    def length(self, code: str, name: str, nullable: bool, long: str) -> tuple[str, str]:
        """Reads a length; returns its variable and how many to subtract from it."""
        n = self.fresh("n")
        if self.flexible:
            self.run.append(("B", n))
            self.flush()
            self.line(f"if {n} > 127: {n}, pos = {long}(buf, pos - 1)")
            if not nullable:
                self.line(f"if not {n}: fail('{name} is null')")
            return n, " - 1"
        self.run.append((code, n))
        self.flush()
        if not nullable:
            self.line(f"if {n} < 0: fail('{name} is null')")
        return n, ""

    def value(
        self, type_: Type, target: str, name: str, nullable: bool, tagged: bool = False
    ) -> None:
        """Reads one value of any type into `target`, maybe leaving it pending in the run."""
        if type_.element is not None:
            self.array(type_.element, target, name, nullable)
        elif type_.struct is not None:
            self.struct_value(type_.struct, target, nullable, tagged)
        elif type_.kind is not None and type_.kind.code:
            self.run.append((type_.kind.code, target))
        elif type_.kind is not None:
            self.bytes_value(type_.kind.name, target, name, nullable)

    def bytes_value(self, kind: str, target: str, name: str, nullable: bool) -> None:
        string = kind == "string"
        n, less = self.length(
            "h" if string else "i", name, nullable, "string_length" if string else "uvarint"
        )
        read = {
            "string": "str(buf[pos:end], 'utf-8')",
            "bytes": "bytes(buf[pos:end])",
            "records": "memoryview(buf)[pos:end]",
        }[kind]
        take = f"end = pos + {n}{less}; {target} = {read}; pos = end"
        if nullable:
            null = f"not {n}" if self.flexible else f"{n} < 0"
            self.line(f"if {null}: {target} = None")
            self.line(f"else: {take}")
        else:
            self.line(take)

    def array(self, element: Type, target: str, name: str, nullable: bool) -> None:
        n, less = self.length("i", name, nullable, "uvarint")
        if nullable:
            with self.block(f"if not {n}:" if self.flexible else f"if {n} < 0:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self.elements(element, target, name, n, less)
        else:
            self.elements(element, target, name, n, less)

    def elements(self, element: Type, target: str, name: str, n: str, less: str) -> None:
        if less:
            self.line(f"{n} -= 1")
        self.line(f"if {n} > size - pos: fail('{name} counts more than there is')")
        self.line(f"left -= {n}")
        self.line(f"if left < 0: too_many('{name}')")
        kind = element.kind
        if kind is not None and kind.name == "uuid" and not self.in_slices:
            self.line(f"end = pos + 16 * {n}")
            self.line(f"if end > size: fail('{name} counts more than there is')")
            self.line(f"{target} = [bytes(buf[p : p + 16]) for p in range(pos, end, 16)]")
            self.line("pos = end")
        elif kind is not None and kind.code and kind.name != "uuid":
            self.line(f"{target} = [*unpack_from(f'>{{{n}}}{kind.code}', buf, pos)]")
            self.line(f"pos += {n}" if kind.size == 1 else f"pos += {kind.size} * {n}")
        else:
            items = self.fresh("a")
            self.line(f"{items} = {target} = []")
            with self.block(f"for _ in range({n}):"):
                if element.struct is not None:
                    item = self.struct(element.struct)
                    self.flush()
                else:
                    item = self.fresh("v")
                    self.value(element, item, name, False)
                    self.flush()
                self.line(f"{items}.append({item})")
                if self.in_slices:
                    self.line("yield")

    def struct_value(self, cls: type[Struct], target: str, nullable: bool, tagged: bool) -> None:
        if not nullable:
            self.line(f"{target} = {self.struct(cls)}")
            return
        # A byte before the structure says whether there is one; null is -1, but 0 under a tag.
        mark = self.fresh("n")
        self.run.append(("b", mark))
        self.flush()
        self.line(f"if {mark} {'<=' if tagged else '<'} 0: {target} = None")
        with self.block("else:"):
            item = self.struct(cls)
            self.flush()
            self.line(f"{target} = {item}")

    def struct(self, cls: type[Struct]) -> str:
        """Reads a structure into a new variable, whose name is returned."""
        item = self.fresh("o")
        self.line(f"{item} = new({self.constant('C', cls)})")
        present = [f for f in cls.FIELDS if self.version in f.within]
        tagged = [f for f in present if f.tag is not None]
        for f in cls.FIELDS:
            if self.version not in f.within or f.tag is not None:
                self.line(f"{item}.{f.name} = {self.literal(f)}")
        for f in present:
            if f.tag is None:
                self.value(f.type, f"{item}.{f.name}", f.name, self.version in f.nullable)
        if self.flexible:
            self.tags(tagged, item)
        return item

    def tags(self, fields: list[Field], item: str) -> None:
        count, tag, end = self.fresh("n"), self.fresh("t"), self.fresh("e")
        self.run.append(("B", count))
        self.flush()
        if not fields:
            with self.block(f"if {count}:"):
                self.line(f"if {count} > {MAX_TAGS}: {count}, _ = uvarint(buf, pos - 1)")
                self.line(f"left = count_tags({count}, left)")
                self.line("pos = skip_tags(buf, pos - 1)")
            return
        with self.block(f"if {count}:"):
            self.line(f"if {count} > 127: {count}, pos = uvarint(buf, pos - 1)")
            self.line(f"left = count_tags({count}, left)")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, pos = uvarint(buf, pos)")
                self.line(f"{end}, pos = uvarint(buf, pos)")
                self.line(f"{end} += pos")
                for f in fields:
                    with self.block(f"if {tag} == {f.tag}:"):
                        nullable = self.version in f.nullable
                        self.value(f.type, f"{item}.{f.name}", f.name, nullable, tagged=True)
                        self.flush()
                        self.line(f"if pos != {end}: fail('{f.name} has another size')")
                self.line(f"pos = {end}")


def compile_decoder(cls: type[Message], version: int, in_slices: bool = False) -> Decoder:
    """One that works `in_slices` is a generator, which yields after each element of an array."""
    source = _DecoderSource(version, version in cls.FLEXIBLE, in_slices)
    with source.block("def decode(buf, pos, left):"):
        source.line("size = len(buf)")
        item = source.struct(cls)
        source.flush()
        if in_slices:
            source.line("yield")
        source.line(f"return {item}, pos")
    return source.compile("decode", f"<scriba {cls.__name__} v{version} decoder>")


class _EncoderSource(_Source):
    def __init__(self, version: int, flexible: bool, in_slices: bool) -> None:
        super().__init__()
        self.in_slices = in_slices
        self.in_tags = False
        self.version = version
        self.flexible = flexible
        self.run: list[tuple[str, str]] = []
        self.later: list[tuple[str, list[Field]]] = []
        self.scope.update(
            uvarint=write_uvarint,
            string_length=_write_string_length,
            fail=_fail,
            too_many=_too_many,
            Packed=Packed,
            pack=pack,
            BUFFERS=(bytes, bytearray, memoryview),
        )

    def packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        values = ", ".join(value for _, value in run if value)
        return f"{self.layout('P', codes, 'pack')}({values})"

    def flush(self) -> None:
        """Writes the pending run."""
        if self.run:
            zeros = all(code == "x" for code, _ in self.run)
            what = repr(bytes(len(self.run))) if zeros else self.packed(self.run)
            self.line(f"out += {what}")
            self.run.clear()

    def length(self, code: str, n: str, long: str, often_long: bool = False) -> None:
        """Writes the pending run and the length in variable `n` (one more in a varint)."""
        if not self.flexible:
            self.run.append((code, n))
            self.flush()
            return
        short = f"out += {self.packed([*self.run, ('B', n)])}" if self.run else f"out.append({n})"
        self.line(f"if {n} < 128: {short}")
        if often_long:
            low, middle = ("B", f"{n} & 127 | 128"), ("B", f"{n} >> 7 & 127 | 128")
            two = self.packed([*self.run, low, ("B", f"{n} >> 7")])
            three = self.packed([*self.run, low, middle, ("B", f"{n} >> 14")])
            self.line(f"elif {n} < {1 << 14}: out += {two}")
            self.line(f"elif {n} < {1 << 21}: out += {three}")
        rest = f"{self.packed(self.run)} + " if self.run else ""
        self.line(f"else: out += {rest}{long}({n})")
        self.run.clear()

    def value(self, type_: Type, source: str, nullable: bool, tagged: bool = False) -> None:
        if type_.element is not None:
            self.array(type_.element, source, nullable)
        elif type_.struct is not None:
            self.struct_value(type_.struct, source, nullable, tagged)
        elif type_.kind is not None and type_.kind.code:
            if type_.kind.name == "uuid":
                self.line(f"if len({source}) != 16: fail('a UUID has 16 bytes')")
            self.run.append((type_.kind.code, source))
        elif type_.kind is not None and type_.kind.name == "records":
            self.records(source, nullable)
        elif type_.kind is not None:
            self.bytes_value(type_.kind.name == "string", source, nullable)

    def bytes_value(self, string: bool, source: str, nullable: bool) -> None:
        v, n = self.fresh("v"), self.fresh("n")
        more = " + 1" if self.flexible else ""
        self.line(f"{v} = {source}")
        prepare = f"{v} = {v}.encode(); " if string else ""
        if nullable:
            self.line(f"if {v} is None: {v} = b''; {n} = {0 if self.flexible else -1}")
            self.line(f"else: {prepare}{n} = len({v}){more}")
        else:
            self.line(f"{prepare}{n} = len({v}){more}")
        self.length("h" if string else "i", n, "string_length" if string else "uvarint")
        self.line(f"out += {v}")
        if not self.in_slices and not self.in_tags:
            with self.block(f"if {n} >= {LONG}:"):
                self.line(f"left -= {n} // {LONG}")
                self.line(f"if left < 0: too_many({source!r})")

    def records(self, source: str, nullable: bool) -> None:
        v, n, hole = self.fresh("v"), self.fresh("n"), self.fresh("h")
        more = " + 1" if self.flexible else ""
        self.line(f"{v} = {source}")
        if nullable:
            self.line(f"if {v} is None: {v} = b''; {n} = {0 if self.flexible else -1}")
        self.line(f"{'elif' if nullable else 'if'} isinstance({v}, BUFFERS): {n} = len({v}){more}")
        self.line(f"else: {hole} = {v}; {v} = None; {n} = {hole}.size{more}")
        self.length("i", n, "uvarint", often_long=True)
        self.line(f"if {v} is None: holes.append((len(out), {hole}))")
        self.line(f"else: out += {v}")

    def array(self, element: Type, source: str, nullable: bool) -> None:
        v, n = self.fresh("v"), self.fresh("n")
        more = " + 1" if self.flexible else ""
        self.line(f"{v} = {source}")
        if nullable:
            self.line(f"if {v} is None: {v} = (); {n} = {0 if self.flexible else -1}")
            self.line(f"else: {n} = len({v}){more}")
        else:
            self.line(f"{n} = len({v}){more}")
        if not self.in_slices and not self.in_tags:
            self.line(f"left -= {n}")
            self.line(f"if left < 0: too_many({source!r})")
        self.length("i", n, "uvarint")
        kind = element.kind
        if kind is not None and kind.code and kind.name != "uuid":
            self.line(f"if {v}: out += pack(f'>{{len({v})}}{kind.code}', *{v})")
            return
        item = self.fresh("o")
        sliced = self.in_slices and not self.in_tags
        if sliced and element.struct is not None:
            with self.block(f"if type({v}) is Packed:"):
                with self.block(f"for {item} in {v}.steps():"):
                    self.line(f"out += {item}")
                    self.line("yield")
                self.line(f"{v} = ()")
        with self.block(f"for {item} in {v}:"):
            if element.struct is not None:
                self.struct(element.struct, item)
            else:
                self.value(element, item, False)
            self.flush()
            if sliced:
                self.line("yield")

    def struct_value(self, cls: type[Struct], source: str, nullable: bool, tagged: bool) -> None:
        item = self.fresh("o")
        self.line(f"{item} = {source}")
        if not nullable:
            self.struct(cls, item)
            return
        pending = list(self.run)
        with self.block(f"if {item} is None:"):
            self.run.append(("b", "0" if tagged else "-1"))
            self.flush()
        self.run = [*pending, ("b", "1")]
        with self.block("else:"):
            self.struct(cls, item)
            self.flush()

    def struct(self, cls: type[Struct], item: str) -> None:
        """Writes the structure in variable `item`."""
        for f in cls.FIELDS:
            if self.version not in f.within and not f.ignorable:
                text = f"{cls.__name__}.{f.name} is not in this version"
                self.line(f"if {self.differs(f, item)}: fail({text!r})")
        present = [f for f in cls.FIELDS if self.version in f.within]
        for f in present:
            if f.tag is None:
                self.value(f.type, f"{item}.{f.name}", self.version in f.nullable)
        if self.flexible:
            self.tags([f for f in present if f.tag is not None], item)

    def differs(self, f: Field, item: str) -> str:
        """A test for a value that is not the default."""
        value, default = f"{item}.{f.name}", self.literal(f)
        if default == "None":
            return f"{value} is not None"
        if default.startswith("ABSENT"):
            return f"{value} is not {default} and {value} != {default}"
        return f"{value} != {default}"

    def tags(self, fields: list[Field], item: str) -> None:
        if not fields:
            self.run.append(("x", ""))
            return
        write = self.fresh("tags")
        self.later.append((write, sorted(fields, key=lambda f: f.tag or 0)))
        test = " or ".join(f"({self.differs(f, item)})" for f in fields)
        pending = list(self.run)
        with self.block(f"if {test}:"):
            self.flush()
            self.line(f"{write}({item}, out)")
        self.run = [*pending, ("x", "")]
        with self.block("else:"):
            self.flush()

    def tag_function(self, name: str, fields: list[Field]) -> None:
        self.in_tags = True
        with self.block(f"def {name}(o, whole):"):
            self.line("count = 0; section = bytearray()")
            for f in fields:
                with self.block(f"if {self.differs(f, 'o')}:"):
                    self.line("out = bytearray()")
                    self.value(f.type, f"o.{f.name}", self.version in f.nullable, tagged=True)
                    self.flush()
                    self.line(f"section += {write_uvarint(f.tag or 0)!r}; count += 1")
                    self.line("section += uvarint(len(out)); section += out")
            self.line("whole += uvarint(count); whole += section")


def compile_encoder(cls: type[Message], version: int, in_slices: bool = False) -> Encoder:
    """One that works `in_slices` is a generator, which yields after each element of an array."""
    source = _EncoderSource(version, version in cls.FLEXIBLE, in_slices)
    with source.block("def encode(o, out, holes, left):"):
        source.struct(cls, "o")
        source.flush()
        if in_slices:
            source.line("yield")
    for name, fields in source.later:
        source.tag_function(name, fields)
    return source.compile("encode", f"<scriba {cls.__name__} v{version} encoder>")


def compile_element_encoder(cls: type[Struct], version: int, flexible: bool) -> Encoder:
    """Writes one element of an array of a message that is `flexible` in this version, in slices:
    it yields after each element of an array in it, and at its end."""
    source = _EncoderSource(version, flexible, in_slices=True)
    with source.block("def encode(o, out, holes, left):"):
        source.struct(cls, "o")
        source.flush()
        source.line("yield")
    for name, fields in source.later:
        source.tag_function(name, fields)
    return source.compile("encode", f"<scriba {cls.__name__} v{version} element encoder>")
