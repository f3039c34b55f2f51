"""Decides a command: the only place where stock changes, and it touches nothing outside.

It is given what the books say of the command's items and of its id, and returns events or a
refusal. Invariants, whatever comes in:

- No stock below zero, nor above what can be told exactly.
- All lines of a command or none: one line that cannot be, refuses the rest with it.
- An id that was decided is answered with what was decided, whatever the stock is by now; with
  another content it is refused. A refusal leaves no trace, so its id may be tried again.

What must never happen: events from books that are not at the end of the log. Whoever calls has
made sure of that (see `writer`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scriba.pipelines.inventory.model import EVENT_OF, MAX_STOCK, Command, Event, Kind, Line


@dataclass(frozen=True, slots=True)
class Level:
    """What the books say of an item."""

    stock: int = 0
    version: int = 0


UNKNOWN: Final = Level()
"""An item that was never heard of: nothing is there."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A line that cannot be: what would be left of what is there."""

    item: str
    stock: int
    change: int

    def __str__(self) -> str:
        if self.change < 0:
            return f"{self.item}: {-self.change} wanted, {self.stock} there"
        return f"{self.item}: {self.stock} and {self.change} more are over {MAX_STOCK}"


@dataclass(frozen=True, slots=True)
class Accepted:
    events: tuple[Event, ...]
    repeated: bool = False
    """Whether this was decided before, and is only told again."""


@dataclass(frozen=True, slots=True)
class Refused:
    why: str
    shortages: tuple[Shortage, ...] = ()


Decision = Accepted | Refused


@dataclass(frozen=True, slots=True)
class Books:
    """What has to be known to decide one command."""

    levels: Mapping[str, Level]
    earlier: tuple[Event, ...]
    """What was decided for the command's id, in the order of its lines; empty when nothing was."""
    last_sequence: int


def decide(command: Command, books: Books, now_ms: int) -> Decision:
    if books.earlier:
        if books.earlier[0].digest != command.digest:
            return Refused(f"{command.id} was used for another command; choose a new id")
        return Accepted(books.earlier, repeated=True)
    changes = [
        change_of(command.kind, line, books.levels.get(line.item, UNKNOWN))
        for line in command.lines
    ]
    shortages = tuple(
        Shortage(line.item, level.stock, change)
        for line, change in zip(command.lines, changes, strict=True)
        if not 0 <= (level := books.levels.get(line.item, UNKNOWN)).stock + change <= MAX_STOCK
    )
    if shortages:
        return Refused("; ".join(map(str, shortages)), shortages)
    return Accepted(
        tuple(
            _event(command, books, n, line.item, change, now_ms)
            for n, (line, change) in enumerate(zip(command.lines, changes, strict=True), 1)
        )
    )


def change_of(kind: Kind, line: Line, level: Level) -> int:
    """What a line does to the stock, before anybody asked whether that can be."""
    if line.counted is not None:
        return line.counted - level.stock
    assert line.quantity is not None
    return -line.quantity if kind is Kind.ORDER else line.quantity


def _event(
    command: Command, books: Books, number: int, item: str, change: int, now_ms: int
) -> Event:
    level = books.levels.get(item, UNKNOWN)
    return Event(
        type=EVENT_OF[command.kind],
        item=item,
        change=change,
        stock=level.stock + change,
        version=level.version + 1,
        command=command.id,
        digest=command.digest,
        sequence=books.last_sequence + 1,
        line=number,
        lines=len(command.lines),
        at=now_ms,
        reason=command.reason,
    )
