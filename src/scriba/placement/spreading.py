"""What replicas of one partition should not share: a rack, then a machine.

The one rule for new partitions (`controller.partitions.placement`) and for moves
(`placement.planning`). Nodes that advertise one host are one machine, and brokers without a rack
are one rack. Sharing is never a reason to refuse: where there is nothing else, replicas share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerLocation:
    """A broker, as far as it matters where replicas go."""

    id: int
    host: str
    rack: str | None = None


def shared(own: BrokerLocation, others: Iterable[BrokerLocation]) -> tuple[int, int]:
    """With how many of the others a place shares its rack, and with how many its machine.

    The less of two is the better place.
    """
    racks = machines = 0
    for other in others:
        racks += other.rack == own.rack
        machines += other.host == own.host
    return racks, machines


def by_turns(places: Sequence[BrokerLocation]) -> list[BrokerLocation]:
    """The same places as a ring on which those of one machine are as far apart as they can be.

    The largest machine has one in each of as many rows as it has brokers; the other machines fill
    these up, one row after the other, so that no row has two of a machine. Where all have one
    machine, or each its own, the order stays.

    Neighbours on the ring are on different machines up to the number of all brokers divided by the
    largest machine's: up to there replicas can be on different machines *and* as many on each
    broker, and on the ring they are.
    """
    machines: dict[str, list[BrokerLocation]] = {}
    for place in places:
        machines.setdefault(place.host, []).append(place)
    if len(machines) in (0, 1, len(places)):
        return list(places)
    grouped = sorted(machines.values(), key=len, reverse=True)
    rows = len(grouped[0])
    column_by_column = [place for machine in grouped for place in machine]
    return [place for row in range(rows) for place in column_by_column[row::rows]]
