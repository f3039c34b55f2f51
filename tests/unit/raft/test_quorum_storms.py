"""Quorums of several machines through faults: the rules hold, and breaking a rule is noticed."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.raft import changes
from scriba.raft.machine import Raft
from scriba.raft.messages import VoteRequest
from scriba.raft.progress import Progress
from scriba.raft.roles import Role
from tests.unit.raft import network


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("voters", "observers"), [(1, 0), (2, 0), (3, 1), (5, 0)])
def test_quorum_keeps_its_rules_through_a_storm_and_recovers(
    seed: int, voters: int, observers: int
) -> None:
    table = network.Table(seed, voters, observers)
    network.storm(table, rounds=60)
    assert table.committed


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("voters", "observers"), [(1, 3), (2, 2), (3, 2), (5, 1)])
def test_quorum_whose_voters_come_and_go_keeps_its_rules_and_recovers(
    seed: int, voters: int, observers: int
) -> None:
    table = network.Table(seed, voters, observers, not_yet=changes.not_yet)
    network.storm(table, rounds=60)
    assert table.changed


def test_quorum_on_slow_disks_keeps_its_rules() -> None:
    for seed in range(6):
        network.storm(network.Table(seed, 3, slowest_flush_ms=200), rounds=60)


def test_late_answer_does_not_truncate_a_log_that_has_moved_on() -> None:
    """A delayed "your log diverges" met a log of the same length but another content."""
    network.storm(network.Table(1029, 3, 1), rounds=80)


def test_same_seed_gives_the_same_history() -> None:
    def history() -> object:
        table = network.Table(7, 3)
        network.storm(table, rounds=40)
        return table.leaders, table.committed

    assert history() == history()


def caught(
    make: Callable[..., Raft] = Raft, voters: int = 3, observers: int = 0, **options: Any
) -> bool:
    for seed in range(150):
        try:
            table = network.Table(seed, voters, observers, make=make, **options)
            network.storm(table, rounds=80)
        except AssertionError:
            return True
    return False


def test_voter_that_forgets_its_vote_is_caught() -> None:
    assert caught(persists_votes=False)


def test_leader_that_counts_what_is_not_flushed_is_caught() -> None:
    class Hasty(Raft):
        def append(self, count: int) -> int:
            base = super().append(count)
            self.flushed = self.log.end_offset
            if self.progress is not None:
                self.progress.flushed = self.flushed
                self._commit()
            return base

        def _on_fetch_reply(self, sender: int, reply: Any, now: Any) -> None:
            super()._on_fetch_reply(sender, reply, now)
            if self._out.append is not None:
                self.persisted(self.log.end_offset, now)

    assert caught(Hasty, slowest_flush_ms=200)


def test_leader_that_counts_an_older_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def committed(self: Progress) -> int | None:
        own, start = self.own, self.start_offset
        self.start_offset = -1
        try:
            return rightly(self)
        finally:
            self.own, self.start_offset = own, start

    rightly = Progress.committed
    monkeypatch.setattr(Progress, "committed", committed)
    assert caught()


def test_voter_that_does_not_compare_logs_is_caught() -> None:
    class Gullible(Raft):
        def _would_vote(self, request: VoteRequest) -> bool:
            if self.role not in (Role.UNATTACHED, Role.PROSPECTIVE) and not request.pre_vote:
                return False
            return request.pre_vote or self._voted in (None, request.candidate)

    assert caught(Gullible)


# ---- voters that change ----


def test_two_changes_of_voters_at_once_are_caught() -> None:
    assert caught(observers=3, not_yet=lambda raft: None, slowest_flush_ms=60)


def test_removed_node_that_never_stands_leaves_two_voters_without_a_leader() -> None:
    class Modest(Raft):
        @property
        def stands(self) -> bool:
            return self.is_voter or self.role is Role.LEADER

    assert caught(Modest, voters=2, not_yet=changes.not_yet)


def test_leader_that_leaves_before_its_removal_is_committed_is_caught() -> None:
    class Hurried(Raft):
        @property
        def stands(self) -> bool:
            return self.is_voter

    assert caught(Hurried, voters=2, not_yet=changes.not_yet)
