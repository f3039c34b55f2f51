"""A log as Raft sees it: where each epoch begins, and where the log ends."""

from bisect import bisect_right
from collections.abc import Iterable

from scriba.raft.messages import Position, Run


class EpochTable:
    """`start` is where the log begins: the end of the snapshot that stands for all before it."""

    def __init__(self, start: Position, epochs: Iterable[tuple[int, int]], end_offset: int) -> None:
        self.start = start
        self.end_offset = end_offset
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, first in epochs:
            self._begin(epoch, first)
        assert end_offset >= start.offset

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else self.start.epoch

    @property
    def end(self) -> Position:
        return Position(self.last_epoch, self.end_offset)

    def append(self, run: Run) -> None:
        assert run.epoch >= self.last_epoch
        assert run.end_offset > self.end_offset
        if run.epoch > self.last_epoch or not self._epochs:
            self._begin(run.epoch, self.end_offset)
        self.end_offset = run.end_offset

    def _begin(self, epoch: int, first: int) -> None:
        self._epochs.append(epoch)
        self._starts.append(first)

    def end_of(self, epoch: int) -> Position:
        """The last position of the greatest epoch that is not above `epoch`."""
        at = bisect_right(self._epochs, epoch)
        end = self._starts[at] if at < len(self._starts) else self.end_offset
        return Position(self._epochs[at - 1] if at else self.start.epoch, end)

    def contains(self, position: Position) -> bool:
        """Whether this log has the record before `position`, and with the same epoch."""
        if position.offset == self.start.offset and position.epoch == self.start.epoch:
            return True
        known = self.end_of(position.epoch)
        return known.epoch == position.epoch and self.start.offset < position.offset <= known.offset

    def truncate(self, offset: int) -> None:
        assert self.start.offset <= offset <= self.end_offset
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self.end_offset = offset

    def advance_start(self, start: Position) -> None:
        """Forgets what lies before a snapshot that now begins the log."""
        assert self.start.offset <= start.offset <= self.end_offset
        keep = bisect_right(self._starts, start.offset)
        # The epoch that reaches over the new start stays, beginning there.
        if keep:
            self._starts[:keep] = [start.offset]
            self._epochs[:keep] = [self._epochs[keep - 1]]
        self.start = start

    def reset(self, start: Position) -> None:
        """The log is replaced by a snapshot of what it lacked."""
        self._epochs.clear()
        self._starts.clear()
        self.start = start
        self.end_offset = start.offset
