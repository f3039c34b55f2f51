"""Ends the views that a decoded message has of the buffer it was decoded from.

Record batches are the only values that are not copied. When the buffer is used for something else,
they must not be read any more: a released view raises where another would show strange bytes.
"""

from collections.abc import Callable
from typing import Any

from scriba.wire.schema import Message, Struct

Revoke = Callable[[Any], None]


def revoker(cls: type[Message]) -> Revoke | None:
    """What releases all record batches in a message of this class; None if it can have none."""
    lines: list[str] = []
    _walk(cls, "message", 1, lines)
    if not lines:
        return None
    scope: dict[str, Any] = {"view": memoryview}
    exec("\n".join(["def revoke(message):", *lines]), scope)
    revoke: Revoke = scope["revoke"]
    return revoke


def _walk(cls: type[Struct], name: str, depth: int, lines: list[str]) -> None:
    indent = " " * depth
    for field in cls.FIELDS:
        type_ = field.type
        place = f"{name}.{field.name}"
        if type_.kind is not None and type_.kind.name == "records":
            # What a handler has put in the place of the view is its own.
            lines.append(f"{indent}if type({place}) is view: {place}.release()")
        else:
            many = type_.element is not None
            struct = type_.element.struct if type_.element is not None else type_.struct
            item, inner = f"item{depth}", list[str]()
            if struct is not None:
                _walk(struct, item, depth + 1, inner)
            if inner:
                values = place if many else f"({place},)"
                lines += [f"{indent}if {place} is not None:", f"{indent} for {item} in {values}:"]
                lines += [f" {line}" for line in inner]
