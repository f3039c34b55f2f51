"""What goes in and out of a coordinator: the values that the machines of groups and of transactions
share with the shell that runs them.

A coordinator is a pure machine over one partition of its topic. `handle` and `tick` return an
`Outcome`; the shell appends its records as one atomic batch, replays them into the machine, and
lets the replies go once the high watermark covers the append. Nothing is awaited in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from scriba.events import Event
from scriba.instant import Instant
from scriba.wire.schema import Message

Token = int
"""Names a request that is waiting for its reply."""

Sees = Callable[[str], bool]
"""Whether somebody may know of a topic."""


Telling = Generator[None, None, Message]
"""Puts a reply together in short steps, and ends with it. It reads nothing that replay changes, so
the machine goes on meanwhile."""


class Change(NamedTuple):
    """A record of the coordinator's topic; no value is a tombstone."""

    key: Message
    value: Message | None


class Origin(NamedTuple):
    """Where a replayed record stands; a producer only where it is part of a transaction."""

    offset: int
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class Caller(NamedTuple):
    """Who sent a request, in which version; `fresh` are sixteen random bytes of its own, where a
    request of its kind may need them."""

    version: int
    client_id: str
    host: str
    fresh: bytes
    sees: Sees | None = None
    """None where everybody sees every topic."""


@dataclass(slots=True)
class Outcome:
    records: list[Change] = field(default_factory=list)
    replies: list[tuple[Token, Message]] = field(default_factory=list)
    told: list[tuple[Token, Telling]] = field(default_factory=list)
    """Replies that take long to put together, from copies that this step has made."""
    sends: list[Any] = field(default_factory=list)
    """For others, once the records are committed; which kinds, the machine says."""
    events: list[Event] = field(default_factory=list)
    producer: tuple[int, int] | None = None
    """Producer id and epoch: the records belong to that producer's open transaction."""
    splittable: bool = False
    """Whether the records may go in several batches; else they stand or fall together."""
    instead: Callable[[Instant], Outcome] | None = None
    """What happens where the log can never take the records, after an error for all who would
    have been answered; None where the machine cannot go back and has to be built again."""
    work: Generator[None, None, Outcome] | None = None
    """Where there is much to do, and then instead of all the above: the step, a slice between two
    yields, which ends with its outcome. Nobody else asks or ticks the machine meanwhile, nor is a
    marker replayed."""


T = TypeVar("T")


def at_once(work: Generator[None, None, T]) -> T:
    """The end of work that may be done in slices, without them."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        return cast(T, done.value)


def begun(work: Generator[None, None, Outcome]) -> Outcome:
    """What a step comes to; where it gives way, an outcome with the rest of it as its work."""
    try:
        next(work)
    except StopIteration as done:
        return cast(Outcome, done.value)
    return Outcome(work=work)


def carry_on(out: Outcome, work: Generator[None, None, None]) -> None:
    """Does what adds to an outcome, now or, where it gives way, as the work of that outcome. It is
    the last part of its step: views of a request's bytes have ended once it has given way."""
    assert out.work is None
    out.work = begun(_added(out, work)).work


def _added(out: Outcome, work: Generator[None, None, None]) -> Generator[None, None, Outcome]:
    yield from work
    out.work = None
    return out


def nothing(now: Instant) -> Outcome:
    """Instead of records that were all there was."""
    return Outcome()


class Machine(Protocol):
    """What the shell asks of every coordinator."""

    def replay(self, key: Message, value: Message | None, origin: Origin) -> None:
        """The only place where stored state changes, when loading as when leading."""
        ...

    def replay_marker(
        self, producer_id: int, producer_epoch: int, commit: bool
    ) -> Generator[None, None, None]:
        """A transaction ended in this partition: in slices, between which nobody asks."""
        ...

    def loaded(self, now: Instant) -> Outcome:
        """Everything stored has been replayed: sessions and time-outs begin."""
        ...

    def handle(self, request: Message, token: Token, caller: Caller, now: Instant) -> Outcome:
        """May reply now, or later from any other call; KafkaError refuses the whole request."""
        ...

    def tick(self, now: Instant) -> Outcome:
        """Does what is due. Called at `next_deadline`, and not before."""
        ...

    def next_deadline(self) -> int | None:
        """Monotonic milliseconds; None while nothing is to come."""
        ...

    def topics_changed(self, names: Iterable[str], now: Instant) -> Outcome:
        """Topics were made, grew or went."""
        ...
