"""The transaction index of a segment: which transactions aborted with a marker in it.

Kafka's format: entries of 34 bytes in the order of the markers. The file exists only if there is
one. Entries are few, so they stay in memory.
"""

import struct
from bisect import bisect_left
from typing import Final

from scriba.storage.producers.state import AbortedTxn

ENTRY: Final = struct.Struct(">hqqqq")


class AbortedTxns:
    __slots__ = ("_entries",)

    def __init__(self, data: bytes = b"") -> None:
        self._entries = bytearray(data[: len(data) // ENTRY.size * ENTRY.size])

    def __len__(self) -> int:
        return len(self._entries) // ENTRY.size

    def __getitem__(self, entry: int) -> AbortedTxn:
        return AbortedTxn(*ENTRY.unpack_from(self._entries, entry * ENTRY.size)[1:])

    def encode(self) -> bytes:
        return bytes(self._entries)

    def append(self, txn: AbortedTxn) -> bytes:
        """Returns the entry as the file has it."""
        entry = ENTRY.pack(0, *txn)
        self._entries += entry
        return entry

    def sound(self, base_offset: int) -> bool:
        """Whether these can be the entries of a segment that begins at `base_offset`."""
        last = base_offset - 1
        for version, _, first, marker, stable in ENTRY.iter_unpack(self._entries):
            if version != 0 or marker <= last or first > marker or stable < 0:
                return False
            last = marker
        return True

    def collect(self, start_offset: int, end_offset: int, into: list[AbortedTxn]) -> bool:
        """Adds those that a reader of [start, end) must skip; whether later segments can have none.

        An entry whose stable offset reaches the end shows that everything before is decided.
        """
        entries = range(len(self))
        for entry in entries[bisect_left(entries, start_offset, key=self._marker) :]:
            txn = self[entry]
            if txn.first_offset < end_offset:
                into.append(txn)
            if txn.last_stable_offset >= end_offset:
                return True
        return False

    def _marker(self, entry: int) -> int:
        return self[entry].last_offset

    def truncate(self, offset: int) -> bool:
        """Forgets markers at or after `offset`; whether there were any."""
        keep = bisect_left(range(len(self)), offset, key=self._marker)
        if keep == len(self):
            return False
        del self._entries[keep * ENTRY.size :]
        return True
