"""The sparse indexes of a segment, in Kafka's file formats.

An offset index maps a batch's last offset (relative to the segment's base) to the batch's position,
a time index the largest timestamp so far to the last offset of the batch that has it. Both only
grow, and new entries are kept in memory until enough of them are worth a write: a lost entry costs
a longer scan, never a wrong answer, and recovery rebuilds what is missing.

Memory holds a suffix of the entries: all of them once `load` was given the file, few after
`forget`. So an index that nobody reads costs next to nothing.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import le, lt
from typing import Final, Literal

OFFSET_ENTRY: Final = 8
TIME_ENTRY: Final = 12
MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_LATEST: Final = 2**63 - 1
_UNKNOWN: Final = 2**32 - 1
_TIME: Final = struct.Struct(">qi")
_SWAP: Final = sys.byteorder == "little"


class OffsetIndex:
    """`locate` finds where to begin to look for an offset.

    Entries that this process wrote also know their batch's first offset, so that a reader who
    stopped at such an entry goes on there without a scan; the file has no room for it.
    """

    __slots__ = ("_bases", "_lasts", "_positions", "base_offset", "shrunk", "skipped", "written")

    def __init__(self, base_offset: int, entries: int = 0) -> None:
        self.base_offset = base_offset
        self.skipped = entries
        """Entries that are in the file but not in memory."""
        self.written = entries
        """Entries that are in the file."""
        self.shrunk = False
        """Whether the file is not as `written` says, so that a write must also cut or make it."""
        self._lasts = array("I")
        self._positions = array("I")
        self._bases = array("I")

    def __len__(self) -> int:
        return self.skipped + len(self._lasts)

    @property
    def memory(self) -> int:
        return 12 * len(self._lasts)

    def append(self, first_offset: int, last_offset: int, position: int) -> int:
        """Returns the number of entries."""
        base = self.base_offset
        lasts = self._lasts
        lasts.append(last_offset - base)
        self._positions.append(position)
        self._bases.append(first_offset - base)
        return self.skipped + len(lasts)

    def covers(self, offset: int) -> bool:
        """Whether the entries in memory are enough to look for `offset`."""
        if not self.skipped:
            return True
        return bool(self._lasts) and self._lasts[0] <= offset - self.base_offset

    def locate(self, offset: int) -> tuple[int, int, bool]:
        """Where to begin to look for the batch with `offset`, and whether it is just there.

        (position, last offset of the batch at that position or -1 if no entry names it, exact)
        """
        relative = offset - self.base_offset
        lasts = self._lasts
        at = bisect_left(lasts, relative)
        if at < len(lasts):
            if self._bases[at] <= relative:
                return self._positions[at], offset, True
            if lasts[at] == relative:
                return self._positions[at], offset, False
        if not at:
            return 0, -1, False
        return self._positions[at - 1], self.base_offset + lasts[at - 1], False

    def floor(self, position: int) -> tuple[int, int]:
        """(position, last offset of the batch there) of the last entry up to `position`; of the
        segment's very start, where no entry in memory is before, (0, -1)."""
        at = bisect_right(self._positions, position)
        if not at:
            return 0, -1
        return self._positions[at - 1], self.base_offset + self._lasts[at - 1]

    def bound(self, position: int) -> int | None:
        """An offset that nothing before `position` reaches, if an entry in memory tells one."""
        at = bisect_left(self._positions, position)
        return self.base_offset + self._lasts[at] if at < len(self._positions) else None

    def last(self) -> tuple[int, int]:
        """(last offset, position) of the last entry in memory, or of the segment's very start."""
        if not self._lasts:
            return self.base_offset, 0
        return self.base_offset + self._lasts[-1], self._positions[-1]

    def truncate(self, offset: int, margin: int = 0) -> int:
        """Forgets entries of batches that reach `offset`, and `margin` entries before those.

        All entries must be in memory. Returns the last position that is left, or 0.
        """
        self._cut(max(bisect_left(self._lasts, offset - self.base_offset) - margin, 0))
        return self._positions[-1] if self._positions else 0

    def _cut(self, keep: int) -> None:
        assert not self.skipped, "the entries to cut are not in memory"
        for column in (self._lasts, self._positions, self._bases):
            del column[keep:]
        if keep < self.written:
            self.written = keep
            self.shrunk = True

    def load(self, data: bytes, log_size: int) -> bool:
        """Takes the skipped entries from the file; False, and nothing changed, if it is damaged.

        Zeros at the end are room that Kafka reserved and, after a crash, did not give back.
        Entries past the end of the segment belong to a tail that was lost.
        """
        data = data[: self.skipped * OFFSET_ENTRY].rstrip(b"\0")
        count = -(-len(data) // OFFSET_ENTRY)
        cells = _big_endian("I", data.ljust(count * OFFSET_ENTRY, b"\0"))
        lasts, positions = cells[0::2], cells[1::2]
        if not (_rises(lasts) and _rises(positions) and (not count or positions[0] > 0)):
            return False
        self._take(lasts, positions, bisect_left(positions, log_size))
        return True

    def _take(self, lasts: "array[int]", positions: "array[int]", count: int) -> None:
        """Puts entries before those in memory."""
        if count < self.skipped:
            self.shrunk = True
            self.written = min(self.written, count)
        self._lasts = lasts[:count] + self._lasts
        self._positions = positions[:count] + self._positions
        self._bases = array("I", [_UNKNOWN]) * count + self._bases
        self.skipped = 0

    def replace(self, rebuilt: "OffsetIndex") -> None:
        """Takes the place of a damaged file; entries that never were in it and go on stay."""
        own = self.written - self.skipped
        if rebuilt._positions:
            own += bisect_right(self._positions[own:], rebuilt._positions[-1])
        self._lasts = rebuilt._lasts + self._lasts[own:]
        self._positions = rebuilt._positions + self._positions[own:]
        self._bases = rebuilt._bases + self._bases[own:]
        self.skipped = self.written = 0
        self.shrunk = True

    def forget(self, keep: int) -> None:
        """Gives memory back; all but the last `keep` entries, if they are written, leave it."""
        gone = min(len(self) - keep, self.written) - self.skipped
        if gone > 0:
            self.skipped += gone
            for column in (self._lasts, self._positions, self._bases):
                del column[:gone]

    @property
    def unwritten(self) -> int:
        return len(self) - self.written

    def fresh(self) -> bytes:
        """The entries that are not in the file yet, as the file has them."""
        first = self.written - self.skipped
        cells = array("I", bytes(OFFSET_ENTRY * self.unwritten))
        cells[0::2] = self._lasts[first:]
        cells[1::2] = self._positions[first:]
        if _SWAP:
            cells.byteswap()
        return cells.tobytes()


class TimeIndex:
    """`locate` finds the last offset before which nothing can be as late as a timestamp."""

    __slots__ = ("_entries", "base_offset", "last", "shrunk", "skipped", "written")

    def __init__(self, base_offset: int, entries: int = 0) -> None:
        self.base_offset = base_offset
        self.skipped = entries
        self.written = entries
        self.shrunk = False
        self.last = (-1, base_offset)
        """(timestamp, offset) of the last entry; its owner sets it while entries are skipped."""
        self._entries = bytearray()

    def __len__(self) -> int:
        return self.skipped + len(self._entries) // TIME_ENTRY

    @property
    def memory(self) -> int:
        return len(self._entries)

    def append(self, timestamp: int, offset: int) -> int:
        """Entries rise in both columns; one that does not is no news. Returns their number."""
        if timestamp > self.last[0]:
            self._entries += _TIME.pack(timestamp, offset - self.base_offset)
            self.last = (timestamp, offset)
        return self.skipped + len(self._entries) // TIME_ENTRY

    def read_last(self, entry: bytes) -> bool:
        """Takes note of the last entry in the file, of which no other is in memory.

        False if no index ends in this.
        """
        timestamp, relative = _TIME.unpack(entry)
        self.last = (timestamp, self.base_offset + relative)
        return timestamp >= 0 and relative >= 0 and any(entry)

    def locate(self, timestamp: int) -> int:
        """All entries must be in memory. Records before the returned offset are all older."""
        at = bisect_right(range(len(self)), timestamp, key=self._timestamp)
        if not at:
            return self.base_offset
        return self.base_offset + int(_TIME.unpack_from(self._entries, (at - 1) * TIME_ENTRY)[1])

    def _timestamp(self, entry: int) -> int:
        return int(_TIME.unpack_from(self._entries, entry * TIME_ENTRY)[0])

    def _offset(self, entry: int) -> int:
        return int(_TIME.unpack_from(self._entries, entry * TIME_ENTRY)[1])

    def truncate(self, offset: int) -> None:
        """Forgets entries of batches that reach `offset`; all entries must be in memory."""
        assert not self.skipped, "the entries to cut are not in memory"
        keep = bisect_left(range(len(self)), offset - self.base_offset, key=self._offset)
        del self._entries[keep * TIME_ENTRY :]
        if keep < self.written:
            self.written = keep
            self.shrunk = True
        self._find_last()

    def _find_last(self) -> None:
        self.last = (-1, self.base_offset)
        if self._entries:
            self.read_last(bytes(self._entries[-TIME_ENTRY:]))

    def load(self, data: bytes, end_offset: int) -> bool:
        """As `OffsetIndex.load`; what names `end_offset` or later belongs to a lost tail."""
        data = data[: self.skipped * TIME_ENTRY].rstrip(b"\0")
        count = -(-len(data) // TIME_ENTRY)
        data = data.ljust(count * TIME_ENTRY, b"\0")
        offsets = _big_endian("I", data)[2::3]
        if not (_times_rise(data, count) and all(map(le, offsets, offsets[1:]))):
            return False
        if count and offsets[-1] > MAX_RELATIVE_OFFSET:
            return False
        good = bisect_left(offsets, end_offset - self.base_offset)
        if good < self.skipped:
            self.shrunk = True
            self.written = min(self.written, good)
        self._entries[:0] = data[: good * TIME_ENTRY]
        self.skipped = 0
        self._find_last()
        return True

    def replace(self, rebuilt: "TimeIndex") -> None:
        """As `OffsetIndex.replace`."""
        own = self._entries[(self.written - self.skipped) * TIME_ENTRY :]
        while own and _TIME.unpack_from(own)[0] <= rebuilt.last[0]:
            del own[:TIME_ENTRY]
        self._entries = rebuilt._entries + own
        self.skipped = self.written = 0
        self.shrunk = True
        self._find_last()

    def forget(self, keep: int) -> None:
        """As `OffsetIndex.forget`."""
        gone = min(len(self) - keep, self.written) - self.skipped
        if gone > 0:
            self.skipped += gone
            del self._entries[: gone * TIME_ENTRY]

    @property
    def unwritten(self) -> int:
        return len(self) - self.written

    def fresh(self) -> bytes:
        return bytes(self._entries[(self.written - self.skipped) * TIME_ENTRY :])


def _rises(column: "array[int]") -> bool:
    return all(map(lt, column, column[1:]))


def _big_endian(typecode: Literal["I", "Q"], data: bytes) -> "array[int]":
    cells = array(typecode, data)
    if _SWAP:
        cells.byteswap()
    return cells


def _times_rise(data: bytes, count: int) -> bool:
    """Whether the timestamps of a time index do, none of them negative.

    There may be a quarter of a million, looked at on the loop: every other one lies where an array
    of 64-bit numbers has it, and those between do once four bytes are left out.
    """
    if not count:
        return True
    padded = data.ljust(-(-count // 2) * 2 * TIME_ENTRY, b"\0")
    even = _big_endian("Q", padded)[0::3]
    odd = _big_endian("Q", padded[4:] + bytes(4))[1::3][: count // 2]
    last = max(even[-1:] + odd[-1:], default=0)
    return last <= _LATEST and all(map(lt, even, odd)) and all(map(lt, odd, even[1:]))
