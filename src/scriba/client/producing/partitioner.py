"""Which partition a record goes to when its sender does not say.

A key decides by its murmur2 hash, as in Java's client, so that both put it in the same place.
Records without a key stay on one partition until `batch.size` bytes have gone there and its batch
is full (KIP-794): batches fill faster than if every record took another way. The next partition is
drawn by chance, those with shorter queues more often, so that a slow broker gets less.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from scriba.native import implementation
from scriba.runtime.ports import Rng

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""(topic, key, value, number of partitions) -> partition."""


def by_key(key: bytes, partitions: int) -> int:
    return (implementation.chosen.murmur2(key) & 0x7FFFFFFF) % partitions


class Sticky:
    """The choice for the records of one topic that have no key."""

    __slots__ = ("_rng", "batch_size", "bytes", "partition")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self.partition: int | None = None
        """Where the next record goes; None when that has to be drawn."""
        self.batch_size = batch_size
        self.bytes = 0
        """What went to the partition; whoever appends counts, and asks `leave` when it is much."""
        self._rng = rng

    def leave(self, batch_full: bool) -> None:
        """Leaves the partition when enough has gone there.

        A batch that is not full is worth waiting for, but not for ever.
        """
        if self.bytes >= self.batch_size and (batch_full or self.bytes >= 2 * self.batch_size):
            self.partition = None

    def draw(self, candidates: Sequence[int], queued: Sequence[int] | None) -> int:
        """Chooses among partitions; `queued` says how many batches wait for each of them."""
        if queued is None or min(queued) == max(queued):
            chosen = candidates[self._rng.below(len(candidates))]
        else:
            longest = max(queued)
            weights = list(accumulate(longest + 1 - length for length in queued))
            drawn = self._rng.below(weights[-1])
            chosen = candidates[next(n for n, w in enumerate(weights) if drawn < w)]
        self.partition = chosen
        self.bytes = 0
        return chosen


class RoundRobin:
    """Each record of a topic to the next partition."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % partitions
