"""Numbers as records hold them: zigzag varints, and sums that wrap as Java's `long` does."""

from typing import Final

from scriba.errors import ParseError
from scriba.records.header import Buffer

_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1
_MASK64: Final = 2**64 - 1


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zigzag varint of 32 bits, and where it ends. IndexError past the end of `buf`."""
    byte = buf[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    value = byte & 0x7F
    for at, shift in ((pos + 1, 7), (pos + 2, 14), (pos + 3, 21), (pos + 4, 28)):
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value >> 1) ^ -(value & 1), at + 1
    raise ParseError("a number in it is cut short or too long")


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """The same with 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _MASK64
            return (value >> 1) ^ -(value & 1), pos
    raise ParseError("a number in it is cut short or too long")


def write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def wrapped(value: int) -> int:
    if _MIN_INT64 <= value <= _MAX_INT64:
        return value
    return ((value - _MIN_INT64) & _MASK64) + _MIN_INT64
