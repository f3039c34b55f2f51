"""The rules by which an event is judged: one implementation, for the endpoint and for the pipeline.

    value ──read──▶ document ──problems──▶ nothing, or what is wrong with which field
                                  │
         the endpoint tells all of them to the client; the pipeline keeps the first as the reason

`FIELDS` declares what each kind of event must carry. Everything has a bound, so that sums fit into
64 bits and what is written fits into a record. What cannot be judged, whatever it is, is a dead
letter: no record may end a query.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import ALLOWED_LATENESS, BOTS, FROM_THE_FUTURE

KIND: Final = "event"
"""The field that says what happened: the name of a topic."""

DEAD_LETTER: Final = "dead_letters"
BOT: Final = "bots"
LATE: Final = "late"
ACCEPTED: Final = "accepted"
OUTCOMES: Final = (ACCEPTED, BOT, LATE, DEAD_LETTER)
"""By their names in shop_health."""

LARGEST_EVENT: Final = 256 * 1024
"""Bytes of an event: with what is said of it, it still fits into a record."""
LONGEST_NAME: Final = 256
LONGEST_AGENT: Final = 1024
MOST_ITEMS: Final = 1000
MOST_PIECES: Final = 1_000_000
MOST_CENTS: Final = 10**12
"""Of a price and of an order. Nine million orders of this size fit into the sum of a window."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FUTURE_US: Final = FROM_THE_FUTURE // _MICROSECOND
_LATE_US: Final = ALLOWED_LATENESS // _MICROSECOND
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_BOTS: Final = re.compile(BOTS)


class Taken(NamedTuple):
    topic: str
    user: str
    value: bytes


Problem = tuple[str, str]


class Refused(Exception):
    """What is wrong with an event, with the fields it concerns."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{field} {problem}" for field, problem in problems))
        self.problems = problems


class Verdict(NamedTuple):
    """What becomes of a record."""

    outcome: str
    reason: str | None
    event: Mapping[str, Any]
    """Empty for a dead letter."""
    time_us: int
    """When it happened, since 1970; of no meaning for a dead letter."""


# -- fields ----------------------------------------------------------------------------------------

Check = Callable[[Any], str | None]
MISSING: Final = "is missing"
NO_TIME: Final = "must be a time with its zone, as 2026-01-31T12:00:00.000Z"


def _text(longest: int) -> Check:
    told = f"must be text of 1 to {longest} characters"

    def check(value: Any) -> str | None:
        if not isinstance(value, str) or not 1 <= len(value) <= longest:
            return told
        return None if value.isascii() or _writable(value) else "must be text that UTF-8 can write"

    return check


def _writable(text: str) -> bool:
    """JSON can name halves of characters, which nothing can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(least: int, most: int) -> Check:
    told = f"must be a whole number from {least} to {most}"

    def check(value: Any) -> str | None:
        return None if type(value) is int and least <= value <= most else told

    return check


def _items(value: Any) -> str | None:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
        return f"must be a list of 1 to {MOST_ITEMS} items"
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            return f"[{index}] must be an object"
        for field, check in ITEM.items():
            if problem := _of(item, field, check):
                return f"[{index}].{field} {problem}"
    return None


def _of(event: Mapping[str, Any], field: str, check: Check) -> str | None:
    value = event.get(field)
    return MISSING if value is None else check(value)


_NAME: Final = _text(LONGEST_NAME)
ITEM: Final[Mapping[str, Check]] = {
    "product_id": _NAME,
    "quantity": _number(1, MOST_PIECES),
    "price_cents": _number(0, MOST_CENTS),
}
_COMMON: Final[Mapping[str, Check]] = {
    "event_id": _NAME,
    "user_id": _NAME,
    "session_id": _NAME,
}
FIELDS: Final[Mapping[str, Mapping[str, Check]]] = {
    topics.PRODUCT_VIEWED: {**_COMMON, "product_id": _NAME},
    topics.ADD_TO_CART: {**_COMMON, **ITEM},
    topics.PURCHASE_COMPLETED: {
        **_COMMON,
        "order_id": _NAME,
        "items": _items,
        "total_cents": _number(0, MOST_CENTS),
    },
}
"""What an event must carry; `event_time` as well."""
OPTIONAL: Final[Mapping[str, Check]] = {"user_agent": _text(LONGEST_AGENT), "device": _NAME}


@lru_cache(maxsize=64)  # an event's time is looked at twice
def time_us(text: str) -> int:
    """Microseconds since 1970; ValueError for what is no time with a zone, as RFC 3339 has it."""
    if not _TIME.fullmatch(text):
        raise ValueError(NO_TIME)
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


# -- documents -------------------------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def read(value: bytes) -> Any:
    """What one JSON document in UTF-8 says; ValueError with the reason for anything else."""
    try:
        return _DECODER.decode(value.decode())
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as wrong:
        raise ValueError("not JSON") from wrong
    except ValueError as wrong:  # NaN, or a number of thousands of digits
        raise ValueError("a number that cannot be read") from wrong


def problems(topic: str, event: Mapping[str, Any], arrived_us: int) -> list[Problem]:
    """Everything that is wrong with an event of this topic, in the order of its fields."""
    found = []
    get = event.get
    for field, check in FIELDS[topic].items():
        if problem := MISSING if (value := get(field)) is None else check(value):
            found.append((field, problem))
    if problem := _time(get("event_time"), arrived_us):
        found.append(("event_time", problem))
    for field, check in OPTIONAL.items():
        if (value := get(field)) is not None and (problem := check(value)):
            found.append((field, problem))
    if not found and topic == topics.PURCHASE_COMPLETED:
        total = sum(item["quantity"] * item["price_cents"] for item in event["items"])
        if event["total_cents"] != total:
            found.append(("total_cents", f"must be the sum over the items, {total}"))
    return found


def _time(text: Any, arrived_us: int) -> str | None:
    if text is None:
        return MISSING
    try:
        at = time_us(text) if isinstance(text, str) else None
    except ValueError:
        at = None
    if at is None:
        return NO_TIME
    if at < 0:
        return "lies before 1970"
    return "lies in the future" if at > arrived_us + _FUTURE_US else None


def take(document: Any, now_ms: int) -> Taken:
    """The event as it goes into its topic; Refused with everything that is wrong with it."""
    if not isinstance(document, dict):
        raise Refused([("the event", "must be a JSON object")])
    event = dict(document)
    topic = event.pop(KIND, None)
    if not isinstance(topic, str) or topic not in FIELDS:
        raise Refused([(KIND, f"must be one of {', '.join(FIELDS)}")])
    if found := problems(topic, event, now_ms * 1000):
        raise Refused(found)
    value = json.dumps(event, separators=(",", ":")).encode()
    if len(value) > LARGEST_EVENT:
        raise Refused([("the event", f"must not be larger than {LARGEST_EVENT} bytes")])
    return Taken(topic, event["user_id"], value)


# -- records ---------------------------------------------------------------------------------------


def judge(topic: str, value: bytes | None, arrived_us: int) -> Verdict:
    """What becomes of a record of this topic; there is an answer to each of them."""
    try:
        return _judge(topic, value, arrived_us)
    except Exception as failure:
        return _dead(f"it cannot be judged: {type(failure).__name__}")


def _judge(topic: str, value: bytes | None, arrived_us: int) -> Verdict:
    if not value:
        return _dead("the value is empty")
    if len(value) > LARGEST_EVENT:
        return _dead(f"the event must not be larger than {LARGEST_EVENT} bytes")
    if arrived_us < 0:
        return _dead("the record has no timestamp")
    try:
        event = read(value)
    except ValueError as wrong:
        return _dead(str(wrong))
    if not isinstance(event, dict):
        return _dead("the event must be a JSON object")
    if found := problems(topic, event, arrived_us):
        return _dead(" ".join(found[0]))
    at = time_us(event["event_time"])
    if _machine(event.get("user_agent") or ""):
        return Verdict(BOT, None, event, at)
    return Verdict(LATE if arrived_us - at > _LATE_US else ACCEPTED, None, event, at)


@lru_cache(maxsize=4096)
def _machine(agent: str) -> bool:
    return _BOTS.search(agent) is not None


def _dead(reason: str) -> Verdict:
    return Verdict(DEAD_LETTER, reason, {}, 0)
