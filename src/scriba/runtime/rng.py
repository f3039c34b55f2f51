"""Randomness: ids, jitter, tokens. The real version draws from the operating system."""

import builtins
import os
import secrets
from collections.abc import Callable

_DASH_SEXTET = 62
"""The first six bits of a UUID whose base64url text starts with a dash."""


def shape_uuid(draw: Callable[[int], bytes]) -> bytes:
    """Sixteen drawn bytes as a version 4 UUID that Kafka could have drawn.

    The version bits keep it clear of the low ids that Kafka reserves for itself. A text form
    that starts with a dash is drawn again: command-line tools would take it for an option.
    """
    raw = bytearray(draw(16))
    while raw[0] >> 2 == _DASH_SEXTET:
        raw = bytearray(draw(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


class SystemRng:
    def bytes(self, n: int) -> builtins.bytes:
        return os.urandom(n)

    def below(self, n: int) -> int:
        return secrets.randbelow(n)

    def uuid(self) -> builtins.bytes:
        return shape_uuid(os.urandom)
