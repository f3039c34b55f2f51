"""What an assignor is told and what it answers."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions; a topic without partitions is absent."""


class MemberSpec(NamedTuple):
    topics: frozenset[bytes]
    """Ids of the topics it subscribes to, those that exist."""
    target: Assignment
    """What the last target gave it: a sticky assignor starts from there."""
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Assignment]]
"""Members by id, number of partitions by topic id -> the new target of every member."""
