"""Broken variants of the quorum, the controller and replication, for plays of clusters to find.

Each is one small lie in one place, with a seed that is known to show it. The seeds are only a
shortcut: when one no longer does, others are played until one does, at most `within` of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from scriba.broker.metadata.quorum_state import QUORUM_STATE
from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replicas import Replicas
from scriba.controller import brokers, image
from scriba.controller.parts import PartitionImage
from scriba.instant import Instant
from scriba.raft.machine import Raft
from scriba.raft.progress import Progress
from scriba.raft.roles import Role
from scriba.replication.follower import FollowerState, State, Step, Truncate
from scriba.replication.leader import LeaderState
from scriba.testing.sim.world.disk import SimDisk

Patch = pytest.MonkeyPatch

QUORUM, REPLICAS = "quorum", "replicas"


@dataclass(frozen=True, slots=True)
class Mutant:
    break_it: Callable[[Patch], None]
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


def does_not_sync_its_vote(patch: Patch) -> None:
    """A voter answers though its epoch and its vote are nowhere on its disk."""
    write_atomic = SimDisk.write_atomic

    async def forgetful(self: SimDisk, path: str, data: bytes) -> None:
        if not path.endswith(QUORUM_STATE):
            await write_atomic(self, path, data)

    patch.setattr(SimDisk, "write_atomic", forgetful)


def counts_an_older_epoch(patch: Patch) -> None:
    """A leader commits records of an earlier epoch because a majority has them."""
    rightly = Progress.committed

    def committed(self: Progress) -> int | None:
        start, self.start_offset = self.start_offset, -1
        try:
            return rightly(self)
        finally:
            self.start_offset = start

    patch.setattr(Progress, "committed", committed)


def ignores_the_pre_vote(patch: Patch) -> None:
    """Who misses its leader takes the next epoch without asking whether it could win."""
    count_votes = Raft._count_votes

    def at_once(self: Raft, now: Instant) -> None:
        if self.role is Role.PROSPECTIVE:
            self._become(Role.CANDIDATE)
            self._begin_election(now)
        else:
            count_votes(self, now)

    patch.setattr(Raft, "_count_votes", at_once)


# ---- elections ----


def does_not_raise_the_epoch(patch: Patch) -> None:
    """Another leader is elected, in the same epoch."""
    changed = image.changed

    def same_epoch(partition: PartitionImage, record: Any) -> PartitionImage:
        return changed(partition, record)._replace(leader_epoch=partition.leader_epoch)

    patch.setattr(image, "changed", same_epoch)


def trusts_a_replica_after_an_unclean_restart(patch: Patch) -> None:
    """A broker that lost its power stays in sync, and eligible, when it registers again."""
    registration = brokers._registration

    def clean(state: Any, record: Any, same: bool, clean: bool) -> Iterable[Any]:
        yield from registration(state, record, True, True)

    patch.setattr(brokers, "_registration", clean)


# ---- leaders ----


def acknowledges_below_min_isr(patch: Patch) -> None:
    patch.setattr(LeaderState, "in_sync", lambda self, minimum: True)


def goes_on_when_deposed(patch: Patch) -> None:
    """A leader does not hear that another one leads."""
    follow = Replicas._follow

    def stubborn(self: Replicas, partition: Partition, image: PartitionImage) -> None:
        if partition.leader is None or image.leader == self._node.id:
            follow(self, partition, image)

    patch.setattr(Replicas, "_depose", lambda self, placements: None)
    patch.setattr(Replicas, "_follow", stubborn)


# ---- followers ----


def truncates_to_the_high_watermark(patch: Patch) -> None:
    """A new follower begins at its high watermark, whatever its leader has (as before KIP-101)."""
    on_told = FollowerState.on_told
    seen: dict[int, FollowerState] = {}

    def begin_low(self: FollowerState, *rest: Any) -> Step:
        if self.fetches and seen.get(id(self)) is not self:
            seen[id(self)] = self
            if self.high_watermark < self.end_offset:
                self._move(State.TRUNCATING)
                return Truncate(self.high_watermark, 0)
        return on_told(self, *rest)

    patch.setattr(FollowerState, "on_told", begin_low)


MUTANTS: Final = (
    Mutant(does_not_sync_its_vote, QUORUM, 5, "lead it in epoch"),
    Mutant(counts_an_older_epoch, QUORUM, 4, "though its epoch"),
    Mutant(ignores_the_pre_vote, QUORUM, 2, "was cut off and came back", cheap=True),
    Mutant(does_not_raise_the_epoch, REPLICAS, 0, "lead it in epoch"),
    Mutant(trusts_a_replica_after_an_unclean_restart, REPLICAS, 1, "nobody was told of a loss"),
    Mutant(acknowledges_below_min_isr, REPLICAS, 1, "with in-sync replicas", cheap=True),
    Mutant(goes_on_when_deposed, REPLICAS, 0, "the cluster is not whole"),
    Mutant(truncates_to_the_high_watermark, REPLICAS, 16, "is in sync and ends at"),
)
