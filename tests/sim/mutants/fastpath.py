"""Broken variants of fast paths, for the differential run to find.

Each makes fast paths overlook one thing that the general path heeds. What they overlook is hidden
from them at the door: a function of partition, log or group gives another answer while a fast path
is among its callers, and its own to everybody else. So the variants say nothing of how a fast path
is written, and hold for whatever takes its place. One that needs several replicas (acks=all where
too few are in sync) cannot be played on one node: it is in `cluster`, beside this.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from scriba.broker.node import Node
from scriba.broker.partitions.fetch_sessions import FetchSessions, Session, Watched
from scriba.broker.partitions.partition import Partition
from scriba.groups.classic.group import ClassicGroup
from scriba.groups.consumer.group import ConsumerGroup
from scriba.storage.log import Log
from scriba.storage.producers.state import Producers
from tests.sim.mutants.coordinator import Mutant

Patch = pytest.MonkeyPatch

FAST_PATHS: Final = "scriba.broker.fastpath."
DISPATCH: Final = "scriba.broker.api.dispatch"


def asked_by(module: str) -> bool:
    """Whether code of a module, or of a package, is among the callers."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals["__name__"].startswith(module):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def to_fast_paths(patch: Patch, owner: type, name: str, lie: Callable[..., Any]) -> None:
    """Has a method tell fast paths something else."""
    truth = getattr(owner, name)

    def answer(self: Any, *asked: Any, **how: Any) -> Any:
        return (lie if asked_by(FAST_PATHS) else truth)(self, *asked, **how)

    patch.setattr(owner, name, answer)


def frozen(patch: Patch, owner: type, name: str, seen_by: str) -> None:
    """Has an attribute stay what it first was, as far as a module sees."""
    values: dict[Any, Any] = {}
    first: dict[Any, Any] = {}

    def get(self: Any) -> Any:
        return first.setdefault(self, values[self]) if asked_by(seen_by) else values[self]

    patch.setattr(owner, name, property(get, values.__setitem__), raising=False)


def overlooks_that_topics_come_and_go(patch: Patch) -> None:
    frozen(patch, Node, "departures", FAST_PATHS)


def tells_metadata_of_an_older_cluster(patch: Patch) -> None:
    frozen(patch, Node, "topology", DISPATCH)


def overlooks_that_settings_change(patch: Patch) -> None:
    frozen(patch, Partition, "settings", FAST_PATHS)


def takes_any_sequence(patch: Patch) -> None:
    """Batches that come twice, too early or by a fenced producer are taken for new ones."""
    to_fast_paths(patch, Producers, "check", lambda *_: None)


def tells_the_offset_of_the_batch_before(patch: Patch) -> None:
    append = Partition.append
    last: dict[Partition, int] = {}

    def stale(self: Partition, *batch: Any) -> Any:
        base_offset, *rest = append(self, *batch)
        told = last.get(self, base_offset)
        last[self] = base_offset
        return told, *rest

    to_fast_paths(patch, Partition, "append", stale)


def shows_open_transactions(patch: Patch) -> None:
    to_fast_paths(patch, Partition, "readable", lambda self, committed_only: self.high_watermark)


def keeps_aborted_transactions_from_readers(patch: Patch) -> None:
    to_fast_paths(patch, Log, "aborted_transactions", lambda *_: [])


def reads_on_when_no_bytes_are_left(patch: Patch) -> None:
    read = Log.read

    def greedy(self: Log, offset: int, max_bytes: int, *how: Any) -> Any:
        return read(self, offset, 1 << 30, *how)

    to_fast_paths(patch, Log, "read", greedy)


def tells_sessions_what_they_have_heard(patch: Patch) -> None:
    to_fast_paths(patch, Watched, "hears", lambda *_: True)


def reads_the_partitions_of_a_session_in_one_order_for_ever(patch: Patch) -> None:
    to_fast_paths(patch, Session, "answered", lambda *_: None)


def goes_on_with_a_session_at_any_epoch(patch: Patch) -> None:
    to_fast_paths(patch, FetchSessions, "at_epoch", lambda self, id, *_: self._sessions.get(id))


def forgets_nothing_of_a_session(patch: Patch) -> None:
    follow = FetchSessions.follow
    to_fast_paths(
        patch,
        FetchSessions,
        "follow",
        lambda self, session, added, _, now_ms: follow(self, session, added, (), now_ms),
    )


def takes_commits_of_any_member(patch: Patch) -> None:
    for kind in (ClassicGroup, ConsumerGroup):
        to_fast_paths(patch, kind, "check_commit", lambda *_: None)


DIFFERS: Final = "by a fast path, else"

MUTANTS: Final = (
    Mutant(overlooks_that_topics_come_and_go, 8, DIFFERS),
    Mutant(tells_metadata_of_an_older_cluster, 0, DIFFERS, cheap=False),
    Mutant(overlooks_that_settings_change, 0, DIFFERS),
    Mutant(takes_any_sequence, 0, DIFFERS),
    Mutant(tells_the_offset_of_the_batch_before, 0, DIFFERS, cheap=False),
    Mutant(shows_open_transactions, 0, DIFFERS),
    Mutant(keeps_aborted_transactions_from_readers, 0, DIFFERS, cheap=False),
    Mutant(takes_commits_of_any_member, 0, DIFFERS),
    Mutant(reads_on_when_no_bytes_are_left, 0, DIFFERS),
    Mutant(tells_sessions_what_they_have_heard, 0, DIFFERS, cheap=False),
    Mutant(reads_the_partitions_of_a_session_in_one_order_for_ever, 1, DIFFERS),
    Mutant(goes_on_with_a_session_at_any_epoch, 0, DIFFERS, cheap=False),
    Mutant(forgets_nothing_of_a_session, 0, DIFFERS, cheap=False),
)
