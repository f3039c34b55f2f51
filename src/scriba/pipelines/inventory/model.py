"""What is said about stock: commands from outside, events in the log, and their JSON.

An event tells the change and the stock that results from it, since compaction keeps only the last
one of an item. Three numbers make the log a book that can be checked by anyone:

    version   of the item: 1, 2, 3, ... without a gap, so nothing is missing or told twice
    sequence  of the command, over all items: the same for the whole inventory
    line      of the command this event is, out of `lines`: a command is there as a whole
"""

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_LINES: Final = 1000
MAX_NAME: Final = 200
MAX_REASON: Final = 500
MAX_STOCK: Final = 10**15
"""Exact in every JSON reader, even those that know only floating-point numbers."""


class Kind(enum.StrEnum):
    RECEIVE = "receive"
    ORDER = "order"
    ADJUST = "adjust"


class EventType(enum.StrEnum):
    RECEIVED = "StockReceived"
    DECREASED = "StockDecreased"
    ADJUSTED = "StockAdjusted"


EVENT_OF: Final[Mapping[Kind, EventType]] = {
    Kind.RECEIVE: EventType.RECEIVED,
    Kind.ORDER: EventType.DECREASED,
    Kind.ADJUST: EventType.ADJUSTED,
}


class Malformed(ValueError):
    """A command or an event that is not one. The message is one line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One item of a command: how much is received, ordered or added (`quantity`), or, for an
    adjustment after counting, what is there (`counted`)."""

    item: str
    quantity: int | None = None
    counted: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What is asked for; the id is the asker's, and repeating it does nothing twice."""

    id: str
    kind: Kind
    lines: tuple[Line, ...]
    reason: str = ""

    @property
    def digest(self) -> str:
        """Tells whether two commands of one id ask for the same."""
        said = [[line.item, line.quantity, line.counted] for line in self.lines]
        text = json.dumps([self.kind, sorted(said, key=str), self.reason])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the books, the same in both topics."""

    type: EventType
    item: str
    change: int
    stock: int
    version: int
    command: str
    digest: str
    sequence: int
    line: int
    lines: int
    at: int
    """When it was decided, in milliseconds since 1970."""
    reason: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode()


def decode_event(data: bytes | None) -> Event:
    """Malformed when the bytes are no event that could have been decided here."""
    if data is None:
        raise Malformed("a record without a value")
    try:
        said = json.loads(data)
        event = Event(**{**said, "type": EventType(said["type"])})
    except (ValueError, TypeError, KeyError) as damage:
        raise Malformed(f"not an event: {damage}") from None
    numbers = (event.change, event.stock, event.version, event.sequence, event.line, event.lines)
    if not all(type(number) is int for number in (*numbers, event.at)):
        raise Malformed("not an event: a number is none")
    if not all(isinstance(text, str) for text in (event.item, event.command, event.digest)):
        raise Malformed("not an event: a name is none")
    if not (0 <= event.stock <= MAX_STOCK and event.version >= 1 and event.sequence >= 1):
        raise Malformed("not an event: stock, version or sequence is out of bounds")
    if not 1 <= event.line <= event.lines:
        raise Malformed("not an event: line is out of bounds")
    return event


# -- commands from outside -----------------------------------------------------------------------

FIELDS: Final = {"id", "lines", "reason"}
LINE_FIELDS: Final = {"item", "quantity", "counted"}


def read_command(kind: Kind, document: Any) -> Command:
    """A command from its JSON; Malformed says what is wrong with it."""
    _check_fields(document, FIELDS, "the command")
    name = _name(document.get("id"), "id")
    lines = document.get("lines")
    if not isinstance(lines, list) or not lines:
        raise Malformed("lines: must be a list with at least one line")
    if len(lines) > MAX_LINES:
        raise Malformed(f"lines: {len(lines)} are too many; at most {MAX_LINES}")
    reason = document.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise Malformed(f"reason: must be a text of at most {MAX_REASON} characters")
    read = tuple(_line(kind, line, n) for n, line in enumerate(lines, 1))
    seen: set[str] = set()
    for line in read:
        if line.item in seen:
            raise Malformed(f"lines: {line.item} is named twice; name an item once")
        seen.add(line.item)
    return Command(name, kind, read, reason)


def _line(kind: Kind, document: Any, number: int) -> Line:
    where = f"line {number}"
    _check_fields(document, LINE_FIELDS, where)
    item = _name(document.get("item"), f"{where}: item")
    quantity, counted = document.get("quantity"), document.get("counted")
    if kind is not Kind.ADJUST:
        if counted is not None:
            raise Malformed(f"{where}: counted is for adjustments; give quantity")
        return Line(item, quantity=_number(quantity, 1, f"{where}: quantity"))
    if (quantity is None) == (counted is None):
        raise Malformed(f"{where}: give quantity (more or less) or counted (what is there)")
    if counted is not None:
        return Line(item, counted=_number(counted, 0, f"{where}: counted"))
    return Line(item, quantity=_number(quantity, -MAX_STOCK, f"{where}: quantity"))


def _check_fields(document: Any, known: set[str], where: str) -> None:
    if not isinstance(document, dict):
        raise Malformed(f"{where}: must be a JSON object")
    for name in document:
        if name not in known:
            raise Malformed(f"{where}: there is no field {name!r}; known: {', '.join(known)}")


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
        raise Malformed(f"{where}: must be a text of 1 to {MAX_NAME} characters")
    if not value.isprintable():
        raise Malformed(f"{where}: must be printable")
    return value


def _number(value: Any, least: int, where: str) -> int:
    if type(value) is not int or not least <= value <= MAX_STOCK:
        raise Malformed(f"{where}: must be a whole number from {least} to {MAX_STOCK}")
    return value
