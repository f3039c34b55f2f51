"""Which records of a log never happened, and which markers nobody needs any more.

Read from the first batch on, in order. The records of an aborted transaction go at once. Its marker
stays while any of its batches does, and for one more pass with a delete horizon, so that a reader
who is in the middle of the transaction still meets its end; then it goes too. A commit marker
follows the same rule.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from scriba.records.batch import EndTxnMarker
from scriba.records.header import TRANSACTIONAL, BatchHeader
from scriba.storage.producers.state import AbortedTxn


class Verdict(NamedTuple):
    """On a marker."""

    spent: bool
    """Whether no batch of its transaction is left."""
    aborted: AbortedTxn | None
    """The line of the transaction index that must go on to exist."""


class _Aborting:
    __slots__ = ("seen", "txn")

    def __init__(self, txn: AbortedTxn) -> None:
        self.txn = txn
        self.seen = False
        """Whether a batch of it was met."""


class Fates:
    __slots__ = ("_aborting", "_committing", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = deque(sorted(set(aborted), key=lambda txn: txn.first_offset))
        self._aborting: dict[int, _Aborting] = {}
        """By producer: the aborted transaction that the place in the log may belong to."""
        self._committing: set[int] = set()
        """Producers of which a batch was met whose transaction was not aborted."""

    def of_batch(self, header: BatchHeader) -> bool:
        """Whether a batch of data belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL:
            return False
        self._go_on_to(header.last_offset)
        aborting = self._aborting.get(header.producer_id)
        if aborting is None or header.base_offset > aborting.txn.last_offset:
            self._committing.add(header.producer_id)
            return False
        aborting.seen = True
        return True

    def of_marker(self, header: BatchHeader, marker: EndTxnMarker | None) -> Verdict:
        """`marker` is None for a control batch of another kind, which nobody may remove."""
        self._go_on_to(header.last_offset)
        if marker is None:
            return Verdict(False, None)
        if marker.commit:
            spent = header.producer_id not in self._committing
            self._committing.discard(header.producer_id)
            return Verdict(spent, None)
        aborting = self._aborting.pop(header.producer_id, None)
        if aborting is None or not aborting.seen:
            return Verdict(True, None)
        return Verdict(False, aborting.txn)

    def _go_on_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            txn = self._waiting.popleft()
            self._aborting[txn.producer_id] = _Aborting(txn)
