"""Unsigned varints, and the sections of tagged fields that are made of them.

Readers take a position and return where they stopped; past the end of the buffer they raise
IndexError, for an impossible number ValueError.
"""

from typing import Final

from scriba.wire.schema import Buffer

MAX_TAGS: Final = 64
"""Tagged fields of one section. Messages declare five at most; a section of millions of empty ones
is two bytes each to send, and a fifth of a microsecond each to step over."""


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A number of at most 31 bits, as all lengths and tags are, and where it ends."""
    value = buf[pos]
    if value < 0x80:
        return value, pos + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                break
            return value, pos + 1
    raise ValueError("varint out of range")


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: Buffer, pos: int) -> int:
    """Steps over a section of tagged fields. The end may lie past the buffer: check it."""
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields in one section, {MAX_TAGS} may be")
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos
