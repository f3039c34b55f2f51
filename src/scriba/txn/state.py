"""What one shard of the coordinator holds: the stored transactions, and what lives beside them."""

from heapq import heapify, heappop, heappush
from typing import Final

from scriba.instant import ClockWatch, Instant
from scriba.txn.facts import TxnSettings
from scriba.txn.messages import WriteMarkers
from scriba.txn.states import COMPLETE_COMMIT, PREPARE_COMMIT, Txn

NEVER_TIMES_OUT: Final = 2**31 - 1
"""The time-out of a transaction that an outside coordinator ends (two-phase commit)."""

_SPARE: Final = 64


class State:
    __slots__ = (
        "_due",
        "_heap",
        "clock_watch",
        "expiring",
        "last_epochs",
        "next_abort_ms",
        "next_expiry_ms",
        "partition",
        "settings",
        "txns",
    )

    def __init__(self, settings: TxnSettings, partition: int) -> None:
        self.settings = settings
        self.partition = partition
        self.txns: dict[str, Txn] = {}
        """The stored state, changed in replay and nowhere else."""
        self.last_epochs: dict[str, int] = {}
        """The epoch before the current one, where its producer may still ask with it (KIP-360).
        Kafka's record has no room for it, so it does not outlive the shard."""
        self.clock_watch: ClockWatch | None = None
        """Whether to believe the wall clock when ids are forgotten."""
        self.next_abort_ms = 0
        self.next_expiry_ms: int | None = None
        self.expiring: list[str] = []
        """Ids that the current look for forgotten ones has yet to come to."""
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    # ---- time-outs of open transactions, on the monotonic clock ----

    def began(self, transactional_id: str, timeout_ms: int, at_ms: int) -> None:
        if timeout_ms == NEVER_TIMES_OUT:
            return
        due = at_ms + timeout_ms
        self._due[transactional_id] = due
        heappush(self._heap, (due, transactional_id))
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._heap = [(at, name) for name, at in self._due.items()]
            heapify(self._heap)

    def over(self, transactional_id: str) -> None:
        self._due.pop(transactional_id, None)

    def first_due(self) -> tuple[int, str] | None:
        """When the next open transaction runs out of time, and which one it is."""
        heap = self._heap
        while heap:
            due, transactional_id = heap[0]
            if self._due.get(transactional_id) == due:
                return heap[0]
            heappop(heap)
        return None

    def restart_clock(self, transactional_id: str, txn: Txn, now: Instant) -> None:
        """After a load: what has passed is known only by the wall clock, which may have jumped."""
        passed = min(max(now.wall_ms - txn.started_ms, 0), txn.timeout_ms)
        self.began(transactional_id, txn.timeout_ms, now.mono_ms - passed)

    def markers(self, transactional_id: str, txn: Txn) -> WriteMarkers:
        return WriteMarkers(
            self.partition,
            transactional_id,
            txn.producer_id,
            txn.producer_epoch,
            txn.state in (PREPARE_COMMIT, COMPLETE_COMMIT),
            tuple(sorted(txn.partitions)),
            txn.client_version,
        )
