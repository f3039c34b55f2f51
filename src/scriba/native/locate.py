"""Runs a plan over a frame, in Python: where the fields of a request lie, without decoding it.

A plan (`scriba.wire.locator` compiles it from the schema) begins with the key and the version of an
API, as every frame of that kind does. Steps follow, each a code and an argument of one byte:

- SKIP n: n bytes that nobody wants.
- NUMBER n: a signed number of n bytes; its value is told.
- PLACE n: a field of n bytes; where it begins is told.
- SPAN n: the same; where it begins and where it ends are told.
- STRING flags: ASCII behind its length. Where it is WANTED its begin and end are told, -1 and -1
  for null.
- BYTES flags: the same for any bytes.
- ARRAY flags: the next two bytes are the size of the steps for one element, which come next. How
  many elements there are is told.
- TAGS: a section of tagged fields, which must be empty.
- CONSTANT n: the number n, a signed byte, is told; the frame has nothing here.

A walk succeeds in the usual case alone. It gives up on whatever is special or broken: tagged
fields, text outside of ASCII, a null where none may be, a length beyond the end, too many elements.
Whoever asked decodes the request then, and learns what is wrong with it. Bytes behind the request
do not matter, as they do not when it is decoded.

Each plan becomes a function of its own: stepping through the codes would take longer than decoding.
"""

import struct
from collections.abc import Callable
from typing import Final

from scriba.records.header import Buffer

SKIP, NUMBER, PLACE, SPAN, STRING, BYTES, ARRAY, TAGS, CONSTANT = range(9)

COMPACT: Final = 1
"""The length is a varint that counts from one."""
NULLABLE: Final = 2
WANTED: Final = 4

Located = list[int]
_Walker = Callable[[Buffer, int], Located]

_HEAD: Final = 4
_MAX_STRING: Final = 0x7FFF
_MAX_LENGTH: Final = 0x7FFFFFFF
_walkers: dict[bytes, _Walker] = {}


class _GivenUp(Exception):
    pass


def locate(plan: bytes, frame: Buffer, most_elements: int, /) -> Located | None:
    """What the plan asks for, in its order; None where the request has to be decoded."""
    if frame[:_HEAD] != plan[:_HEAD]:
        return None
    walk = _walkers.get(plan)
    if walk is None:
        walk = _walkers[plan] = _compiled(plan)
    try:
        return walk(frame, most_elements)
    except (_GivenUp, IndexError, struct.error):
        return None


def _give_up() -> None:
    raise _GivenUp


def _varint(buf: Buffer, pos: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value > _MAX_LENGTH:
                break
            return value - 1, pos
    raise _GivenUp


class _Source:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def steps(self, plan: bytes) -> None:
        at = 0
        while at < len(plan):
            code, argument = plan[at], plan[at + 1]
            at += 2
            if code == ARRAY:
                size = int.from_bytes(plan[at : at + 2], "big")
                self._array(argument, plan[at + 2 : at + 2 + size])
                at += 2 + size
            elif code == TAGS:
                self.line("if buf[pos]: give_up()")
                self.line("pos += 1")
            elif code == CONSTANT:
                self.line(f"told.append({argument - 256 if argument > 127 else argument})")
            elif code in (STRING, BYTES):
                self._content(code, argument)
            else:
                self._fixed(code, argument)

    def _length(self, flags: int, width: int) -> None:
        if flags & COMPACT:
            self.line("n = buf[pos] - 1; pos += 1")
            self.line("if n > 126: n, pos = varint(buf, pos - 1)")
        else:
            self.line(f"n, = int{8 * width}(buf, pos); pos += {width}")

    def _content(self, code: int, flags: int) -> None:
        self._length(flags, 2 if code == STRING else 4)
        self.line("if n < 0:")
        told = "told += (-1, -1)" if flags & WANTED else "pass"
        self.line(f" {told}" if flags & NULLABLE else " give_up()")
        self.line("else:")
        self.line(" end = pos + n")
        self.line(" if end > size: give_up()")
        if code == STRING:
            self.line(f" if n > {_MAX_STRING} or not bytes(buf[pos:end]).isascii(): give_up()")
        if flags & WANTED:
            self.line(" told += (pos, end)")
        self.line(" pos = end")

    def _fixed(self, code: int, size: int) -> None:
        if code == NUMBER:
            self.line(f"told.append(number(buf[pos:pos + {size}], 'big', signed=True))")
        elif code == PLACE:
            self.line("told.append(pos)")
        elif code == SPAN:
            self.line(f"told += (pos, pos + {size})")
        self.line(f"pos += {size}")
        self.line("if pos > size: give_up()")

    def _array(self, flags: int, steps: bytes) -> None:
        self._length(flags, 4)
        self.line("if n < 0 or n > size - pos or n > left: give_up()")
        self.line("left -= n")
        self.line("told.append(n)")
        self.line("for _ in range(n):")
        self.depth += 1
        self.steps(steps)
        self.depth -= 1


def _compiled(plan: bytes) -> _Walker:
    source = _Source()
    source.line("size = len(buf)")
    source.line("told = []")
    source.line(f"pos = {_HEAD}")
    source.steps(plan[_HEAD:])
    source.line("return told")
    scope = {
        "give_up": _give_up,
        "varint": _varint,
        "int16": struct.Struct(">h").unpack_from,
        "int32": struct.Struct(">i").unpack_from,
        "number": int.from_bytes,
    }
    exec("\n".join(("def walk(buf, left):", *source.lines)), scope)
    walker: _Walker = scope["walk"]  # type: ignore[assignment]
    return walker
