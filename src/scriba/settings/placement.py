"""Which racks hold the replicas of a topic, and whether they vote or observe.

`voters=2@zone-a,1@zone-b;observers=1@zone-c` asks for two replicas of each partition in zone-a and
one in zone-b that vote, and for one in zone-c that observes: it copies, and counts for nothing.
What a replica is follows from its broker's rack alone, so the metadata needs no further word for
it: it observes in a rack that is named for observers, and votes in any other.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

PLACEMENT: Final = "scriba.replica.placement"
FORM: Final = (
    "must be voters=COUNT@RACK,...;observers=COUNT@RACK,... such as "
    "voters=2@zone-a,1@zone-b;observers=1@zone-c"
)
_ITEM: Final = re.compile(r"([0-9]{1,4})@([^\s@,;=]+)", re.ASCII)
_KINDS: Final = ("voters", "observers")


class ReplicaPlacement(NamedTuple):
    """How many replicas of each partition go to which rack."""

    voters: Mapping[str, int]
    observers: Mapping[str, int]

    @property
    def voter_count(self) -> int:
        return sum(self.voters.values())

    @property
    def total(self) -> int:
        return self.voter_count + sum(self.observers.values())

    @property
    def racks(self) -> dict[str, int]:
        return {**self.voters, **self.observers}

    def observing(self, racks: Mapping[int, str | None]) -> frozenset[int]:
        """Those of the brokers, each with its rack, whose replicas observe."""
        return frozenset(broker for broker, rack in racks.items() if rack in self.observers)

    def text(self) -> str:
        kinds = zip(_KINDS, self, strict=True)
        return ";".join(
            f"{kind}={','.join(f'{count}@{rack}' for rack, count in racks.items())}"
            for kind, racks in kinds
            if racks
        )

    def complaint(
        self, after: Iterable[str | None], before: Iterable[str | None] | None = None
    ) -> str | None:
        """What is wrong with replicas in these racks, None where it is nothing.

        Where replicas were there before, in other numbers than asked for, each rack may have as
        many as it had, as it should have, or something between: a move goes towards the placement
        or leaves it as it is.
        """
        wanted: Counter[str | None] = Counter(self.racks)
        now = Counter(after)
        was = wanted if before is None else Counter(before)
        for rack in sorted({*wanted, *now, *was}, key=str):
            asked, count, had = wanted[rack], now[rack], was[rack]
            if not min(asked, had) <= count <= max(asked, had):
                where = f"in rack {rack}" if rack else "on brokers without a rack"
                return f"puts {count} {where}; {PLACEMENT} asks for {asked} there"
        return None


def parse(text: str) -> ReplicaPlacement:
    """ValueError, with what is wrong in words, where the text is no placement."""
    found: dict[str, dict[str, int]] = {}
    for part in text.split(";"):
        kind, equals, items = part.partition("=")
        kind = kind.strip()
        if not equals or kind not in _KINDS:
            raise ValueError(FORM)
        if kind in found:
            raise ValueError(f"names {kind} twice")
        found[kind] = {}
        for item in items.split(","):
            match = _ITEM.fullmatch(item.strip())
            if match is None:
                raise ValueError(FORM)
            count, rack = int(match[1]), match[2]
            if not count:
                raise ValueError(f"asks for no replicas in rack {rack}; leave the rack out")
            if any(rack in racks for racks in found.values()):
                raise ValueError(f"names rack {rack} twice; a rack has voters or observers")
            found[kind][rack] = count
    if not found.get("voters"):
        raise ValueError("names no voters; somebody has to lead")
    return ReplicaPlacement(found["voters"], found.get("observers", {}))


def refused(text: str | None) -> str | None:
    """What is wrong with a value of the setting."""
    try:
        replica_placement(text)
    except ValueError as error:
        return str(error)
    return None


@lru_cache(maxsize=256)
def replica_placement(text: str | None) -> ReplicaPlacement | None:
    """The placement that a topic's setting asks for, None where it has none."""
    return None if text is None else parse(text)
