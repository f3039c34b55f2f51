"""The sequence numbers of an idempotent producer in one partition.

A broker takes a batch only when its first sequence follows the last one it has of the same
producer id and epoch; what it already has, it acknowledges again without writing it twice. So the
batches of a partition are numbered when they are first sent and keep their numbers however often
they are sent again.

A number whose batch will never be written leaves a gap that no later batch can pass. Then the
epoch is raised and counting starts at zero (KIP-360); epochs are counted per partition, since a
broker keeps this state per partition. Invariants:

- Numbers are given in the order of the batches, without gaps, within one epoch; a batch that has
  them takes no more records.
- An epoch is raised only when every batch numbered in it is settled, or known not to be written:
  a batch that may have been written is never sent again under another number.
- At most MAX_UNACKNOWLEDGED batches are numbered since the oldest one that is not settled, that one
  included: so many the broker remembers. Those behind it may be settled first, by a new leader,
  while it waits for the answer of the old one.
- A batch before one that was acknowledged has been written, whatever else a broker says of it.
- Nothing is sent behind the first batch of an epoch before that is settled: a broker that knows
  nothing of a producer takes whatever number comes first, so the second could pass the first.

What must never happen: the same record written twice, or two records in the other order.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from scriba.client.producing.batches import Batch
from scriba.records.header import NO_SEQUENCE, next_sequence

MAX_UNACKNOWLEDGED: Final = 5
MAX_EPOCH: Final = 2**15 - 1
_SEQUENCES: Final = 2**31 - 1


class SequenceNumbers:
    __slots__ = ("_acked", "_broken", "_next", "_unresolved", "_window", "epoch", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self._begin(producer_id, epoch)

    def _begin(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._next = 0
        self._acked = NO_SEQUENCE
        self._broken = False
        self._unresolved = False
        self._window: dict[Batch, bool] = {}
        """Whether each is settled, of the batches since the oldest one that is not."""

    @property
    def broken(self) -> bool:
        """Whether counting must start again before anything can be written."""
        return self._broken

    @property
    def exhausted(self) -> bool:
        """Whether that takes a new producer id, as there is no epoch left."""
        return self._broken and self.epoch >= MAX_EPOCH

    def give(self, batch: Batch) -> None:
        """Numbers a batch that is sent for the first time."""
        assert not self._broken
        assert not self._unresolved
        assert batch.closed
        batch.number(self.producer_id, self.epoch, self._next)
        self._next = next_sequence(self._next, batch.count)
        self._window[batch] = False

    def divide(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """A batch that was refused as too large is sent in parts, which have its numbers."""
        assert self._current(batch)
        sequence = batch.sequence
        window: dict[Batch, bool] = {}
        for known, settled in self._window.items():
            window |= dict.fromkeys(parts, False) if known is batch else {known: settled}
        self._window = window
        for part in parts:
            part.number(batch.producer_id, batch.producer_epoch, sequence)
            sequence = next_sequence(sequence, part.count)

    def acknowledged(self, batch: Batch) -> None:
        if self._current(batch):
            if not self.written(batch):
                self._acked = next_sequence(batch.sequence, batch.count - 1)
            self._settle(batch)

    def given_up(self, batch: Batch) -> None:
        """A numbered batch will not be sent again: it leaves a gap, unless it was written."""
        if self._current(batch):
            self._settle(batch)
            if self.written(batch):
                return
            if batch.uncertain:
                self._unresolved = True
            else:
                self._broken = True

    def written(self, batch: Batch) -> bool:
        """Whether a later batch was acknowledged, which proves that this one is in the log."""
        if self._acked == NO_SEQUENCE or not self._current(batch):
            return False
        return (self._acked - batch.sequence) & _SEQUENCES < _SEQUENCES // 2

    def _settle(self, batch: Batch) -> None:
        if batch in self._window:
            self._window[batch] = True
            while self._window and self._window[oldest := next(iter(self._window))]:
                del self._window[oldest]

    def out_of_order(self, batch: Batch) -> None:
        """The broker saw a gap before this batch.

        That is to be expected while an earlier batch is on its way again. If there is none, the
        broker has lost what it acknowledged, or an earlier batch was given up and not written.
        """
        if self._current(batch) and (self._unresolved or batch.sequence == self._expected):
            self._broken = True

    def forgotten(self, batch: Batch) -> None:
        """The broker no longer knows this producer: its records have expired."""
        if self._current(batch):
            self._broken = True

    def may_send(self, batch: Batch, in_flight: int) -> bool:
        """Whether this batch, the oldest one waiting, may be sent behind those in flight."""
        if self._broken:
            return False
        if self._acked == NO_SEQUENCE and in_flight:
            return False
        if batch.numbered:
            return True
        if self._unresolved and not in_flight:
            # If later numbers were acknowledged, then so were all before them.
            self._unresolved = False
            self._broken = self._expected != self._next
        if self._broken or self._unresolved:
            return False
        return len(self._window) < MAX_UNACKNOWLEDGED

    def restart(self, unsent: Iterable[Batch], fresh: tuple[int, int] | None = None) -> None:
        """Starts at zero under the next epoch or a fresh producer id.

        `unsent` are the numbered batches, in order; none may be in flight.
        """
        assert self._broken
        self._begin(*(fresh or (self.producer_id, self.epoch + 1)))
        for batch in unsent:
            self.give(batch)

    @property
    def _expected(self) -> int:
        return 0 if self._acked == NO_SEQUENCE else next_sequence(self._acked)

    def _current(self, batch: Batch) -> bool:
        return batch.producer_id == self.producer_id and batch.producer_epoch == self.epoch
