"""Which leader epoch began at which offset: how replicas find the point where they part.

Epochs and their start offsets both rise. A new epoch that begins at or below older entries makes
those wrong (their records were truncated), so they go. The file is written when the log is flushed:
an entry that is not on disk yet belongs to records that recovery reads anyway. An epoch without a
record is not worth a write: the next start would not believe it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from scriba.storage.directory.checkpoints import format_lines, parse_lines

UNDEFINED: Final = (-1, -1)


class Epochs:
    __slots__ = ("_epochs", "_starts", "begun", "dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = -1
        self.dirty = False
        self.begun = False
        """Whether the latest epoch has no record yet."""
        for epoch, start in entries:
            self.assign(epoch, start)
        self.dirty = False

    @classmethod
    def decode(cls, data: bytes) -> "Epochs":
        """ValueError when the file is damaged."""
        return cls((int(epoch), int(start)) for epoch, start in parse_lines(data))

    def encode(self) -> bytes:
        return format_lines(f"{epoch} {start}" for epoch, start in self.entries())

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def __bool__(self) -> bool:
        return bool(self._epochs)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Records from `start_offset` on are of `epoch`."""
        if epoch < 0 or (epoch == self.latest and start_offset >= self._starts[-1]):
            self.dirty = self.dirty or self.begun
            self.begun = False
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self.begun = False
        self.dirty = True

    def begin(self, epoch: int, end_offset: int) -> None:
        """A leader's epoch begins at the end of the log; its first record will tell."""
        dirty, known = self.dirty, self.latest
        self.assign(epoch, end_offset)
        if self.latest != known:
            self.dirty, self.begun = dirty, True

    def end_offset_for(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest epoch up to the asked one, and where it ends; UNDEFINED if unknowable."""
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, end_offset
        following = bisect_right(self._epochs, epoch)
        if following == 0:
            return epoch, self._starts[0]
        return self._epochs[following - 1], self._starts[following]

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 if no entry covers it."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else -1

    def truncate_end(self, end_offset: int) -> None:
        """Forgets epochs that begin at or after `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.dirty = True
        self.latest = self._epochs[-1] if self._epochs else -1

    def truncate_start(self, start_offset: int) -> None:
        """Forgets epochs that end before `start_offset`; the one it lies in begins there."""
        covered = bisect_right(self._starts, start_offset)
        if covered == 0 or (covered == 1 and self._starts[0] == start_offset):
            return
        del self._epochs[: covered - 1]
        del self._starts[: covered - 1]
        self._starts[0] = start_offset
        self.dirty = True

    def adopt(self, other: "Epochs") -> None:
        """Says what another log's epochs say, of which this one is a copy."""
        if self.entries() != other.entries():
            self._epochs[:], self._starts[:] = other._epochs, other._starts
            self.dirty = True
        self.latest, self.begun = other.latest, other.begun

    def clear(self) -> None:
        self.dirty = self.dirty or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
        self.latest = -1
