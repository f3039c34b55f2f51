"""One record, as clients, compaction and the broker's own topics see it."""

from collections.abc import Sequence
from typing import NamedTuple

from scriba.records.header import NO_TIMESTAMP

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A plain tuple underneath: `scriba.native._native` makes them without a call of Python."""

    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
