# The same functions and classes as in `scriba.records.pure` and beside it, which say what they do.
from typing import Final

from scriba.records.columns import Columns as Columns
from scriba.records.columns import append_rows as append_rows
from scriba.records.columns import place_keys as place_keys
from scriba.records.fetched import RecordFields as RecordFields
from scriba.records.fetched import present_records as present_records
from scriba.records.forms import CommitForm as CommitForm
from scriba.records.forms import Form as Form
from scriba.records.intake import Channel as Channel
from scriba.records.intake import Intake as Intake
from scriba.records.intake import Ticket as Ticket
from scriba.records.pure import Builder as Builder
from scriba.records.pure import OffsetMap as OffsetMap
from scriba.records.pure import blame_records as blame_records
from scriba.records.pure import check_records as check_records
from scriba.records.pure import decode_records as decode_records
from scriba.records.pure import find_record as find_record
from scriba.records.pure import murmur2 as murmur2
from scriba.records.quick import check_lz4 as check_lz4

SOURCES: Final[str]
"""Fingerprint of the sources it was built from."""

def siphash(seed: bytes, data: bytes, /) -> bytes:
    """The hash of its OffsetMap."""
