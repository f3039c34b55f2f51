"""Broken variants of coordinators, transactions and the cleaner, for the simulator to find.

Each is one small lie in one place, with a seed that is known to show it. The seeds are only a
shortcut: when one no longer does, others are played until one does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import pytest

from scriba.broker.coordinators import markers, shard_log
from scriba.broker.coordinators.runtime import CoordinatorRuntime
from scriba.broker.jobs import compaction
from scriba.broker.partitions.partition import Partition
from scriba.groups import machine
from scriba.groups.classic.group import ClassicGroup
from scriba.groups.consumer.group import ConsumerGroup
from scriba.groups.offsets import commit as group_offsets
from scriba.groups.store import Committed, Store, TopicPartition
from scriba.instant import Instant
from scriba.outcome import Origin
from scriba.records.header import BatchHeader
from scriba.runtime.watermark import Watermark
from scriba.storage.compaction.choice import Dirt
from scriba.storage.compaction.log import dirt_of
from scriba.storage.compaction.txn import Fates
from scriba.storage.log import Log
from scriba.testing.sim.actors.cast import SINK
from scriba.txn import beginning
from scriba.txn.state import State as TxnState
from scriba.txn.states import Txn
from scriba.wire.messages.stored_groups import OffsetCommitKey

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    break_it: Callable[[Patch], None]
    seed: int
    complaint: str
    """Part of what the checkers say of it."""
    cheap: bool = True
    """Whether its seed is a matter of a second."""

    @property
    def name(self) -> str:
        return self.break_it.__name__


def answers_before_it_is_safe(patch: Patch) -> None:
    """Replies leave although the high watermark does not cover what they tell of."""

    async def covered(self: CoordinatorRuntime, partition: Partition, end_offset: int) -> None:
        """Does not wait."""

    patch.setattr(CoordinatorRuntime, "covered", covered)


def replays_the_older_offset_over_the_newer(patch: Patch) -> None:
    """While loading, the first commit of a place counts, not the last."""
    replay = shard_log._replay

    async def backwards(topic: str, machine: Any, *rest: Any) -> None:
        put = Store.put_offset

        def keep_first(
            self: Store, group: str, place: TopicPartition, committed: Committed
        ) -> None:
            if place not in self.offsets.get(group, {}):
                put(self, group, place, committed)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Store, "put_offset", keep_first)
            await replay(topic, machine, *rest)

    patch.setattr(shard_log, "_replay", backwards)


def forgets_a_marker(patch: Patch) -> None:
    """A transaction is complete though one of its partitions has not heard of its end."""
    append = markers.append_marker

    def forgetful(node: Any, where: tuple[str, int], *rest: Any) -> tuple[Watermark, int]:
        if where == (SINK, 1):
            return Watermark(0), 0
        return append(node, where, *rest)

    patch.setattr(markers, "append_marker", forgetful)


def keeps_the_end_of_transactions_from_groups(patch: Patch) -> None:
    """Offsets that a transaction committed stay pending until the next load."""
    patch.setattr(CoordinatorRuntime, "marker_appended", lambda *_: None)


def tells_no_reader_of_aborted_transactions(patch: Patch) -> None:
    patch.setattr(Log, "aborted_transactions", lambda *_: [])


def shows_open_transactions(patch: Patch) -> None:
    """A reader of committed records is not stopped at the last stable offset."""
    patch.setattr(Partition, "readable", lambda self, committed_only: self.high_watermark)


def gives_away_what_is_not_given_up(patch: Patch) -> None:
    """Every partition is free for a member of a consumer group, whoever has it."""
    patch.setattr(ConsumerGroup, "free_for", lambda self, member_id: lambda topic, index: True)


def takes_commits_of_any_generation(patch: Patch) -> None:
    for kind in (ClassicGroup, ConsumerGroup):
        patch.setattr(kind, "check_commit", lambda *_: None)


def counts_offsets_before_the_commit(patch: Patch) -> None:
    """Offsets in a transaction count at once, and for good."""
    replay = group_offsets.replay_offset

    def plain(state: Any, key: Any, value: Any, origin: Origin) -> None:
        replay(state, key, value, Origin(origin.offset, origin.timestamp_ms))

    patch.setitem(cast(dict[Any, Any], machine.REPLAY), OffsetCommitKey, plain)


def lets_a_fenced_producer_keep_its_epoch(patch: Patch) -> None:
    """Taking over a transactional id gives the epoch that its last owner has."""
    next_epoch = beginning._next_epoch

    def same(state: TxnState, tid: str, txn: Txn, *rest: Any) -> Any:
        outcome = next_epoch(state, tid, txn, *rest)
        for change in outcome.records:
            assert change.value is not None
            change.value.producer_epoch = txn.producer_epoch  # type: ignore[attr-defined]
        for _, answer in outcome.replies:
            if not answer.error_code:  # type: ignore[attr-defined]
                answer.producer_epoch = txn.producer_epoch  # type: ignore[attr-defined]
        return outcome

    patch.setattr(beginning, "_next_epoch", same)


def cleans_away_what_was_committed(patch: Patch) -> None:
    """The cleaner takes every transaction for an aborted one."""
    patch.setattr(Fates, "of_batch", lambda self, header: header.is_transactional)


def cleans_for_the_sake_of_the_aborted(patch: Patch) -> None:
    """The cleaner takes the value of an aborted transaction for the last one of its key."""
    of_batch = Fates.of_batch

    def blind(self: Fates, header: BatchHeader) -> bool:
        of_batch(self, header)
        return False

    patch.setattr(Fates, "of_batch", blind)


def cleans_past_the_last_stable_offset(patch: Patch) -> None:

    async def everything(log: Log, stable: int, checkpoint: int | None, now: Instant) -> Dirt:
        return await dirt_of(log, log.end_offset, checkpoint, now)

    patch.setattr(compaction, "dirt_of", everything)


NOT_SEEN = "is committed, and lost"
LOST_ROW = "the last value of"

MUTANTS: Final = (
    Mutant(answers_before_it_is_safe, 57, "last accepted is"),
    Mutant(replays_the_older_offset_over_the_newer, 1, "last accepted is"),
    Mutant(forgets_a_marker, 0, NOT_SEEN),
    Mutant(keeps_the_end_of_transactions_from_groups, 2, "did not catch up", cheap=False),
    Mutant(tells_no_reader_of_aborted_transactions, 0, "its transaction is aborted"),
    Mutant(shows_open_transactions, 0, "its transaction is open"),
    Mutant(gives_away_what_is_not_given_up, 0, "was accepted, after"),
    Mutant(takes_commits_of_any_generation, 20, "was accepted, after"),
    Mutant(counts_offsets_before_the_commit, 3, "has 0 copies", cheap=False),
    Mutant(lets_a_fenced_producer_keep_its_epoch, 160, NOT_SEEN),
    Mutant(cleans_away_what_was_committed, 0, LOST_ROW),
    Mutant(cleans_for_the_sake_of_the_aborted, 3, LOST_ROW),
    Mutant(cleans_past_the_last_stable_offset, 1, LOST_ROW),
)
