"""Where the replicas of partitions were, who asked for that, and what must hold of it.

Whoever reads the metadata log tells each placement in its turn, as it is committed; whoever moves
replicas tells what it asks for before it does, and what it was told.

    the in-sync replicas are replicas, and so are a leader, and those that come and go
    a replica that was there before a move goes only when all that stay are in sync, and with that
    the move ends: there are never fewer of them than without it
    a move that ended has exactly the replicas that somebody asked for, in their order; one that was
    cancelled has those from which it began
    nobody is given a new partition whose directories are all cordoned
    what was asked for last, and granted, is how it is in the end

A leader that hands a partition over asks for the same replicas in another order, while nothing
moves: after that it is the same replicas that must be there, in whatever order.

A request that a client has sent again, to another broker, may be carried out twice: the first one
may have lain before a broker that stood still. Nothing in it tells that something else was asked
for since, in Kafka as here; so what it asked for may be how it is in the end, too.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from scriba.testing.history.findings import Findings, Where, place

Replicas = tuple[int, ...]


class Placement(NamedTuple):
    """What the metadata says of one partition."""

    replicas: Replicas
    isr: Replicas
    leader: int
    """-1 where there is none."""
    adding: Replicas = ()
    removing: Replicas = ()

    @property
    def moves(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def original(self) -> Replicas:
        """Where it was before it moved."""
        return tuple(at for at in self.replicas if at not in self.adding)

    @property
    def target(self) -> Replicas:
        return tuple(at for at in self.replicas if at not in self.removing)


@dataclass(slots=True)
class Ask:
    """What somebody asked for; no replicas is to cancel. Whether it was granted: None where nobody
    knows, so that it may yet happen."""

    replicas: Replicas | None
    granted: bool | None = None
    sent: int = 0
    """How often it was put into a request."""


@dataclass(slots=True)
class Moves(Findings):
    placed: dict[Where, Placement] = field(default_factory=dict)
    asks: dict[Where, list[Ask]] = field(default_factory=dict)
    handed_over: set[Where] = field(default_factory=set)
    """Partitions whose replicas were put in another order since they were as somebody asked."""
    begun: int = 0
    finished: int = 0
    cancelled: int = 0

    # ---- who moves ----

    def ask(self, where: Where, replicas: Sequence[int] | None) -> Ask:
        asked = Ask(None if replicas is None else tuple(replicas))
        self.asks.setdefault(where, []).append(asked)
        return asked

    # ---- who reads the metadata ----

    def made(self, where: Where, now: Placement, cordoned: Set[int] = frozenset()) -> None:
        """A partition that was not there; nobody chose its replicas."""
        self.placed[where] = now
        if cordoned & {*now.replicas}:
            self.violation(
                f"{place(where)} was made with replicas {list(now.replicas)}, "
                f"of which {sorted(cordoned & {*now.replicas})} are cordoned"
            )
        self._check(where, now)

    def deleted(self, topic: str) -> None:
        for where in [each for each in self.placed if each[0] == topic]:
            del self.placed[where]
            self.asks.pop(where, None)
            self.handed_over.discard(where)

    def changed(self, where: Where, now: Placement) -> None:
        before = self.placed[where]
        self.placed[where] = now
        self._check(where, now)
        gone = {*before.original} - {*now.replicas}
        if gone and (now.moves or not {*now.replicas} <= {*now.isr}):
            self.violation(
                f"{place(where)}: {sorted(gone)} went, and of replicas {list(now.replicas)} only "
                f"{list(now.isr)} are in sync"
            )
        self.begun += now.moves and not before.moves
        if now.replicas == before.replicas and now.moves == before.moves:
            return
        if now.moves:
            if not self._asked(where, now.target):
                self.violation(
                    f"{place(where)}: on its way to {list(now.target)}, which nobody asked for"
                )
        elif self._asked(where, now.replicas):
            self.finished += 1
            self.handed_over.discard(where)
        elif before.moves and {*now.replicas} == {*before.original}:
            self.cancelled += 1
        elif not before.moves and {*now.replicas} == {*before.replicas}:
            self.handed_over.add(where)
        else:
            self.violation(
                f"{place(where)}: a move from {list(before.original)} ended with replicas "
                f"{list(now.replicas)}, which nobody asked for"
            )

    def _asked(self, where: Where, replicas: Replicas) -> bool:
        return any(ask.replicas == replicas for ask in self.asks.get(where, ()))

    def _is_as(self, where: Where, now: Placement, asked: Replicas) -> bool:
        same = {*now.replicas} == {*asked} and len(now.replicas) == len(asked)
        return now.replicas == asked or (same and where in self.handed_over)

    def _check(self, where: Where, now: Placement) -> None:
        known = {*now.replicas}
        for what, some in (
            ("in sync", now.isr),
            ("led by", (now.leader,) if now.leader >= 0 else ()),
            ("to get", now.adding),
            ("to lose", now.removing),
        ):
            if not {*some} <= known or len({*some}) != len(some):
                self.violation(
                    f"{place(where)}: {what} {list(some)}, its replicas are {list(now.replicas)}"
                )
        if len(known) != len(now.replicas) or not known:
            self.violation(f"{place(where)}: its replicas are {list(now.replicas)}")

    def finish(self) -> None:
        """When all has come to rest."""
        for where, now in self.placed.items():
            asks = self.asks.get(where, [])
            if now.moves:
                self.violation(f"{place(where)}: never came to {list(now.target)}")
            elif any(ask.granted is None for ask in asks):
                continue  # it may have come late, after others
            granted = [ask.replicas for ask in asks if ask.granted]
            again = (ask.replicas for ask in asks if ask.sent > 1 and ask.replicas is not None)
            if any(self._is_as(where, now, replicas) for replicas in again):
                continue
            if granted and granted[-1] is not None and not self._is_as(where, now, granted[-1]):
                self.violation(
                    f"{place(where)}: {list(granted[-1])} was asked for last, its replicas are "
                    f"{list(now.replicas)}"
                )
