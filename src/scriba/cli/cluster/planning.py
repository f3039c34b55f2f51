"""Where replicas should go when a broker is to be emptied, or when all should hold as much.

Pure: facts in, a plan out. A plan names only partitions whose list of replicas changes. Data is
moved as seldom as possible: a balance takes from those who have more than the others just what is
too much, and leaders are spread by the order of a list, which moves nothing.

What is preferred, in this order: another rack than the partition's other replicas have; another
machine (nodes that advertise one host are one); a broker with fewer replicas; one with fewer bytes.
None of it is ever a reason to refuse.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scriba.client import TopicPartition

Placement = dict[TopicPartition, tuple[int, ...]]
"""Replicas of each partition, the preferred leader first."""


class CannotPlan(Exception):
    """What was asked for cannot be had, with the partition that shows it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, as far as it matters where replicas go."""

    id: int
    host: str
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    placed: Placement
    """As it is, or will be when what is under way is done."""
    sizes: Mapping[TopicPartition, int]
    """Bytes of one replica."""
    places: Mapping[int, Place]
    """Brokers that may be given replicas."""

    def size(self, where: TopicPartition) -> int:
        return self.sizes.get(where, 0)


@dataclass(frozen=True, slots=True)
class Load:
    """What one broker has."""

    leaders: int = 0
    replicas: int = 0
    bytes: int = 0


def loads(placed: Placement, facts: Facts, brokers: Iterable[int] = ()) -> dict[int, Load]:
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for where, brokers_of in placed.items():
        leaders[brokers_of[0]] += 1
        for broker in brokers_of:
            replicas[broker] += 1
            held[broker] += facts.size(where)
    everyone = sorted({*replicas, *facts.places, *brokers})
    return {broker: Load(leaders[broker], replicas[broker], held[broker]) for broker in everyone}


def copied(before: Placement, after: Placement, facts: Facts) -> int:
    """Bytes that go over the network."""
    return sum(
        facts.size(where) * len({*replicas} - {*before[where]}) for where, replicas in after.items()
    )


class _Board:
    """The placement while it is worked on, with the loads that follow from it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.placed = dict(facts.placed)
        self.counts: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.holding: dict[int, set[TopicPartition]] = {broker: set() for broker in facts.places}
        for where, replicas in self.placed.items():
            for broker in replicas:
                self._count(where, broker, 1)

    def _count(self, where: TopicPartition, broker: int, by: int) -> None:
        self.counts[broker] += by
        self.bytes[broker] += by * self.facts.size(where)
        held = self.holding.setdefault(broker, set())
        (held.add if by > 0 else held.discard)(where)

    def replace(self, where: TopicPartition, old: int, new: int) -> None:
        self.placed[where] = tuple(new if b == old else b for b in self.placed[where])
        self._count(where, old, -1)
        self._count(where, new, 1)

    def shared(self, where: TopicPartition, broker: int, without: int) -> tuple[int, int]:
        """How many other replicas are in this broker's rack, and on its machine."""
        places = self.facts.places
        own = places[broker]
        others = [
            places[b] for b in self.placed[where] if b in places and b not in (broker, without)
        ]
        racks = sum(own.rack is not None and other.rack == own.rack for other in others)
        return racks, sum(other.host == own.host for other in others)

    def best(self, where: TopicPartition, instead_of: int, among: Iterable[int]) -> int | None:
        free = [broker for broker in among if broker not in self.placed[where]]
        return min(
            free,
            key=lambda b: (*self.shared(where, b, instead_of), self.counts[b], self.bytes[b], b),
            default=None,
        )

    def changes(self) -> Placement:
        before = self.facts.placed
        return {w: self.placed[w] for w in sorted(before) if self.placed[w] != before[w]}


def drain(facts: Facts, leaving: Collection[int]) -> Placement:
    """Empties brokers: each of their replicas goes to the one that suits it best."""
    board = _Board(facts)
    staying = [broker for broker in sorted(facts.places) if broker not in leaving]
    for where in sorted(facts.placed):
        for broker in facts.placed[where]:
            if broker not in leaving:
                continue
            new = board.best(where, broker, staying)
            if new is None:
                raise CannotPlan(
                    f"{where} needs {len(facts.placed[where])} brokers, and {len(staying)} would "
                    "stay"
                )
            board.replace(where, broker, new)
    _spread_leaders(board, staying)
    return board.changes()


def balance(facts: Facts) -> Placement:
    """Has all brokers hold as many replicas, and lead as many partitions, as nearly as can be."""
    board = _Board(facts)
    brokers = sorted(facts.places)
    if brokers:
        _spread_racks(board, brokers)
        _even_out(board, brokers)
        _spread_leaders(board, brokers)
    return board.changes()


def _spread_racks(board: _Board, brokers: list[int]) -> None:
    """Moves replicas that share a rack while another rack has none of them."""
    for where in sorted(board.placed):
        for broker in board.placed[where]:
            if broker not in board.facts.places:
                continue
            now = board.shared(where, broker, broker)[0]
            new = board.best(where, broker, brokers) if now else None
            if new is not None and board.shared(where, new, broker)[0] < now:
                board.replace(where, broker, new)


def _even_out(board: _Board, brokers: list[int]) -> None:
    """Takes one replica at a time from who has most to who has fewest, while that evens out."""
    stuck: set[tuple[int, int]] = set()
    while True:
        pairs = [
            (full, empty)
            for full in brokers
            for empty in brokers
            if board.counts[full] - board.counts[empty] > 1 and (full, empty) not in stuck
        ]
        if not pairs:
            return
        full, empty = max(
            pairs, key=lambda p: (board.counts[p[0]] - board.counts[p[1]], -p[0], -p[1])
        )
        where = _movable(board, full, empty)
        if where is None:
            stuck.add((full, empty))
        else:
            board.replace(where, full, empty)
            stuck.clear()


def _movable(board: _Board, full: int, empty: int) -> TopicPartition | None:
    """The smallest partition that can go from one to the other without a worse spread."""
    can = [
        where
        for where in board.holding[full]
        if empty not in board.placed[where]
        and board.shared(where, empty, full) <= board.shared(where, full, full)
    ]
    return min(can, key=lambda where: (board.facts.size(where), where), default=None)


def _spread_leaders(board: _Board, brokers: list[int]) -> None:
    """Changes the order of replicas until no broker is to lead two more than another could.

    A path from who leads too much to who leads too little: each partition on it gets the next
    broker of the path, which has a replica of it, as its first.
    """
    while True:
        firsts: dict[int, list[TopicPartition]] = {broker: [] for broker in brokers}
        for where in sorted(board.placed):
            if board.placed[where][0] in firsts:
                firsts[board.placed[where][0]].append(where)
        path = _leader_path(board, firsts)
        if path is None:
            return
        for where, broker in path:
            rest = tuple(b for b in board.placed[where] if b != broker)
            board.placed[where] = (broker, *rest)


def _leader_path(
    board: _Board, firsts: dict[int, list[TopicPartition]]
) -> list[tuple[TopicPartition, int]] | None:
    for most in sorted(firsts, key=lambda b: (-len(firsts[b]), b)):
        came: dict[int, tuple[int, TopicPartition]] = {}
        queue = deque([most])
        while queue:
            at = queue.popleft()
            for where in firsts[at]:
                for broker in board.placed[where][1:]:
                    if broker in firsts and broker != most and broker not in came:
                        came[broker] = (at, where)
                        queue.append(broker)
        few = [b for b in came if len(firsts[b]) <= len(firsts[most]) - 2]
        if few:
            broker = min(few, key=lambda b: (len(firsts[b]), b))
            path = []
            while broker != most:
                before, where = came[broker]
                path.append((where, broker))
                broker = before
            return path
    return None
