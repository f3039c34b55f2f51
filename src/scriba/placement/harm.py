"""What it would hurt if a node went for a moment. Nothing: it may be restarted.

One rule, for whoever asks: `scriba cluster may-restart`, and `/ready` of a node.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

HEARD_MS: Final = 10_000
"""A voter that was heard of within this time is there."""


class Held(NamedTuple):
    """A partition, as far as it matters who goes."""

    name: str
    replicas: Sequence[int]
    isr: Sequence[int]
    adding: Sequence[int]
    least: int
    """`min.insync.replicas` of its topic."""


class Harm:
    """Looks at one thing after the other, and knows in the end."""

    def __init__(self, node: int) -> None:
        self.node = node
        self._hurts: list[str] = []
        self._filled: list[str] = []

    def to_quorum(self, heard_ms: Mapping[int, int]) -> None:
        """By voter, how long ago it was heard of; 0 for the one that leads."""
        if self.node not in heard_ms:
            return
        there = [v for v, ms in heard_ms.items() if v != self.node and ms < HEARD_MS]
        voters, needed = len(heard_ms), len(heard_ms) // 2 + 1
        if voters == 1:
            self._hurts.append("it is the only voter: nothing can be changed while it is gone")
        elif len(there) < needed:
            self._hurts.append(
                f"the quorum would have {len(there)} of {voters} voters, and needs {needed}"
            )

    def to_partition(self, held: Held) -> None:
        if self.node in held.adding:
            self._filled.append(held.name)
        if self.node not in held.isr:
            return
        others = len(held.isr) - 1
        needed = min(held.least, len(held.replicas))
        if not others:
            self._hurts.append(f"{held.name} would be offline: no other replica is in sync")
        elif others < needed:
            self._hurts.append(
                f"{held.name} would take no acks=all: {others} in sync, and min.insync.replicas "
                f"is {needed}"
            )

    def told(self) -> list[str]:
        """What it would hurt, a line each."""
        if not self._filled:
            return self._hurts
        named = ", ".join(self._filled[:3]) + (" and others" if len(self._filled) > 3 else "")
        return [*self._hurts, f"it is being given replicas: {named} would take longer"]


def harm(node: int, heard_ms: Mapping[int, int], partitions: Iterable[Held]) -> list[str]:
    found = Harm(node)
    found.to_quorum(heard_ms)
    for held in partitions:
        found.to_partition(held)
    return found.told()
