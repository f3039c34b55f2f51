"""Broken variants of the quorum, the controller and replication, for plays of clusters to find.

Each is one small lie in one place, with a seed that is known to show it. The seeds are only a
shortcut: when one no longer does, others are played until one does, at most `within` of them. A
variant counts how often its lie made a difference (`lied`): one that never had the occasion to lie
would prove nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from scriba.broker.coordinators import markers
from scriba.broker.handlers.groups import txn as txn_handlers
from scriba.broker.handlers.records import replica_fetch
from scriba.broker.metadata.follower import fold
from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.quorum import MetadataQuorum, _slowly
from scriba.broker.metadata.quorum.quorum_state import QUORUM_STATE
from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replicas import Replicas
from scriba.controller import brokers, image
from scriba.controller.image import ClusterImage, Delta
from scriba.controller.machine import Controller
from scriba.controller.partitions import elections, isr
from scriba.controller.parts import PartitionImage
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.raft import changes
from scriba.raft.machine import Raft
from scriba.raft.messages import Position
from scriba.raft.progress import Progress
from scriba.raft.roles import Role
from scriba.replication.follower import FollowerState, State, Step, Truncate
from scriba.replication.leader import Follower, LeaderState
from scriba.runtime.watermark import Watermark
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log
from scriba.storage.truncation import Truncation
from scriba.testing.sim.world.disk import SimDisk
from scriba.wire.messages.fetch import PartitionData
from tests.sim.mutants.fastpath import asked_by

Patch = pytest.MonkeyPatch
Lied = Callable[[], None]
"""To be called when a variant does what the rightful code would not do."""

QUORUM, VOTERS, ELECTING = "quorum", "voters", "electing"
REPLICAS, MOVES = "replicas", "moves"
DIVERGING, TRUNCATING = "diverging", "truncating"
JOINING, REBORN, MARKERS = "joining", "reborn", "markers"
OBSERVED = "observed"
PRODUCE_FAST_PATH: Final = "scriba.broker.fastpath.produce"


@dataclass(frozen=True, slots=True)
class Mutant:
    break_it: Callable[[Patch, Lied], None]
    play: str
    seed: int
    complaint: str
    """Part of what the checkers say of it."""
    within: int = 60
    """It is found in so many seeds, from the first on."""
    cheap: bool = False
    """Whether `make test` plays it, too."""

    @property
    def name(self) -> str:
        return self.break_it.__name__


# ---- the quorum ----


def begins_two_changes_of_voters_at_once(patch: Patch, lied: Lied) -> None:
    """A leader writes other voters while the ones before are not committed."""
    not_yet = changes.not_yet

    def at_once(raft: Raft) -> None:
        if not_yet(raft) is not None:
            lied()

    patch.setattr(changes, "not_yet", at_once)


def does_not_sync_its_vote(patch: Patch, lied: Lied) -> None:
    """A voter answers though its epoch and its vote are nowhere on its disk."""
    write_atomic = SimDisk.write_atomic

    async def forgetful(self: SimDisk, path: str, data: bytes) -> None:
        if path.endswith(QUORUM_STATE):
            lied()
        else:
            await write_atomic(self, path, data)

    patch.setattr(SimDisk, "write_atomic", forgetful)


def answers_before_its_vote_is_synced(patch: Patch, lied: Lied) -> None:
    """A voter answers while its epoch and its vote are on their way to its disk."""
    write_atomic = SimDisk.write_atomic
    under_way: list[asyncio.Task[None]] = []

    async def hasty(self: SimDisk, path: str, data: bytes) -> None:
        if path.endswith(QUORUM_STATE):
            lied()
            under_way.append(asyncio.ensure_future(write_atomic(self, path, data)))
        else:
            await write_atomic(self, path, data)

    patch.setattr(SimDisk, "write_atomic", hasty)


def counts_an_older_epoch(patch: Patch, lied: Lied) -> None:
    """A leader commits records of an earlier epoch because a majority has them."""
    rightly = Progress.committed

    def committed(self: Progress) -> int | None:
        truth = rightly(self)
        start, self.start_offset = self.start_offset, -1
        try:
            told = rightly(self)
        finally:
            self.start_offset = start
        if told != truth:
            lied()
        return told

    patch.setattr(Progress, "committed", committed)


def ignores_the_pre_vote(patch: Patch, lied: Lied) -> None:
    """Who misses its leader takes the next epoch without asking whether it could win."""
    count_votes = Raft._count_votes

    def at_once(self: Raft, now: Instant) -> None:
        if self.role is Role.PROSPECTIVE:
            lied()
            self._become(Role.CANDIDATE)
            self._begin_election(now)
        else:
            count_votes(self, now)

    patch.setattr(Raft, "_count_votes", at_once)


def takes_a_snapshot_past_the_high_watermark(patch: Patch, lied: Lied) -> None:
    """A snapshot holds what is in the log, committed or not."""

    async def eager(self: MetadataQuorum, image: ClusterImage, last_timestamp: int) -> Position:
        follower: Any = self.on_append.__self__  # type: ignore[attr-defined]
        for batch in follower._waiting:
            fold(image, batch, Delta())
        if image.end_offset > self.high_watermark.value:
            lied()
        position = Position(image.epoch, image.end_offset)
        await self.log.flush(position.offset)
        facts = self.history.at(position.offset)
        batches = snapshots.encoded(position, facts, image, last_timestamp)
        await snapshots.write(self._world.disk, self.directory, position, _slowly(batches))
        return position

    patch.setattr(MetadataQuorum, "write_snapshot", eager)


def deaf_controller_fences(patch: Patch, lied: Lied) -> None:
    """A controller that was itself held up holds its deafness against its brokers."""
    listen = Controller._listen

    def merciless(self: Controller, now: Instant) -> None:
        sessions = self.state.sessions.values()
        before = [session.last_contact for session in sessions]
        listen(self, now)
        for session, last_contact in zip(sessions, before, strict=True):
            if session.last_contact != last_contact:
                lied()
                session.last_contact = last_contact

    patch.setattr(Controller, "_listen", merciless)


# ---- elections ----


def does_not_raise_the_epoch(patch: Patch, lied: Lied) -> None:
    """Another leader is elected, in the same epoch."""
    changed = image.changed

    def same_epoch(partition: PartitionImage, record: Any, *rest: Any) -> PartitionImage:
        now = changed(partition, record, *rest)
        if now.leader_epoch != partition.leader_epoch:
            lied()
        return now._replace(leader_epoch=partition.leader_epoch)

    patch.setattr(image, "changed", same_epoch)


def trusts_a_replica_after_an_unclean_restart(patch: Patch, lied: Lied) -> None:
    """A broker that lost its power stays in sync, and eligible, when it registers again."""
    registration = brokers._registration

    def clean(state: Any, record: Any, same: bool, clean: bool) -> Iterable[Any]:
        if not same or not clean:
            lied()
        yield from registration(state, record, True, True)

    patch.setattr(brokers, "_registration", clean)


def does_not_check_broker_epochs(patch: Patch, lied: Lied) -> None:
    """A replica joins the in-sync set though the broker that caught up died, and lost it all."""
    eligible = isr._eligible

    def any_incarnation(state: Any, partition: PartitionImage, members: Any) -> bool:
        known = state.image.brokers
        for member in members:
            broker = known.get(member.broker_id)
            if broker is not None and member.broker_epoch not in (-1, broker.epoch):
                lied()
                member.broker_epoch = broker.epoch
        return eligible(state, partition, members)

    patch.setattr(isr, "_eligible", any_incarnation)


# ---- reassignments ----


def completes_before_the_isr(patch: Patch, lied: Lied) -> None:
    """The old replicas go as soon as one of the target is in sync."""
    rightly = elections._completed

    def early(partition: PartitionImage, isr: tuple[int, ...], *rest: Any) -> PartitionImage:
        seen = partition.target if {*isr} & {*partition.target} else isr
        told = rightly(partition, seen, *rest)
        if told != rightly(partition, isr, *rest):
            lied()
        return told

    patch.setattr(elections, "_completed", early)


def counts_a_removed_replica(patch: Patch, lied: Lied) -> None:
    """The in-sync set keeps those who are no replicas any more."""
    rightly = elections._elect

    def generous(partition: PartitionImage, *rest: Any) -> Any:
        found = rightly(partition, *rest)
        gone = [b for b in partition.isr if b not in partition.replicas]
        if gone:
            lied()
        return found._replace(isr=(*found.isr, *gone))

    patch.setattr(elections, "_elect", generous)


# ---- leaders ----


def counts_a_fetch_that_diverges(patch: Patch, lied: Lied) -> None:
    """A follower is taken to have what it asks beyond, though that is not what the leader has."""
    look_at_one = replica_fetch._look_at_one

    def counting(node: Any, look: Any, followed: Any, now: Instant) -> Any:
        found = look_at_one(node, look, followed, now)
        partition = followed.partition
        diverges = isinstance(found, PartitionData) and found.diverging_epoch.epoch >= 0
        if look.counted and diverges and partition is not None:
            lied()
            replica_fetch._count(node, look.session, followed, partition, now)
        return found

    patch.setattr(replica_fetch, "_look_at_one", counting)


def lets_in_before_the_epoch_starts(patch: Patch, lied: Lied) -> None:
    """A replica joins the in-sync set that has not fetched to the start of the leader's epoch."""
    may_join = LeaderState._may_join

    def early(self: LeaderState, replica: int, follower: Follower) -> bool:
        truth = may_join(self, replica, follower)
        start, self.epoch_start_offset = self.epoch_start_offset, -1
        try:
            told = may_join(self, replica, follower)
        finally:
            self.epoch_start_offset = start
        if told != truth:
            lied()
        return told

    patch.setattr(LeaderState, "_may_join", early)


def acknowledges_below_min_isr(patch: Patch, lied: Lied) -> None:
    in_sync = LeaderState.in_sync

    def lenient(self: LeaderState, minimum: int) -> bool:
        if not in_sync(self, minimum):
            lied()
        return True

    patch.setattr(LeaderState, "in_sync", lenient)


def fast_path_overlooks_min_isr(patch: Patch, lied: Lied) -> None:
    """A Produce on the fast path does not ask how many replicas are in sync, nor does what it has
    appended; every other way of a record does."""
    in_sync = LeaderState.in_sync

    def lenient(self: LeaderState, minimum: int) -> bool:
        truth = in_sync(self, minimum)
        if truth or not asked_by(PRODUCE_FAST_PATH):
            return truth
        lied()
        return True

    patch.setattr(LeaderState, "in_sync", lenient)


def counts_an_observer_for_acks(patch: Patch, lied: Lied) -> None:
    """An observer that has everything is as good as one that is in sync."""
    in_sync = LeaderState.in_sync

    def generous(self: LeaderState, minimum: int) -> bool:
        has_all = [
            replica
            for replica in self.observers
            if self.followers[replica].end_offset >= self.high_watermark
        ]
        truth = in_sync(self, minimum)
        told = truth or len(self.isr) + len(has_all) >= min(minimum, len(self.replicas))
        if told != truth:
            lied()
        return told

    patch.setattr(LeaderState, "in_sync", generous)


def waits_for_an_observer(patch: Patch, lied: Lied) -> None:
    """The high watermark counts an observer that has caught up as one that is about to join."""
    may_join = LeaderState._may_join

    def as_any(self: LeaderState, replica: int, follower: Follower) -> bool:
        if replica in self.observers:
            lied()
            return follower.end_offset >= self.high_watermark
        return may_join(self, replica, follower)

    patch.setattr(LeaderState, "_may_join", as_any)


def goes_on_when_deposed(patch: Patch, lied: Lied) -> None:
    """A leader does not hear that another one leads."""
    follow = Replicas._follow

    def stubborn(self: Replicas, partition: Partition, image: PartitionImage) -> None:
        if partition.leader is None or image.leader == self._node.id:
            follow(self, partition, image)
        else:
            lied()

    patch.setattr(Replicas, "_depose", lambda self, placements: None)
    patch.setattr(Replicas, "_follow", stubborn)


# ---- followers ----


def truncates_to_the_high_watermark(patch: Patch, lied: Lied) -> None:
    """A new follower begins at its high watermark, whatever its leader has (as before KIP-101)."""
    on_told = FollowerState.on_told
    seen: dict[int, FollowerState] = {}

    def begin_low(self: FollowerState, *rest: Any) -> Step:
        if self.fetches and seen.get(id(self)) is not self:
            seen[id(self)] = self
            if self.high_watermark < self.end_offset:
                lied()
                self._move(State.TRUNCATING)
                return Truncate(self.high_watermark, 0)
        return on_told(self, *rest)

    patch.setattr(FollowerState, "on_told", begin_low)


def does_not_sync_a_truncation(patch: Patch, lied: Lied) -> None:
    """A follower goes on though the device may still have what it truncated."""
    truncate_all = LogDir.truncate_all
    sync = Log.sync
    truncated: list[Log] = []

    async def noting(self: LogDir, offsets: Any, *rest: Any) -> dict[Log, KafkaError]:
        truncated.extend(offsets)
        return await truncate_all(self, offsets, *rest)

    async def hasty(self: Log, hurried: bool = False) -> None:
        if any(log is self for log in truncated):
            lied()
            truncated[:] = [log for log in truncated if log is not self]
        else:
            await sync(self, hurried)

    patch.setattr(LogDir, "truncate_all", noting)
    patch.setattr(Log, "sync", hasty)


def keeps_producers_after_a_truncation(patch: Patch, lied: Lied) -> None:
    """What is known of producers tells of batches that are gone."""
    end_at = Truncation._end_at

    def forgetful(self: Truncation, end_offset: int, _: object) -> None:
        lied()
        end_at(self, end_offset, self._log.producers)

    patch.setattr(Truncation, "_end_at", forgetful)


def does_not_follow_producers(patch: Patch, lied: Lied) -> None:
    """A new leader knows nothing of the producers whose batches it fetched."""
    note_producer = Log._note_producer
    append_follower = Log.append_follower
    following: list[Log] = []

    def as_follower(self: Log, view: memoryview, now: Instant) -> None:
        following.append(self)
        try:
            append_follower(self, view, now)
        finally:
            following.pop()

    def forgetful(self: Log, *rest: Any) -> None:
        if following:
            lied()
        else:
            note_producer(self, *rest)

    patch.setattr(Log, "append_follower", as_follower)
    patch.setattr(Log, "_note_producer", forgetful)


# ---- transactions ----


def completes_before_markers_are_replicated(patch: Patch, lied: Lied) -> None:
    """A transaction is done when its markers are in their leaders' logs."""
    append_marker = markers.append_marker

    def hasty(*given: Any) -> tuple[Watermark, int]:
        watermark, end = append_marker(*given)
        if watermark.value < end:
            lied()
        return Watermark(0), 0

    for module in (markers, txn_handlers):
        patch.setattr(module, "append_marker", hasty)


DIFFERS = "is in sync and"

MUTANTS: Final = (
    Mutant(does_not_sync_its_vote, ELECTING, 0, "lead it in epoch", 5, cheap=True),
    Mutant(answers_before_its_vote_is_synced, ELECTING, 2, "lead it in epoch", 10),
    Mutant(counts_an_older_epoch, ELECTING, 1, "though its epoch", 10),
    Mutant(ignores_the_pre_vote, QUORUM, 2, "was cut off and came back", cheap=True),
    Mutant(takes_a_snapshot_past_the_high_watermark, ELECTING, 0, "took a snapshot up to", 20),
    Mutant(deaf_controller_fences, QUORUM, 0, "was deaf", 40),
    Mutant(begins_two_changes_of_voters_at_once, VOTERS, 3, "other than committed", cheap=True),
    Mutant(does_not_raise_the_epoch, REPLICAS, 0, "lead it in epoch"),
    Mutant(trusts_a_replica_after_an_unclean_restart, REPLICAS, 1, "nobody was told of a loss"),
    Mutant(completes_before_the_isr, MOVES, 0, "are in sync", 10, cheap=True),
    Mutant(counts_a_removed_replica, MOVES, 0, "its replicas are", 10),
    Mutant(does_not_check_broker_epochs, REBORN, 0, DIFFERS, 10),
    Mutant(counts_a_fetch_that_diverges, DIVERGING, 0, DIFFERS, 10, cheap=True),
    Mutant(lets_in_before_the_epoch_starts, JOINING, 1, "joined the in-sync", 10, cheap=True),
    Mutant(acknowledges_below_min_isr, REPLICAS, 1, "with in-sync replicas", cheap=True),
    Mutant(fast_path_overlooks_min_isr, REPLICAS, 1, "with in-sync replicas", 10, cheap=True),
    Mutant(counts_an_observer_for_acks, OBSERVED, 0, "with in-sync replicas", 10, cheap=True),
    Mutant(waits_for_an_observer, OBSERVED, 0, "waits for an observer", 10),
    Mutant(goes_on_when_deposed, REPLICAS, 0, "the cluster is not whole"),
    Mutant(truncates_to_the_high_watermark, JOINING, 0, "joined the in-sync", 10),
    Mutant(does_not_sync_a_truncation, TRUNCATING, 4, DIFFERS, 40),
    Mutant(keeps_producers_after_a_truncation, DIVERGING, 2, "acknowledged", 10, cheap=True),
    Mutant(does_not_follow_producers, JOINING, 1, "is there twice", 10),
    Mutant(completes_before_markers_are_replicated, MARKERS, 0, "is open in", 10),
)
