"""Packs structures of a fixed size, such as what is told of one partition where all went well."""

import struct
from collections.abc import Callable
from typing import Any

from scriba.wire.schema import Struct

Packer = Callable[..., bytes]


def packer(cls: type[Struct], version: int, flexible: bool, names: tuple[str, ...]) -> Packer:
    """Encodes a structure with these numbers, and the default in every other field.

    It takes all of them, in this order; one that the version does not have is left out.
    """
    codes: list[str] = []
    values: list[str] = []
    _run(cls, version, flexible, names, codes, values)
    scope: dict[str, Any] = {"P": struct.Struct(">" + "".join(codes)).pack}
    exec(f"def pack({', '.join(names)}):\n return P({', '.join(values)})", scope)
    pack: Packer = scope["pack"]
    return pack


def _run(
    cls: type[Struct],
    version: int,
    flexible: bool,
    names: tuple[str, ...],
    codes: list[str],
    values: list[str],
) -> None:
    for field in cls.FIELDS:
        if version not in field.within or field.tag is not None:
            continue
        kind, default = field.type.kind, field.default()
        if kind is not None and kind.code:
            codes.append(kind.code)
            values.append(field.name if field.name in names else repr(default))
        elif field.type.struct is not None:
            assert default is not None, f"{cls.__name__}.{field.name}"
            _run(field.type.struct, version, flexible, (), codes, values)
        else:
            # Nothing, or none of something: a length by itself.
            assert not default, f"{cls.__name__}.{field.name}"
            length = 0 if default is not None else -1
            short = kind is not None and kind.name == "string"
            codes.append("B" if flexible else "h" if short else "i")
            values.append(str(length + 1 if flexible else length))
    if flexible:
        codes.append("B")
        values.append("0")
