"""The core that decides, held against what books have to be, over random lives of a warehouse."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.pipelines.inventory.decide import Accepted, Books, Decision, Level, Refused, decide
from scriba.pipelines.inventory.model import (
    MAX_STOCK,
    Command,
    Event,
    EventType,
    Kind,
    Line,
    Malformed,
    decode_event,
    read_command,
)

ITEMS = ["apple", "pear", "plum"]

quantities = st.integers(1, 40)
changes = st.one_of(
    st.integers(-40, 40).map(lambda n: {"quantity": n}),
    st.integers(0, 60).map(lambda n: {"counted": n}),
)
"""An adjustment says how many more or less there are, or how many were counted."""


@st.composite
def commands(draw: st.DrawFn) -> Command:
    kind = draw(st.sampled_from(list(Kind)))
    items = draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3, unique=True))
    one = changes if kind is Kind.ADJUST else quantities.map(lambda n: {"quantity": n})
    lines = tuple(Line(item, **draw(one)) for item in items)
    return Command(draw(st.sampled_from("abcdefgh")), kind, lines)


class Ledger:
    """Books kept the simple way: everything that was ever decided, in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def books(self, command: Command) -> Books:
        levels = {event.item: Level(event.stock, event.version) for event in self.events}
        earlier = tuple(event for event in self.events if event.command == command.id)
        last = max((event.sequence for event in self.events), default=0)
        return Books(levels, earlier, last)

    def take(self, command: Command, now_ms: int = 0) -> Decision:
        decision = decide(command, self.books(command), now_ms)
        if isinstance(decision, Accepted) and not decision.repeated:
            self.events += decision.events
        return decision


@given(st.lists(commands(), max_size=40))
def test_whatever_is_asked_for_the_books_balance(asked: list[Command]) -> None:
    ledger = Ledger()
    for command in asked:
        ledger.take(command)
    stock: defaultdict[str, int] = defaultdict(int)
    version: defaultdict[str, int] = defaultdict(int)
    for event in ledger.events:
        stock[event.item] += event.change
        version[event.item] += 1
        assert event.stock == stock[event.item] >= 0
        assert event.version == version[event.item]
    sequences = [event.sequence for event in ledger.events]
    assert sequences == sorted(sequences)
    assert set(sequences) == set(range(1, len(set(sequences)) + 1))


@given(st.lists(commands(), max_size=30))
def test_a_command_is_written_as_a_whole_or_not_at_all(asked: list[Command]) -> None:
    ledger = Ledger()
    for command in asked:
        before = len(ledger.events)
        decision = ledger.take(command)
        written = ledger.events[before:]
        if isinstance(decision, Refused) or decision.repeated:
            assert written == []
        else:
            assert [e.item for e in written] == [line.item for line in command.lines]
            assert [(e.line, e.lines) for e in written] == [
                (n, len(command.lines)) for n in range(1, len(command.lines) + 1)
            ]


@given(st.lists(commands(), min_size=1, max_size=30), st.data())
def test_an_id_that_was_accepted_is_answered_with_its_first_outcome(
    asked: list[Command], data: st.DataObject
) -> None:
    ledger = Ledger()
    first: dict[str, tuple[Command, Accepted]] = {}
    for command in asked:
        decision = ledger.take(command)
        if isinstance(decision, Accepted) and command.id not in first:
            first[command.id] = (command, decision)
    for command, outcome in first.values():
        assert ledger.take(command, 99) == replace(outcome, repeated=True)
        other = replace(command, reason="something else")
        assert isinstance(ledger.take(other), Refused)


@given(st.lists(commands(), max_size=20), commands())
def test_an_order_is_refused_exactly_when_an_item_would_not_do(
    asked: list[Command], last: Command
) -> None:
    ledger = Ledger()
    for command in asked:
        ledger.take(command)
    order = replace(last, id="new", kind=Kind.ORDER)
    order = replace(order, lines=tuple(Line(x.item, abs(x.quantity or 1)) for x in order.lines))
    levels = ledger.books(order).levels
    short = {
        line.item
        for line in order.lines
        if levels.get(line.item, Level()).stock < (line.quantity or 0)
    }
    decision = ledger.take(order)
    if short:
        assert isinstance(decision, Refused)
        assert {shortage.item for shortage in decision.shortages} == short
    else:
        assert isinstance(decision, Accepted)


@given(commands(), st.integers(0, 2**41))
def test_an_event_is_read_as_it_was_written(command: Command, now_ms: int) -> None:
    levels = {item: Level(50, 3) for item in ITEMS}
    decision = decide(command, Books(levels, (), 7), now_ms)
    if isinstance(decision, Accepted):
        assert [decode_event(event.encode()) for event in decision.events] == list(decision.events)


def test_a_count_that_agrees_is_told_too() -> None:
    count = Command("c", Kind.ADJUST, (Line("apple", counted=5),), "stocktaking")
    decision = decide(count, Books({"apple": Level(5, 1)}, (), 1), 0)
    assert isinstance(decision, Accepted)
    (event,) = decision.events
    assert (event.type, event.change, event.stock) == (EventType.ADJUSTED, 0, 5)


def test_stock_that_could_not_be_told_exactly_is_refused() -> None:
    more = Command("c", Kind.RECEIVE, (Line("apple", 1),))
    decision = decide(more, Books({"apple": Level(MAX_STOCK, 1)}, (), 1), 0)
    assert isinstance(decision, Refused)
    assert "are over" in decision.why


@pytest.mark.parametrize(
    ("kind", "document", "complaint"),
    [
        (Kind.ORDER, [], "the command: must be a JSON object"),
        (Kind.ORDER, {"lines": [{"item": "a", "quantity": 1}]}, "id: must be a text"),
        (Kind.ORDER, {"id": "x", "lines": []}, "lines: must be a list"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "a"}]}, "line 1: quantity: must be a whole"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "a", "quantity": 0}]}, "from 1 to"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "a", "quantity": True}]}, "whole number"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "a", "quantity": 1.5}]}, "whole number"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "\n", "quantity": 1}]}, "printable"),
        (Kind.ORDER, {"id": "x", "lines": [{"item": "a", "counted": 1}]}, "is for adjustments"),
        (Kind.ORDER, {"id": "x", "linse": []}, "there is no field 'linse'"),
        (Kind.ADJUST, {"id": "x", "lines": [{"item": "a"}]}, "give quantity (more or less)"),
        (
            Kind.ORDER,
            {"id": "x", "lines": [{"item": "a", "quantity": 1}] * 2},
            "a is named twice",
        ),
        (
            Kind.RECEIVE,
            {"id": "x", "lines": [{"item": str(n), "quantity": 1} for n in range(1001)]},
            "too many",
        ),
    ],
)
def test_what_is_no_command_is_told_what_is_wrong(
    kind: Kind, document: object, complaint: str
) -> None:
    with pytest.raises(Malformed) as refused:
        read_command(kind, document)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [None, b"", b"{}", b"[]", b"\xff", b'{"type":"StockEaten"}'],
)
def test_bytes_that_are_no_event_are_not_taken_for_one(data: bytes | None) -> None:
    with pytest.raises(Malformed):
        decode_event(data)
