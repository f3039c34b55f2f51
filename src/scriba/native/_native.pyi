# The same functions and classes as in `fallback` and the files beside it, which say what they do.
from typing import Final

from scriba.native.columns import Columns as Columns
from scriba.native.columns import append_rows as append_rows
from scriba.native.columns import place_keys as place_keys
from scriba.native.consumer_records import RecordFields as RecordFields
from scriba.native.consumer_records import present_records as present_records
from scriba.native.fallback import Builder as Builder
from scriba.native.fallback import OffsetMap as OffsetMap
from scriba.native.fallback import blame_records as blame_records
from scriba.native.fallback import check_records as check_records
from scriba.native.fallback import decode_records as decode_records
from scriba.native.fallback import find_record as find_record
from scriba.native.fallback import murmur2 as murmur2
from scriba.native.intake import Channel as Channel
from scriba.native.intake import Intake as Intake
from scriba.native.intake import Ticket as Ticket
from scriba.native.lz4 import check_lz4 as check_lz4
from scriba.native.templates import CommitForm as CommitForm
from scriba.native.templates import Form as Form

SOURCES: Final[str]
"""Fingerprint of the sources it was built from."""

def siphash(seed: bytes, data: bytes, /) -> bytes:
    """The hash of its OffsetMap."""
