"""Chooses who works on single records: the extension `_native`, or its twin in Python.

The extension is used where it was built, unless SCRIBA_NATIVE=0 is in the environment. Callers take
`native.kit` at the time of the call, so that a test can run them with either.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from scriba.native import columns, intake
from scriba.native import consumer_records as fetched
from scriba.native import fallback as pure
from scriba.native import lz4 as quick
from scriba.native import templates as forms
from scriba.native.arrow import Given
from scriba.native.consumer_records import Make
from scriba.records.header import Buffer
from scriba.records.record import Record

try:
    from scriba.native import _native
except ImportError:
    built = False
else:
    built = True


class Kit(NamedTuple):
    """The functions and classes of `pure` and the files beside it, from either twin."""

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
    append_rows: Callable[[pure.Builder, int, Given | None, Given, int, int, int], int]
    Builder: type[pure.Builder]
    OffsetMap: type[pure.OffsetMap]
    Columns: type[columns.Columns]
    RecordFields: type[fetched.RecordFields]
    Ticket: type[intake.Ticket]
    Channel: type[intake.Channel]
    Intake: type[intake.Intake]
    Form: type[forms.Form]
    CommitForm: type[forms.CommitForm]


PURE = Kit(
    False,
    pure.decode_records,
    pure.check_records,
    quick.check_lz4,
    pure.blame_records,
    pure.find_record,
    fetched.present_records,
    pure.murmur2,
    columns.place_keys,
    columns.append_rows,
    pure.Builder,
    pure.OffsetMap,
    columns.Columns,
    fetched.RecordFields,
    intake.Ticket,
    intake.Channel,
    intake.Intake,
    forms.Form,
    forms.CommitForm,
)
NATIVE = (
    Kit(
        True,
        _native.decode_records,
        _native.check_records,
        _native.check_lz4,
        _native.blame_records,
        _native.find_record,
        _native.present_records,
        _native.murmur2,
        _native.place_keys,
        _native.append_rows,
        _native.Builder,
        _native.OffsetMap,
        _native.Columns,
        _native.RecordFields,
        _native.Ticket,
        _native.Channel,
        _native.Intake,
        _native.Form,
        _native.CommitForm,
    )
    if built
    else None
)

kit = PURE if NATIVE is None or os.environ.get("SCRIBA_NATIVE") == "0" else NATIVE
