"""Where replicas go: what may be asked for, and what is chosen where nobody asks.

Replicas of new partitions are in different racks, then on different machines, and striped over the
brokers.

Leaders go round all active brokers, one rack after the other. From the leader's rack on the
replicas of a partition go round the racks, so that they share one only where there are more of them
than racks; within a rack, too, one broker comes after the other, and one machine after the other.
After each round racks and brokers are shuffled, so that the same brokers do not always stand behind
the same leader. What a rack and what a machine is, `placement.spreading` says, for moves as well.

A rack counts for more than a broker, as in Kafka: the only broker of a rack may get a replica of
every partition, and one that is away gets it before a second one of another rack does. Within its
rack a broker that is fenced or shuts down comes last, and it never leads: that it is away counts
for more than its machine. Unlike Kafka's, leaders are as even over brokers as they can be, whatever
the sizes of racks and machines.

A topic may say how many of its replicas go to which rack, and which of them observe
(`scriba.replica.placement`): then every rack has just as many, voters lead in turn, and observers
come last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import NoReturn, TypeVar

from scriba.controller.image import BrokerImage
from scriba.controller.state import State, fail
from scriba.errors import ErrorCode
from scriba.placement.spreading import BrokerLocation, by_turns, shared
from scriba.settings.placement import PLACEMENT, ReplicaPlacement, replica_placement
from scriba.text import counted

T = TypeVar("T")


def check_replicas(state: State, brokers: Sequence[int], about: str) -> None:
    """KafkaError, which begins with `about`, where these cannot be a partition's replicas."""
    if not brokers:
        refuse_replicas(about, "has no replicas; name at least one broker")
    seen: set[int] = set()
    for broker in sorted(brokers):
        if broker not in state.image.brokers:
            refuse_replicas(about, f"names broker {broker}, which the cluster does not have")
        if broker in seen:
            refuse_replicas(about, f"names broker {broker} twice")
        seen.add(broker)


def refuse_replicas(about: str, why: str) -> NoReturn:
    fail(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{about} {why}")


def check_racks(state: State, text: str | None) -> ReplicaPlacement | None:
    """The placement that a topic asks for; KafkaError where it names a rack that nobody is in."""
    placement = replica_placement(text)
    if placement is None:
        return None
    known = {broker.rack for broker in state.image.brokers.values()}
    for rack in placement.racks:
        if rack not in known:
            there = ", ".join(sorted(filter(None, known))) or "no rack (broker.rack)"
            fail(
                ErrorCode.INVALID_CONFIG,
                f"{PLACEMENT} names rack {rack}, where no broker is; they are in {there}",
            )
    return placement


def check_placement(
    state: State,
    brokers: Sequence[int],
    about: str,
    placement: ReplicaPlacement | None,
    before: Sequence[int] | None = None,
) -> frozenset[int]:
    """Those of the replicas that would observe; KafkaError where the placement forbids them."""
    if placement is None:
        return frozenset()
    known = state.image.brokers
    racks = {broker: known[broker].rack for broker in brokers}
    there = None
    if before is not None:
        there = [known[broker].rack for broker in before if broker in known]
    complaint = placement.complaint(racks.values(), there)
    if complaint is not None:
        refuse_replicas(about, complaint)
    observing = placement.observing(racks)
    if brokers[0] in observing:
        refuse_replicas(
            about, f"names observer {brokers[0]} first; the first replica is to lead, name a voter"
        )
    return observing


class _Rack:
    """The brokers of one rack, those that are active and those that are not."""

    __slots__ = ("away", "ready", "turn")

    def __init__(self) -> None:
        self.ready: list[BrokerLocation] = []
        self.away: list[BrokerLocation] = []
        self.turn = 0

    def spread(self) -> None:
        self.ready = by_turns(self.ready)
        self.away = by_turns(self.away)

    def shuffle(self, below: Callable[[int], int]) -> None:
        _shuffle(self.ready, below)
        _shuffle(self.away, below)
        self.spread()

    def from_leader(self, leader: int, turn: int) -> "_Ring":
        """The brokers of the leader's rack in the order in which they get replicas."""
        return _Ring(_rotated(self.ready, leader), _rotated(self.away, turn))

    def next(self) -> "_Ring":
        """The same of another rack, which begins with another broker each time."""
        ring = _Ring(_rotated(self.ready, self.turn), _rotated(self.away, self.turn))
        self.turn += 1
        return ring


class _Ring:
    """The brokers of one rack that have no replica of a partition yet."""

    __slots__ = ("away", "ready")

    def __init__(self, ready: list[BrokerLocation], away: list[BrokerLocation]) -> None:
        self.ready = ready
        self.away = away

    def take(self, replicas: list[BrokerLocation]) -> None:
        """Gives the next broker a replica, if there is one: the first whose machine has fewest."""
        free = self.ready or self.away
        best, least = 0, len(replicas) + 1
        for at, place in enumerate(free):
            machines = shared(place, replicas)[1]
            if machines < least:
                best, least = at, machines
            if not machines:
                break
        if free:
            replicas.append(free.pop(best))


def place(
    brokers: Iterable[BrokerImage],
    replication_factor: int,
    below: Callable[[int], int],
    placement: ReplicaPlacement | None = None,
) -> Iterator[tuple[int, ...]]:
    """Replica lists without end, one per new partition, the preferred leader first.

    INVALID_REPLICATION_FACTOR at once when there are too few brokers, or no replica is asked for,
    as `default.replication.factor` may say. A broker that is fenced or
    shuts down takes new replicas only where its rack has no others: it is expected back, and a
    topic that is made in the middle of a restart needs all its replicas, too. One whose directories
    are all cordoned takes none.
    """
    if replication_factor < 1:
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas are no topic; ask for one or more, and set "
            "default.replication.factor to that where nobody asks",
        )
    by_name: dict[str, _Rack] = {}
    cordoned = 0
    for broker in sorted(brokers):
        if not broker.takes_new:
            cordoned += 1
            continue
        rack = by_name.setdefault(broker.rack or "", _Rack())
        (rack.ready if broker.active else rack.away).append(broker.place)
    racks = [by_name[name] for name in sorted(by_name)]
    for rack in racks:
        rack.spread()
    away = sum(len(rack.away) for rack in racks)
    ready = sum(len(rack.ready) for rack in racks)
    if not ready:
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"no broker is active (fenced: {away}{_and(cordoned)}); start one, or wait for it to "
            "catch up",
        )
    if replication_factor > ready + away:
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"each replica takes a broker of its own (at hand: {ready + away}{_and(cordoned)}); "
            "start more, or ask for fewer replicas",
        )
    if placement is not None:
        return _by_placement(by_name, placement, below)
    return _stripes(racks, ready, replication_factor, below)


def _by_placement(
    racks: dict[str, _Rack], placement: ReplicaPlacement, below: Callable[[int], int]
) -> Iterator[tuple[int, ...]]:
    """Checks at once that every rack has enough brokers, and one of the voters' an active one."""
    for name, count in placement.racks.items():
        rack = racks.get(name, _Rack())
        takers = len(rack.ready) + len(rack.away)
        if takers < count:
            there = counted(takers, "broker")
            fail(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"rack {name} has {there} to take replicas, {PLACEMENT} asks for {count}",
            )
    voters = {name: racks[name] for name in placement.voters}
    if not any(rack.ready for rack in voters.values()):
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"no broker in the racks of the voters is active ({', '.join(voters)})",
        )
    return _placed_stripes(racks, placement, below)


def _placed_stripes(
    racks: dict[str, _Rack], placement: ReplicaPlacement, below: Callable[[int], int]
) -> Iterator[tuple[int, ...]]:
    names = list(placement.voters)
    ready = sum(len(racks[name].ready) for name in names)
    start = below(ready)
    while True:
        leaders = _leaders([racks[name] for name in names])
        for turn in range(start, start + ready):
            at, leader = leaders[turn % ready]
            rings = {names[at]: racks[names[at]].from_leader(leader, turn)}
            rings |= {name: racks[name].next() for name in _rotated(names, at)[1:]}
            chosen: list[BrokerLocation] = []
            for each in range(max(placement.voters.values())):
                for name, ring in rings.items():
                    if each < placement.voters[name]:
                        ring.take(chosen)
            for name, count in placement.observers.items():
                ring = racks[name].next()
                for _ in range(count):
                    ring.take(chosen)
            yield _ids(chosen)
        for name in placement.racks:
            racks[name].shuffle(below)


def _and(cordoned: int) -> str:
    return f", all directories cordoned: {cordoned}" if cordoned else ""


def _stripes(
    racks: list[_Rack], ready: int, replication_factor: int, below: Callable[[int], int]
) -> Iterator[tuple[int, ...]]:
    start = below(ready)
    while True:
        leaders = _leaders(racks)
        for turn in range(start, start + ready):
            yield _stripe(racks, *leaders[turn % ready], turn, replication_factor)
        if len(racks) > 1:
            _shuffle(racks, below)
        for rack in racks:
            rack.shuffle(below)


def _leaders(racks: list[_Rack]) -> list[tuple[int, int]]:
    """Where each active broker is, its rack and its place there, one of each rack after another."""
    longest = max(len(rack.ready) for rack in racks)
    return [
        (at, place)
        for place in range(longest)
        for at, rack in enumerate(racks)
        if place < len(rack.ready)
    ]


def _stripe(
    racks: list[_Rack], at: int, leader: int, turn: int, replication_factor: int
) -> tuple[int, ...]:
    """One partition's replicas."""
    rings = [racks[at].from_leader(leader, turn)]
    rings += [rack.next() for rack in _rotated(racks, at)[1:replication_factor]]
    chosen: list[BrokerLocation] = []
    turns = cycle(rings)
    while len(chosen) < replication_factor:
        next(turns).take(chosen)
    return _ids(chosen)


def _ids(chosen: list[BrokerLocation]) -> tuple[int, ...]:
    return tuple(place.id for place in chosen)


def _rotated(items: list[T], by: int) -> list[T]:
    cut = by % len(items) if items else 0
    return items[cut:] + items[:cut]


def _shuffle(items: list[T], below: Callable[[int], int]) -> None:
    for i in range(len(items) - 1, 0, -1):
        j = below(i + 1)
        items[i], items[j] = items[j], items[i]
