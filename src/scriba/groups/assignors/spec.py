"""What an assignor is told and what it answers."""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

AT_ONCE: Final = 250
"""Members that an assignor goes through before others have their turn."""

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions; a topic without partitions is absent."""


class MemberSpec(NamedTuple):
    topics: frozenset[bytes]
    """Ids of the topics it subscribes to, those that exist."""
    target: Assignment
    """What the last target gave it: a sticky assignor starts from there."""
    instance_id: str | None = None


Assigning = Generator[None, None, dict[str, Assignment]]
"""Ends with the new target of every member, and gives way on the way there."""

Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], Assigning]
"""Members by id, number of partitions by topic id -> the new target of every member."""
