"""Packs structures of a fixed size, such as what is told of one partition where all went well."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scriba.wire.schema import Struct

Packer = Callable[..., bytes]
ElementsPacker = Callable[..., bytes]

_NOTHING: Final[Mapping[str, Any]] = {}


def packer(
    cls: type[Struct],
    version: int,
    flexible: bool,
    names: tuple[str, ...],
    empty: Mapping[str, Any] = _NOTHING,
    until: str = "",
) -> Packer:
    """Encodes a structure with these numbers, and the default in every other field.

    It takes all of them, in this order; one that the version does not have is left out. `empty`
    has None or something empty for fields where that is not the default. A structure may be
    encoded `until` one of its fields.
    """
    codes: list[str] = []
    values: list[str] = []
    _run(cls, version, flexible, names, codes, values, empty, until)
    return _compiled(codes, names, values, {})


def beginning_packer(
    before: bytes,
    cls: type[Struct],
    version: int,
    flexible: bool,
    names: tuple[str, ...],
    empty: Mapping[str, Any],
    until: str,
) -> Packer:
    """Packs the beginning of an answer: `before`, then such a structure up to a field.

    It takes the answer's length, the correlation id, and the numbers.
    """
    codes, values = ["ii", f"{len(before)}s"], ["length", "correlation_id", "B"]
    _run(cls, version, flexible, names, codes, values, empty, until)
    return _compiled(codes, ("length", "correlation_id", *names), values, {"B": before})


def answer_packer(answer: bytes, marks: Sequence[int]) -> Packer:
    """Packs answers that differ from this one by their correlation id and some numbers.

    It takes the correlation id and the numbers that stand for `marks`, in this order, which have
    eight bytes each. One that the answer does not have is left out.
    """
    names = [f"n{i}" for i in range(len(marks))]
    codes, values = ["4s", "i"], ["H", "correlation_id"]
    scope: dict[str, Any] = {"H": answer[:4]}
    at = 8
    for name, mark in zip(names, marks, strict=True):
        found = answer.find(mark.to_bytes(8, "big"), at)
        if found >= 0:
            scope[f"B{at}"] = answer[at:found]
            codes += (f"{found - at}s", "q")
            values += (f"B{at}", name)
            at = found + 8
    scope["A"] = answer[at:]
    codes.append(f"{len(answer) - at}s")
    values.append("A")
    return _compiled(codes, ("correlation_id", *names), values, scope)


def elements_packer(
    gaps: Sequence[bytes],
    cls: type[Struct],
    version: int,
    flexible: bool,
    names: tuple[str, ...],
) -> ElementsPacker:
    """Packs answers that tell of several elements, all in one call.

    It takes the correlation id and a list of numbers, those for `names` of one element after the
    other; what the version does not have of them is taken out of the list. `gaps` has what is
    before, between and after the elements; before the first come length and correlation id.
    """
    codes: list[str] = []
    fields: list[str] = []
    _run(cls, version, flexible, names, codes, fields)
    form = [">ii"]
    values: list[Any] = [0, 0]
    fixed = b""
    for gap in gaps[:-1]:
        fixed += gap
        for code, field in zip(codes, fields, strict=True):
            if field not in names:
                fixed += struct.pack(">" + code, int(field))
                continue
            form.append(f"{len(fixed)}s{code}")
            values += (fixed, 0)
            fixed = b""
    fixed += gaps[-1]
    whole = struct.Struct("".join(form) + f"{len(fixed)}s")
    values[0] = whole.size - 4
    values.append(fixed)
    absent = [at for at, name in enumerate(names) if name not in fields]
    lines = [f"del numbers[{at}::{len(names) - n}]" for n, at in enumerate(reversed(absent))]
    lines += ["V[1] = correlation_id", "V[3::2] = numbers", "return P(*V)"]
    scope: dict[str, Any] = {"P": whole.pack, "V": values}
    exec(f"def pack(correlation_id, numbers):\n {'; '.join(lines)}", scope)
    pack: ElementsPacker = scope["pack"]
    return pack


def layout(
    cls: type[Struct], version: int, flexible: bool
) -> tuple[tuple[str, ...], struct.Struct]:
    """The fields of a structure that are numbers one after the other, and how they are laid out.

    Where there may be tagged fields, a zero behind the last number says that there are none.
    """
    names: list[str] = []
    codes: list[str] = []
    for field in cls.FIELDS:
        if version in field.within and field.tag is None:
            kind = field.type.kind
            assert kind is not None, f"{cls.__name__}.{field.name}"
            assert kind.code, f"{cls.__name__}.{field.name} is no number"
            names.append(field.name)
            codes.append(kind.code)
    return tuple(names), struct.Struct(">" + "".join(codes) + "B" * flexible)


def _compiled(
    codes: Sequence[str], names: Sequence[str], values: Sequence[str], scope: dict[str, Any]
) -> Packer:
    scope["P"] = struct.Struct(">" + "".join(codes)).pack
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
    empty: Mapping[str, Any] = _NOTHING,
    until: str = "",
) -> None:
    for field in cls.FIELDS:
        if field.name == until:
            return
        if version not in field.within or field.tag is not None:
            continue
        kind, default = field.type.kind, empty.get(field.name, field.default())
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
