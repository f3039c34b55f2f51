"""Chooses who works on single records: the extension `scriba._native`, or its twin in Python.

The extension is used where it was built, unless SCRIBA_NATIVE=0 is in the environment. Callers take
`native.kit` at the time of the call, so that a test can run them with either.
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scriba.records import pure
from scriba.records.header import Buffer
from scriba.records.record import Record

try:
    from scriba import _native
except ImportError:
    built = False
else:
    built = True


class Kit(NamedTuple):
    """The functions of `pure`, from either twin."""

    native: bool
    decode_records: Callable[[Buffer, int, int, int, int | None], list[Record]]
    check_records: Callable[[Iterable[Buffer], int, int, bool, int, int], tuple[int, int, int]]
    murmur2: Callable[[Buffer], int]
    Builder: type[pure.Builder]
    OffsetMap: type[pure.OffsetMap]


PURE = Kit(
    False,
    pure.decode_records,
    pure.check_records,
    pure.murmur2,
    pure.Builder,
    pure.OffsetMap,
)
NATIVE = (
    Kit(
        True,
        _native.decode_records,
        _native.check_records,
        _native.murmur2,
        _native.Builder,
        _native.OffsetMap,
    )
    if built
    else None
)

kit = PURE if NATIVE is None or os.environ.get("SCRIBA_NATIVE") == "0" else NATIVE
