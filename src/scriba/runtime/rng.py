"""Randomness: ids, jitter, tokens.

The real version draws from the operating system; the seeded one, for simulation, gives the same
draws for the same seed on every machine and Python, whatever the hash seed.
"""

import builtins
import hashlib
import os
import random
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


class SeededRng:
    """Draws that follow from a seed. Not for secrets."""

    def __init__(self, seed: int | str) -> None:
        self._seed = f"{seed}"
        digest = hashlib.blake2b(self._seed.encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest))

    def fork(self, name: str) -> "SeededRng":
        """An independent stream: what one part draws does not shift what another gets."""
        return SeededRng(f"{self._seed}/{name}")

    def bytes(self, n: int) -> builtins.bytes:
        return self._random.randbytes(n)

    def below(self, n: int) -> int:
        return self._random.randrange(n)

    def uuid(self) -> builtins.bytes:
        return shape_uuid(self._random.randbytes)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def chance(self, probability: float) -> bool:
        """True this often; certain outcomes draw nothing."""
        return probability > 0 and self._random.random() < probability
