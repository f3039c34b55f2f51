"""Where replicas should go when a broker is to be emptied or filled, or when all should hold as
much.

Pure: facts in, a plan out. A plan names only partitions whose list of replicas changes. Data is
moved as seldom as possible: a balance takes from those who have more than the others just what is
too much, and leaders are spread by the order of a list, which moves nothing.

What is preferred, in this order: another rack than the partition's other replicas have; another
machine (`placement.spreading`); a broker with fewer replicas; one with fewer bytes.
None of it is ever a reason to refuse. A broker whose log directories are all cordoned keeps what it
has, and is given neither replicas nor leaders. But where a topic says which racks hold how many of
its replicas (`scriba.replica.placement`), each stays in its rack, observers never come first, and a
balance gives each rack what was asked for. Where nothing else decides, partitions are taken in the
order in which the facts name them.

Each plan comes in two forms: `drain`, `fill`, `balance` and `resize` return it, `draining`,
`filling`, `balancing` and `resizing` make it in short steps, for an event loop
that has other work besides.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from scriba.placement.spreading import BrokerLocation, shared
from scriba.settings.placement import ReplicaPlacement
from scriba.text import counted

K = TypeVar("K", bound=tuple[str, int])
"""A partition: topic and index."""

T = TypeVar("T")

COORDINATORS: Final = ("__consumer_offsets", "__transaction_state")

Placement = dict[K, tuple[int, ...]]
"""Replicas of each partition, the preferred leader first."""

Steps = Generator[None, None, Placement[K]]


class CannotPlan(Exception):
    """What was asked for cannot be had, with the partition that shows it."""


@dataclass(frozen=True, slots=True)
class Facts(Generic[K]):
    placed: Placement[K]
    """As it is, or will be when what is under way is done."""
    sizes: Mapping[K, int]
    """Bytes of one replica."""
    places: Mapping[int, BrokerLocation]
    """Brokers that live, and may be given replicas unless they are closed."""
    racks: Mapping[int, str | None] = field(default_factory=dict)
    """Where all brokers are, those that are given none as well."""
    asked: Mapping[str, ReplicaPlacement] = field(default_factory=dict)
    """Topics that say where their replicas are to be."""
    closed: frozenset[int] = frozenset()
    """Those of `places` that keep what they hold and are given nothing: all of their log
    directories are cordoned."""
    fixed: Collection[K] = frozenset()
    """Partitions whose replicas stay where they are."""
    leaderless: Mapping[K, Collection[int]] = field(default_factory=dict)
    """Partitions that nobody leads, and their replicas that do not live: no move of them ends
    before one of those is back."""

    def rack(self, broker: int) -> str | None:
        return self.places[broker].rack if broker in self.places else self.racks.get(broker)

    def may_lead(self, where: K, broker: int) -> bool:
        asked = self.asked.get(where[0])
        return asked is None or self.rack(broker) not in asked.observers

    def may_replace(self, where: K, old: int, new: int) -> bool:
        return where[0] not in self.asked or self.rack(old) == self.rack(new)

    def size(self, where: K) -> int:
        return self.sizes.get(where, 0)

    def takers(self) -> list[int]:
        """Brokers that may be given replicas, and leaders by the order of a list."""
        return [broker for broker in sorted(self.places) if broker not in self.closed]

    def away(self, where: K, replicas: Iterable[int]) -> list[int]:
        """Those of a partition's replicas that do not live, without the ones that observe."""
        return sorted(b for b in replicas if b not in self.places and self.may_lead(where, b))

    def awaited(self, where: K, target: Iterable[int]) -> list[int]:
        """Brokers that do not live, and for which a move to these replicas would wait: it ends when
        all of the target that vote are in sync. Another order alone waits for nobody."""
        wanted = {*target}
        return [] if wanted == {*self.placed[where]} else self.holding_up(where, wanted)

    def holding_up(self, where: K, target: Iterable[int]) -> list[int]:
        """The same of a move that is under way."""
        return sorted({*self.away(where, target), *self.leaderless.get(where, ())})


@dataclass(frozen=True, slots=True)
class Load:
    """What one broker has."""

    leaders: int = 0
    replicas: int = 0
    bytes: int = 0


def loads(placed: Placement[K], facts: Facts[K], brokers: Iterable[int] = ()) -> dict[int, Load]:
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


def copied(before: Placement[K], after: Placement[K], facts: Facts[K]) -> int:
    """Bytes that go over the network."""
    return sum(
        facts.size(where) * len({*replicas} - {*before[where]}) for where, replicas in after.items()
    )


@dataclass(frozen=True, slots=True)
class Shortage:
    """A rack that has fewer brokers than a topic asks for, whatever is moved."""

    topic: str
    rack: str
    asked: int
    brokers: int
    """Those of the rack that take replicas."""
    partitions: int
    """How many have fewer replicas there than asked for."""


def shortages(facts: Facts[K], plan: Placement[K]) -> list[Shortage]:
    """What placements ask for that no plan can give, as it is when this one is carried out."""
    takers: dict[str | None, set[int]] = {}
    for broker in facts.takers():
        takers.setdefault(facts.rack(broker), set()).add(broker)
    short: Counter[tuple[str, str]] = Counter()
    for where, before in facts.placed.items():
        asked = facts.asked.get(where[0])
        for rack, count in asked.racks.items() if asked is not None else ():
            held = {broker for broker in plan.get(where, before) if facts.rack(broker) == rack}
            if len(held | takers.get(rack, set())) < count:
                short[where[0], rack] += 1
    return [
        Shortage(topic, rack, facts.asked[topic].racks[rack], len(takers.get(rack, ())), partitions)
        for (topic, rack), partitions in short.items()
    ]


# ---- the plans ----


def drain(facts: Facts[K], leaving: Collection[int]) -> Placement[K]:
    """Empties brokers: each of their replicas goes to the one that suits it best."""
    return _whole(draining(facts, leaving))


def fill(facts: Facts[K], joined: Collection[int]) -> Placement[K]:
    """Gives brokers that hold less than the others their share, and moves nothing else."""
    return _whole(filling(facts, joined))


def balance(facts: Facts[K]) -> Placement[K]:
    """Has all brokers hold as many replicas, and lead as many partitions, as nearly as can be."""
    return _whole(balancing(facts))


def resize(
    facts: Facts[K], factor: int, off: Collection[int], in_sync: Mapping[K, Collection[int]]
) -> Placement[K]:
    """Gives every partition so many replicas, none of them on a broker that is to be off."""
    return _whole(resizing(facts, factor, off, in_sync))


def waves(plan: Placement[K], before: Placement[K]) -> list[K]:
    """`in_order`, at once."""
    return _whole(in_order(plan, before))


def draining(facts: Facts[K], leaving: Collection[int], partial: bool = False) -> Steps[K]:
    """CannotPlan where a replica has no place to go to; or with `partial` it stays."""
    board = _Board(facts)
    yield from board.fill()
    staying = [broker for broker in sorted(facts.places) if broker not in leaving]
    takers = [broker for broker in facts.takers() if broker not in leaving]
    for where, replicas in facts.placed.items():
        yield
        if where in facts.fixed:
            continue
        for broker in replicas:
            if broker not in leaving:
                continue
            new = board.best(where, broker, takers)
            if new is None and partial:
                continue
            if new is None:
                raise CannotPlan(_too_few(facts, where, broker, staying))
            board.replace(where, broker, new)
    yield from _spread_leaders(board, staying, takers)
    return (yield from board.changes())


def _too_few(facts: Facts[K], where: K, broker: int, staying: list[int]) -> str:
    """Why a replica of a broker that is to be emptied has no place to go to."""
    topic, index = where
    replicas = facts.placed[where]
    cordoned = [b for b in staying if b in facts.closed and b not in replicas]
    told = f"; all log directories of {_listed(cordoned)} are cordoned" if cordoned else ""
    if topic in facts.asked:
        return (
            f"{topic}-{index} needs another broker in rack {facts.rack(broker)}, by its "
            f"scriba.replica.placement, and none would stay{told}"
        )
    stay = len(staying) - len(cordoned)
    needed = counted(len(replicas), "broker")
    return f"{topic}-{index} needs {needed}, and {stay} would stay{told}"


def _listed(brokers: Iterable[int]) -> str:
    named = list(brokers)
    return f"broker{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"


def filling(facts: Facts[K], joined: Collection[int]) -> Steps[K]:
    board = _Board(facts)
    yield from board.fill()
    brokers = sorted(facts.places)
    takers = [broker for broker in facts.takers() if broker in joined]
    yield from _even_out(board, brokers, takers)
    yield from _spread_leaders(board, brokers, takers)
    return (yield from board.changes())


def balancing(facts: Facts[K]) -> Steps[K]:
    board = _Board(facts)
    yield from board.fill()
    brokers = sorted(facts.places)
    if brokers:
        takers = facts.takers()
        yield from _place_as_asked(board, takers)
        yield from _spread_out(board, takers)
        yield from _even_out(board, brokers, takers)
        yield from _spread_leaders(board, brokers, takers)
    return (yield from board.changes())


def resizing(
    facts: Facts[K], factor: int, off: Collection[int], in_sync: Mapping[K, Collection[int]]
) -> Steps[K]:
    """Fewest moves: who has a replica keeps it if it may, the preferred leader first. Where some
    go, those in sync stay before those that are not, then those that share least with others."""
    board = _Board(facts)
    yield from board.fill()
    takers = [broker for broker in facts.takers() if broker not in off]
    for where, replicas in facts.placed.items():
        yield
        if where in facts.fixed:
            continue
        may = [broker for broker in replicas if broker not in off]
        kept: list[int] = []
        while may and len(kept) < factor:
            may.remove(best := board.to_keep(may, kept, in_sync.get(where, ())))
            kept.append(best)
        kept.sort(key=replicas.index)
        while len(kept) < factor:
            free = [broker for broker in takers if broker not in kept]
            if not free:
                topic, index = where
                raise CannotPlan(f"{topic}-{index} has no other broker for {factor} replicas")
            kept.append(board.least(free, kept))
        board.put(where, tuple(kept))
    return (yield from board.changes())


def _whole(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: T = end.value
            return made


def in_order(plan: Placement[K], before: Placement[K]) -> Generator[None, None, list[K]]:
    """In which order partitions go: what copies nothing first, coordinators' topics last."""
    orders: list[K] = []
    copies: list[K] = []
    last: list[K] = []
    for where, replicas in plan.items():
        yield
        if where[0] in COORDINATORS:
            last.append(where)
        else:
            (orders if {*replicas} <= {*before[where]} else copies).append(where)
    return [*orders, *copies, *last]


# ---- how they are made ----


class _Board(Generic[K]):
    """The placement while it is worked on, with the loads that follow from it."""

    def __init__(self, facts: Facts[K]) -> None:
        self.facts = facts
        self.placed: Placement[K] = {}
        self.counts: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.by_rank: list[K] = []
        """Partitions in the order in which they are to move, small ones first."""
        self._rank: dict[K, int] = {}
        self.held: dict[int, list[int]] = {broker: [] for broker in facts.places}
        """By broker, the ranks of what it holds, sorted."""

    def fill(self) -> Generator[None, None, None]:
        facts = self.facts
        order: Iterable[K] = facts.placed
        if facts.sizes:
            order = sorted(facts.placed, key=facts.size)
        for where in order:
            yield
            self._rank[where] = len(self.by_rank)
            self.by_rank.append(where)
            self.placed[where] = facts.placed[where]
            for broker in facts.placed[where]:
                self._take(where, broker)

    def _take(self, where: K, broker: int) -> None:
        self.counts[broker] += 1
        self.bytes[broker] += self.facts.size(where)
        insort(self.held.setdefault(broker, []), self._rank[where])

    def _give(self, where: K, broker: int) -> None:
        self.counts[broker] -= 1
        self.bytes[broker] -= self.facts.size(where)
        held = self.held[broker]
        del held[bisect_left(held, self._rank[where])]

    def replace(self, where: K, old: int, new: int) -> None:
        self.placed[where] = tuple(new if b == old else b for b in self.placed[where])
        self._give(where, old)
        self._take(where, new)

    def put(self, where: K, replicas: tuple[int, ...]) -> None:
        """Gives a partition other replicas, in whatever number."""
        before = self.placed[where]
        self.placed[where] = replicas
        for broker in before:
            if broker not in replicas:
                self._give(where, broker)
        for broker in replicas:
            if broker not in before:
                self._take(where, broker)

    def shared(self, where: K, broker: int, without: int) -> tuple[int, int]:
        """With how many other replicas this broker shares its rack, and its machine."""
        places = self.facts.places
        return shared(
            places[broker],
            [places[b] for b in self.placed[where] if b in places and b not in (broker, without)],
        )

    def best(self, where: K, instead_of: int, among: Iterable[int]) -> int | None:
        facts, now = self.facts, self.placed[where]
        free = [b for b in among if b not in now and facts.may_replace(where, instead_of, b)]
        return self.least(free, [b for b in now if b != instead_of]) if free else None

    def least(self, free: Iterable[int], beside: Collection[int]) -> int:
        """The best one to hold a replica beside these."""
        places = self.facts.places
        others = [places[b] for b in beside if b in places]
        return min(
            free,
            key=lambda b: (*shared(places[b], others), self.counts[b], self.bytes[b], b),
        )

    def to_keep(self, among: Iterable[int], beside: Collection[int], isr: Collection[int]) -> int:
        """The one whose replica is to stay beside these; the first of several as good."""
        places = self.facts.places
        others = [places[b] for b in beside if b in places]
        return min(
            among,
            key=lambda b: (b not in isr, shared(places[b], others) if b in places else (0, 0)),
        )

    def changes(self) -> Steps[K]:
        plan: Placement[K] = {}
        for where, before in self.facts.placed.items():
            yield
            if self.placed[where] != before:
                plan[where] = self.placed[where]
        return plan


def _place_as_asked(board: _Board[K], brokers: list[int]) -> Generator[None, None, None]:
    """Gives each rack as many replicas as a topic asks for, voters first."""
    facts = board.facts
    for where in facts.placed:
        asked = facts.asked.get(where[0])
        yield
        if asked is None:
            continue
        wanted = asked.racks
        before = board.placed[where]
        kept: list[int] = []
        held: Counter[str | None] = Counter()
        for broker in sorted(before, key=lambda b: b not in facts.places):
            rack = facts.rack(broker)
            if rack is not None and held[rack] < wanted.get(rack, 0):
                held[rack] += 1
                kept.append(broker)
        kept.sort(key=before.index)
        for rack, count in wanted.items():
            free = [b for b in brokers if facts.rack(b) == rack and b not in kept]
            for _ in range(min(count - held[rack], len(free))):
                free.remove(new := board.least(free, kept))
                kept.append(new)
        if where in facts.fixed and facts.awaited(where, kept):
            continue
        enough = len(kept) >= min(len(before), asked.total)
        leads = any(facts.may_lead(where, b) for b in kept)
        if {*kept} != {*before} and enough and leads:
            board.put(where, tuple(sorted(kept, key=lambda b: not facts.may_lead(where, b))))


def _spread_out(board: _Board[K], takers: list[int]) -> Generator[None, None, None]:
    """Moves replicas that share a rack or a machine to where they share less."""
    places = board.facts.places
    racks = {place.rack for place in places.values()}
    machines = {place.host for place in places.values()}
    if len(racks) == 1 and len(machines) in (1, len(places)):
        return
    for where in board.facts.placed:
        yield
        if where in board.facts.fixed:
            continue
        for broker in board.placed[where]:
            if broker not in places:
                continue
            now = board.shared(where, broker, broker)
            new = board.best(where, broker, takers) if any(now) else None
            if new is not None and board.shared(where, new, broker) < now:
                board.replace(where, broker, new)


def _even_out(
    board: _Board[K], brokers: list[int], takers: list[int]
) -> Generator[None, None, None]:
    """Takes one replica at a time from who has most to who has fewest, while that evens out."""
    stuck: set[tuple[int, int]] = set()
    while (pair := (yield from _most_uneven(board.counts, brokers, takers, stuck))) is not None:
        full, empty = pair
        where = yield from _movable(board, full, empty)
        if where is None:
            stuck.add(pair)
        else:
            board.replace(where, full, empty)
            stuck.clear()


def _most_uneven(
    counts: Counter[int],
    brokers: list[int],
    takers: list[int],
    stuck: Collection[tuple[int, int]],
) -> Generator[None, None, tuple[int, int] | None]:
    """Who has the most more than a taker, by two replicas at least, and that taker; the first
    broker, then the first taker, of several as uneven. Not one of the pairs that are stuck."""
    found: tuple[int, int] | None = None
    most = 2
    empties = sorted(takers, key=lambda b: (counts[b], b))
    for full in sorted(brokers, key=lambda b: (-counts[b], b)):
        yield
        if not empties or counts[full] - counts[empties[0]] < most:
            break
        empty = next((b for b in empties if (full, b) not in stuck), full)
        uneven = counts[full] - counts[empty]
        if uneven > most or (uneven == most and (found is None or full < found[0])):
            found, most = (full, empty), uneven
    return found


def _movable(board: _Board[K], full: int, empty: int) -> Generator[None, None, K | None]:
    """The smallest partition that can go from one to the other without a worse spread."""
    for rank in board.held[full]:
        yield
        where = board.by_rank[rank]
        if (
            where not in board.facts.fixed
            and empty not in board.placed[where]
            and board.facts.may_replace(where, full, empty)
            and board.shared(where, empty, full) <= board.shared(where, full, full)
        ):
            return where
    return None


class _Leaders(Generic[K]):
    """Who is to lead what, and who else could."""

    def __init__(self, board: _Board[K], brokers: Iterable[int]) -> None:
        self._board = board
        self.counts: dict[int, int] = dict.fromkeys(brokers, 0)
        self.could: dict[int, dict[int, dict[K, None]]] = {broker: {} for broker in self.counts}
        """By who leads and by who could, the partitions."""

    def fill(self) -> Generator[None, None, None]:
        for where in self._board.facts.placed:
            yield
            self._add(where)

    def _add(self, where: K) -> None:
        first, *others = self._board.placed[where]
        if first in self.counts:
            self.counts[first] += 1
            for broker in others:
                if broker in self.counts and self._board.facts.may_lead(where, broker):
                    self.could[first].setdefault(broker, {})[where] = None

    def _remove(self, where: K) -> None:
        first, *others = self._board.placed[where]
        self.counts[first] -= 1
        for broker in others:
            if broker in self.counts and self._board.facts.may_lead(where, broker):
                del self.could[first][broker][where]

    def lead(self, where: K, broker: int) -> None:
        self._remove(where)
        rest = tuple(b for b in self._board.placed[where] if b != broker)
        self._board.placed[where] = (broker, *rest)
        self._add(where)

    def path(self, takers: Collection[int]) -> Generator[None, None, list[tuple[K, int]] | None]:
        """From who leads too much to one of the takers that leads too little: each partition on it
        gets the next broker of the path, which has a replica of it, as its first."""
        counts = self.counts
        enough = min((counts[b] for b in takers), default=0) + 2
        for most in sorted(counts, key=lambda b: (-counts[b], b)):
            if not takers or counts[most] < enough:
                return None
            came: dict[int, tuple[int, K]] = {}
            queue = deque([most])
            while queue:
                yield
                at = queue.popleft()
                for broker, led in self.could[at].items():
                    if led and broker != most and broker not in came:
                        came[broker] = (at, next(iter(led)))
                        queue.append(broker)
            few = [b for b in takers if b in came and counts[b] <= counts[most] - 2]
            if few:
                broker = min(few, key=lambda b: (counts[b], b))
                found = []
                while broker != most:
                    before, where = came[broker]
                    found.append((where, broker))
                    broker = before
                return found
        return None


def _spread_leaders(
    board: _Board[K], brokers: list[int], takers: list[int]
) -> Generator[None, None, None]:
    """Changes the order of replicas until no broker is to lead two more than a taker could."""
    leaders = _Leaders(board, brokers)
    yield from leaders.fill()
    while (path := (yield from leaders.path(takers))) is not None:
        for where, broker in path:
            leaders.lead(where, broker)
