"""What operators are told of elections: partitions without a leader, leaders that may lack records.

Partitions without a leader are the active controller's to tell of: once they have been there for a
while, for a restart leaves some for a moment, again whenever they have become more for that long,
and when all are led. An election that may have lost records is told by the broker that was elected,
so by one node and once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import Counting, EventLog
from scriba.controller.image import RECOVERING, ClusterImage, Delta
from scriba.events import EventKind

if TYPE_CHECKING:
    from scriba.broker.observe.events import Note
    from scriba.controller.machine import Controller
    from scriba.instant import Instant

PATIENCE_MS: Final = 2000
"""How long a partition is without a leader before that is worth an operator's time."""
NAMED: Final = 10
"""Partitions named in one event; of the others there is a number."""


class ElectionHost(Counting, EventLog, Protocol):
    @property
    def id(self) -> int: ...


class OfflineWatch:
    """Looks, on the active controller, whether partitions stay without a leader."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._since: int | None = None
        """Since when there are more than was told."""
        self._told = 0
        """How many of those that are there were told of."""

    def look(self, machine: Controller | None, now: Instant) -> None:
        count = 0 if machine is None else machine.offline_count
        if self._told and not count and machine is not None:
            self._note(EventKind.PARTITIONS_LED, "cluster", "every partition has a leader")
        self._told = min(self._told, count)
        if machine is None or count == self._told:
            self._since = None
        elif self._since is None:
            self._since = now.mono_ms
        elif now.mono_ms - self._since >= PATIENCE_MS:
            self._since, self._told = None, count
            text = f"{count} without a leader: {_listed(machine.offline(NAMED), count)}"
            self._note(EventKind.PARTITIONS_LEADERLESS, "cluster", text)


def tell_changes(node: ElectionHost, delta: Delta, image: ClusterImage) -> None:
    """Notes what a change of the metadata means to an operator of this broker."""
    elected: list[str] = []
    for topic_id, changes in delta.partitions.items():
        topic = image.topics_by_id[topic_id]
        for index, before in changes.items():
            after = topic.partitions[index]
            if (
                after.leader == node.id
                and after.leader_recovery_state == RECOVERING
                and (before is None or before.leader_epoch < after.leader_epoch)
                and len(after.replicas) > 1  # else nobody else could have had more
            ):
                elected.append(f"{topic.name}-{index}")
    if elected:
        node.counters.unclean_elections += len(elected)
        text = f"leads {len(elected)}: {_listed(elected[:NAMED], len(elected))}"
        node.note(EventKind.UNCLEAN_ELECTION, "cluster", text)
    if delta.security and (unenforced := image.security.unenforced()):
        node.note(EventKind.RULES_NOT_ENFORCED, "cluster", f"the cluster has {unenforced}")
    for kind in sorted(delta.unknown):
        node.note(EventKind.RECORDS_UNKNOWN, "cluster", f"records of type {kind} are passed over")


def _listed(named: Iterable[str], count: int) -> str:
    names = list(named)
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
