"""Events from outside: what a client sent is checked before it is taken.

The rules are those of the pipeline's dead letters, told to the client while it still listens.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.rules import FROM_THE_FUTURE, milliseconds, time_ms

KIND: Final = "event"
"""The field that says what happened: the name of a topic."""


class Taken(NamedTuple):
    topic: str
    user: str
    event: dict[str, Any]


class Refused(Exception):
    """What is wrong with an event, with the fields it concerns."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field} {problem}" for field, problem in problems))
        self.problems = problems


Check = Callable[[Any], str | None]


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be text that is not empty"


def _number(least: int) -> Check:
    def check(value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and value >= least else f"must be a whole number from {least} on"

    return check


def _items(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "must be a list of at least one item"
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            return f"[{index}] must be an object"
        for field, check in ITEM.items():
            if field not in item:
                return f"[{index}].{field} is missing"
            if problem := check(item[field]):
                return f"[{index}].{field} {problem}"
    return None


ITEM: Final[Mapping[str, Check]] = {
    "product_id": _text,
    "quantity": _number(1),
    "price_cents": _number(0),
}
_COMMON: Final[Mapping[str, Check]] = {
    "event_id": _text,
    "event_time": _text,
    "user_id": _text,
    "session_id": _text,
}
FIELDS: Final[Mapping[str, Mapping[str, Check]]] = {
    topics.PRODUCT_VIEWED: {**_COMMON, "product_id": _text},
    topics.ADD_TO_CART: {**_COMMON, **ITEM},
    topics.PURCHASE_COMPLETED: {
        **_COMMON,
        "order_id": _text,
        "items": _items,
        "total_cents": _number(0),
    },
}


def take(document: Any, now_ms: int) -> Taken:
    """The event as it goes into its topic; Refused with everything that is wrong with it."""
    if not isinstance(document, dict):
        raise Refused([("the event", "must be a JSON object")])
    event = dict(document)
    topic = event.pop(KIND, None)
    if topic not in FIELDS:
        raise Refused([(KIND, f"must be one of {', '.join(FIELDS)}")])
    problems = []
    for field, check in FIELDS[topic].items():
        problem = check(event[field]) if field in event else "is missing"
        if problem:
            problems.append((field, problem))
    time = event.get("event_time")
    if isinstance(time, str) and time and (problem := _time(time, now_ms)):
        problems.append(("event_time", problem))
    problems += [
        (field, "must be text")
        for field in ("user_agent", "device")
        if not isinstance(event.get(field, ""), str)
    ]
    if not problems and topic == topics.PURCHASE_COMPLETED:
        total = sum(item["quantity"] * item["price_cents"] for item in event["items"])
        if event["total_cents"] != total:
            problems.append(("total_cents", f"must be the sum over the items, {total}"))
    if problems:
        raise Refused(problems)
    return Taken(topic, event["user_id"], event)


def _time(text: str, now_ms: int) -> str | None:
    try:
        at = time_ms(text)
    except ValueError:
        return "must be a time with its zone, as 2026-01-31T12:00:00.000Z"
    if at > now_ms + milliseconds(FROM_THE_FUTURE):
        return "lies in the future"
    return None
