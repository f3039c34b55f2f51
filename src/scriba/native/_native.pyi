# What the extension has beyond `implementation.Implementation`, whose fields are the rest of it.
from typing import Final

SOURCES: Final[str]
"""Fingerprint of the sources it was built from."""

def siphash(seed: bytes, data: bytes, /) -> bytes:
    """The hash of its OffsetMap."""

def crc32c_of(data: bytes, /) -> tuple[int, bool]:
    """The checksum, and whether the processor has instructions for it."""
