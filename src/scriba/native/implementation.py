"""Chooses the implementation of work on single records: the extension, or the fallback in Python.

The extension is used where it was built, unless SCRIBA_NATIVE=0 is in the environment. Callers take
`implementation.chosen` at the time of the call, so that a test can run them with either.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from scriba.native import (
    columns,
    commit_bytes,
    consumer_records,
    fallback,
    headers,
    intake,
    judge,
    locate,
)
from scriba.native.arrow import Given
from scriba.native.consumer_records import Make
from scriba.records.header import BatchHeader, Buffer
from scriba.records.record import Record


class Implementation(NamedTuple):
    """The functions and classes of `fallback` and the files beside it; the extension has all of
    them under the same names."""

    native: bool
    decode_records: Callable[[Buffer, int, int, int, int | None], list[Record]]
    check_records: Callable[[Iterable[Buffer], int, int, bool, int, int], tuple[int, int, int]]
    check_lz4: Callable[[Buffer, int, int, int, bool, int, int], tuple[int, int, int] | None]
    blame_records: Callable[
        [Iterable[Buffer], int, int, bool, int, int, int], tuple[int, list[tuple[int, int | None]]]
    ]
    find_record: Callable[[Iterable[Buffer], int, int, int, int, int, int], tuple[int, int] | None]
    present_records: Callable[
        [Buffer, int, int, int, int | None, int, Make[Any], str, int, int, int], list[Any]
    ]
    murmur2: Callable[[Buffer], int]
    place_keys: Callable[[Given, int, int, int, int], bytes]
    append_rows: Callable[[fallback.Builder, int, Given | None, Given, int, int, int], int]
    Builder: type[fallback.Builder]
    OffsetMap: type[fallback.OffsetMap]
    Columns: type[columns.Columns]
    RecordFields: type[consumer_records.RecordFields]
    Ticket: type[intake.Ticket]
    Channel: type[intake.Channel]
    Intake: type[intake.Intake]
    locate: Callable[[bytes, Buffer, int], locate.Located | None]
    judge_produce: Callable[
        [bytes, memoryview, int, dict[bytes, Any], int, int],
        judge.Found | Literal[False] | None,
    ]
    checked_batches: Callable[[Buffer, int], list[tuple[int, BatchHeader]]]
    walk_headers: Callable[[int, int, int, int, int, int, int, int, int, int, bool], int | None]
    CommitBytes: type[commit_bytes.CommitBytes]


FALLBACK = Implementation(
    False,
    fallback.decode_records,
    fallback.check_records,
    fallback.check_lz4,
    fallback.blame_records,
    fallback.find_record,
    consumer_records.present_records,
    fallback.murmur2,
    columns.place_keys,
    columns.append_rows,
    fallback.Builder,
    fallback.OffsetMap,
    columns.Columns,
    consumer_records.RecordFields,
    intake.Ticket,
    intake.Channel,
    intake.Intake,
    locate.locate,
    judge.judge_produce,
    judge.checked_batches,
    headers.walk_headers,
    commit_bytes.CommitBytes,
)


class Unused(NamedTuple):
    """Why the extension is not used, and what to do about it."""

    why: str
    fix: str


def _extension() -> Implementation | Unused:
    try:
        from scriba.native import _native
    except ImportError:
        return Unused(
            "was not built",
            "install a C compiler and Python's headers, then scriba again as before, with "
            "pip install --force-reinstall --no-deps",
        )
    try:
        return Implementation(
            True, *(getattr(_native, name) for name in Implementation._fields[1:])
        )
    except AttributeError as missing:
        unused = Unused(
            f"is older than this code ({missing})",
            "build it again: pip install -e . --no-deps --no-build-isolation",
        )
        warnings.warn(
            f"the extension {unused.why}, so records are handled in Python, several times slower; "
            + unused.fix,
            RuntimeWarning,
            stacklevel=2,
        )
        return unused


_found = _extension()

NATIVE = _found if isinstance(_found, Implementation) else None

UNUSED = _found if isinstance(_found, Unused) else None
"""Why the fallback is chosen; None where the extension is."""

chosen = FALLBACK if NATIVE is None else NATIVE
"""What callers use."""

if NATIVE is not None and os.environ.get("SCRIBA_NATIVE") == "0":
    UNUSED = Unused("is switched off by SCRIBA_NATIVE=0", "unset SCRIBA_NATIVE")
    chosen = FALLBACK
