"""What becomes of an event: a line of the log, a number, a place in the ring."""

import ast
import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scriba.broker.metrics.http import EVENTS_AT_ONCE
from scriba.broker.node import Node
from scriba.broker.observe.events import KEPT, LINES_PER_MINUTE, MOST_REPEATING, Events
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.broker.scraping import WHERE, ask, scrape

InANode = Callable[..., None]
SOURCE = Path(__file__).parents[4] / "src" / "scriba"
ROUTINE = EventKind.GROUP_REBALANCE
REPEATING = EventKind.WRITE_REFUSED


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = 0

    def mono_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return 1_000_000 + self.ms

    def now(self) -> Instant:
        return Instant(self.mono_ms(), self.wall_ms())


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def events(clock: Hands, caplog: pytest.LogCaptureFixture) -> Events:
    caplog.set_level(logging.INFO, "scriba.events")
    return Events(clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "scriba.events"]


# ---- one by one ----


@pytest.mark.parametrize("kind", EventKind, ids=lambda kind: kind.label)
def test_every_kind_is_logged_at_its_level_counted_and_kept(
    kind: EventKind, events: Events, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    clock.ms = 77
    events.note(kind, "t-0", "happened")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (kind.level, f"{kind.label}: t-0: happened")
    assert events.counts[kind] == 1
    assert sum(events.counts.values()) == 1
    (noted,) = events.since()
    assert noted == (1, 1_000_077, kind, "t-0", "happened")


class WithoutTrace(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage()


class OtherFormat(logging.Logger):
    """As pyspark's loggers do, it gives handlers its own formatter."""

    def addHandler(self, hdlr: logging.Handler) -> None:
        hdlr.setFormatter(WithoutTrace())
        super().addHandler(hdlr)


@pytest.fixture
def loggers_of_others() -> Iterator[None]:
    """pytest hands its handlers to loggers that do not propagate."""
    loggers = logging.Logger.manager.loggerDict
    loggers["other-format"] = other = OtherFormat("other-format")
    other.propagate = False
    yield
    del loggers["other-format"]


@pytest.mark.usefixtures("loggers_of_others")
def test_of_a_failure_that_nobody_expected_the_log_has_the_trace(
    events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError as error:
        events.note(EventKind.REQUEST_FAILED, "Fetch", "failed", error)
    assert "ZeroDivisionError: oh" in caplog.text


def test_a_text_has_a_bound(events: Events) -> None:
    events.note(ROUTINE, "g" * 10_000, "x" * 10_000)
    (noted,) = events.since()
    assert len(noted.about) + len(noted.text) < 5_000


# ---- again and again ----


def test_what_repeats_is_told_once_a_minute_with_how_many_there_were(
    events: Events, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        events.note(REPEATING, "/data", "no room")
        clock.ms += 100
    assert events.counts[REPEATING] == 1000
    assert [event.text for event in events.since()] == [
        "no room",
        "no room (599 more since this was last told)",
    ]
    assert len(lines(caplog)) == 2


def test_about_another_thing_it_is_told_at_once(events: Events) -> None:
    for directory in ("/a", "/b", "/a", "/b"):
        events.note(REPEATING, directory, "no room")
    assert [event.about for event in events.since()] == ["/a", "/b"]


def test_what_was_held_back_is_said_when_the_minute_is_over_though_no_more_comes(
    events: Events, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("one", "two", "three"):
        events.note(REPEATING, "/data", text)
    clock.ms = 59_000
    events.flush()
    assert [event.text for event in events.since()] == ["one"]
    clock.ms = 60_000
    events.flush()
    assert events.since()[-1].text == "three (2 since this was last told)"
    clock.ms = 120_000
    events.flush()
    events.note(REPEATING, "/data", "four")
    assert [event.text for event in events.since()][2:] == ["four"], "it begins anew"
    assert events.counts[REPEATING] == 4


def test_things_without_number_share_a_place(events: Events) -> None:
    for number in range(3 * MOST_REPEATING):
        events.note(EventKind.CONNECTION_CLOSED, f"10.0.{number // 256}.{number % 256}", "rubbish")
    assert len(events.since()) <= MOST_REPEATING + 1
    assert events.since()[-1].about == "others"
    assert events.counts[EventKind.CONNECTION_CLOSED] == 3 * MOST_REPEATING


def test_no_kind_floods_the_log_and_the_rest_is_said_as_a_number(
    events: Events, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        events.note(EventKind.PARTITION_OFFLINE, f"t-{number}", "its directory is offline")
    events.note(EventKind.LOG_DIR_OFFLINE, "/data", "dead")
    assert len(lines(caplog)) == LINES_PER_MINUTE + 1, "one kind does not silence another"
    assert len(events.since()) == 1001, "all are kept"
    clock.ms = 60_000
    events.flush()
    rest = 1000 - LINES_PER_MINUTE
    assert lines(caplog)[-1] == f"partition_offline: {rest} more, not logged one by one"
    events.note(EventKind.PARTITION_OFFLINE, "t-1000", "again")
    assert lines(caplog)[-1] == "partition_offline: t-1000: again"


def test_the_rest_is_said_by_the_next_one_too(
    events: Events, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LINES_PER_MINUTE + 3):
        events.note(ROUTINE, "g", f"generation {number}")
    clock.ms = 60_000
    events.note(ROUTINE, "g", "later")
    assert lines(caplog)[-2:] == [
        "group_rebalance: 3 more, not logged one by one",
        "group_rebalance: g: later",
    ]


# ---- reading ----


def test_a_storm_of_routine_events_does_not_push_out_a_failed_disk(events: Events) -> None:
    events.note(EventKind.LOG_DIR_OFFLINE, "/data", "dead")
    for number in range(3 * KEPT):
        events.note(ROUTINE, "g", f"generation {number}")
    kept = events.since()
    assert len(kept) == KEPT + 1
    assert kept[0].kind is EventKind.LOG_DIR_OFFLINE
    assert [event.number for event in kept] == sorted(event.number for event in kept)


def test_a_reader_who_comes_again_misses_nothing_and_knows_what_is_lost(events: Events) -> None:
    for number in range(10):
        events.note(ROUTINE, "g", str(number))
    first = events.page(0, 4)
    assert ([event.text for event in first.events], first.next, first.lost) == (
        ["0", "1", "2", "3"],
        4,
        0,
    )
    second = events.page(first.next, 100)
    assert ([event.text for event in second.events], second.next) == (list("456789"), 10)
    assert events.page(10, 100) == ([], 10, 0)
    for number in range(KEPT + 5):
        events.note(ROUTINE, "g", str(number))
    late = events.page(10, 2)
    assert ([event.text for event in late.events], late.lost) == (["5", "6"], 5)


def test_a_reader_of_an_earlier_run_begins_again(events: Events) -> None:
    events.note(ROUTINE, "g", "first of this run")
    page = events.page(500, 10)
    assert [event.text for event in page.events] == ["first of this run"]
    assert (page.next, page.lost) == (1, 0)


# ---- over HTTP ----


def test_the_console_reads_events_over_http(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        node.note(EventKind.CLOCK_IN_DOUBT, "wall clock", 'jumped "far"\nahead')
        node.note(ROUTINE, "g", "generation 1 ends")

        async def get(query: str) -> tuple[str, str]:
            return await ask(world, f"GET /events{query} HTTP/1.1\r\n\r\n".encode())

        status, body = await get("")
        told = json.loads(body)
        assert status == "200 OK"
        assert told["events"][0] == {
            "number": 1,
            "time_ms": told["events"][0]["time_ms"],
            "kind": "clock_in_doubt",
            "level": "warning",
            "about": "wall clock",
            "text": 'jumped "far"\nahead',
            "remedy": EventKind.CLOCK_IN_DOUBT.remedy,
        }
        assert (told["next"], told["lost"]) == (2, 0)
        assert [each["number"] for each in json.loads((await get("?since=1"))[1])["events"]] == [2]
        assert json.loads((await get("?since=0&limit=1"))[1])["next"] == 1
        wrong = ["?since=x", "?since=-1", "?limit=0", f"?limit={EVENTS_AT_ONCE + 1}", "?after=1"]
        wrong += ["?x", "?since", "?since="]
        for query in wrong:
            status, body = await get(query)
            assert (status, "since=N" in body) == ("400 Bad Request", True), query
        found = await scrape(world)
        assert found['scriba_events_total{kind="clock_in_doubt"}'] == 1
        assert found['scriba_events_total{kind="marker_refused"}'] == 0

    in_a_node(script, scriba_metrics_listener=WHERE)


def test_a_node_says_by_itself_what_was_held_back(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        for _ in range(5):
            node.note(REPEATING, "/data", "no room")
        await asyncio.sleep(80)
        assert [event.text for event in node.events.since() if event.kind is REPEATING] == [
            "no room",
            "no room (4 since this was last told)",
        ]

    in_a_node(script)


# ---- the declaration ----


def test_kinds_are_told_apart_and_say_what_to_do() -> None:
    labels = [kind.label for kind in EventKind]
    assert len(labels) == len(set(labels))
    for kind in EventKind:
        assert kind.label == kind.name.lower()
        assert kind.level in (logging.INFO, logging.WARNING, logging.ERROR)
        assert kind.meaning.endswith(".")
        assert kind.remedy.endswith(".")


def test_every_kind_is_noted_by_somebody() -> None:
    named = {
        node.attr
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "EventKind"
    }
    assert named == {kind.name for kind in EventKind}


def test_nobody_in_the_broker_warns_the_log_past_the_events() -> None:
    loud = {"warning", "error", "exception", "critical"}
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in (SOURCE / "broker").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in loud
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("log", "logger", "logging")
    ]
    assert found == []
