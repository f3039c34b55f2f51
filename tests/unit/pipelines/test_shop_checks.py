"""The rules for events: what becomes of a record, and what the endpoint says to its client."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.checks import (
    ACCEPTED,
    BOT,
    DEAD_LETTER,
    LARGEST_EVENT,
    LATE,
    MOST_CENTS,
    MOST_PIECES,
    NO_TIME,
    OUTCOMES,
    Refused,
    judge,
    read,
    take,
    time_us,
)
from scriba.pipelines.shop.events.events import COLUMNS, EVENT, judged_batch
from scriba.pipelines.shop.events.rules import time_ms

VIEW, CART, BUY = topics.INPUTS
NOW = time_ms("2026-11-15T12:35:00Z")
ROBOT = "Mozilla/5.0 (compatible; ExampleBot/2.1)"
ITEM = {"product_id": "p1", "quantity": 2, "price_cents": 100}


def sent(topic: str, **changes: Any) -> dict[str, Any]:
    event = {**topics.CONTRACTS[topic].value, **changes}
    return {name: value for name, value in event.items() if value is not ...}


def value(topic: str, **changes: Any) -> bytes:
    return json.dumps(sent(topic, **changes)).encode()


def order(*items: tuple[int, int], total: int | None = None) -> bytes:
    listed = [
        {"product_id": f"p{n}", "quantity": q, "price_cents": c} for n, (q, c) in enumerate(items)
    ]
    return value(
        BUY, items=listed, total_cents=sum(q * c for q, c in items) if total is None else total
    )


NAME = "must be text of 1 to 256 characters"
PIECES = f"must be a whole number from 1 to {MOST_PIECES}"
CENTS = f"must be a whole number from 0 to {MOST_CENTS}"

JUDGED: list[tuple[str, bytes | None, str, str | None]] = [
    (VIEW, value(VIEW), ACCEPTED, None),
    (CART, value(CART), ACCEPTED, None),
    (BUY, value(BUY), ACCEPTED, None),
    (VIEW, b"\n " + value(VIEW) + b" ", ACCEPTED, None),
    (VIEW, value(VIEW, user_agent=...), ACCEPTED, None),
    (VIEW, value(VIEW, user_agent=None, device=None), ACCEPTED, None),
    (VIEW, value(VIEW, extra={"a": [1]}), ACCEPTED, None),
    (VIEW, value(VIEW, event_time="2026-11-15T12:25:00.000Z"), ACCEPTED, None),
    (VIEW, value(VIEW, event_time="2026-11-15T14:30:00+02:00"), ACCEPTED, None),
    (VIEW, value(VIEW, event_time="2026-11-15T12:24:59.999Z"), LATE, None),
    (VIEW, value(VIEW, event_time="1970-01-01T00:00:00Z"), LATE, None),
    (VIEW, value(VIEW, user_agent=ROBOT), BOT, None),
    (VIEW, value(VIEW, user_agent=ROBOT, event_time="2026-11-15T11:00:00Z"), BOT, None),
    # What is not one JSON object in UTF-8.
    (VIEW, None, DEAD_LETTER, "the value is empty"),
    (VIEW, b"", DEAD_LETTER, "the value is empty"),
    (VIEW, b" ", DEAD_LETTER, "not JSON"),
    (VIEW, b"\xff\x00", DEAD_LETTER, "not UTF-8"),
    (VIEW, value(VIEW)[:-1] + b',"x":"\xff"}', DEAD_LETTER, "not UTF-8"),
    (VIEW, value(VIEW).decode().encode("utf-16"), DEAD_LETTER, "not UTF-8"),
    (VIEW, b"\xef\xbb\xbf" + value(VIEW), DEAD_LETTER, "not JSON"),
    (VIEW, value(VIEW)[:50], DEAD_LETTER, "not JSON"),
    (VIEW, value(VIEW) + b" and more", DEAD_LETTER, "not JSON"),
    (VIEW, value(VIEW) + value(VIEW), DEAD_LETTER, "not JSON"),
    (VIEW, value(VIEW).replace(b'"', b"'"), DEAD_LETTER, "not JSON"),
    (VIEW, value(VIEW)[:-1] + b',"x":NaN}', DEAD_LETTER, "a number that cannot be read"),
    (
        VIEW,
        value(VIEW)[:-1] + b',"x":' + b"9" * 5000 + b"}",
        DEAD_LETTER,
        "a number that cannot be read",
    ),
    (VIEW, b"[" * 100_000, DEAD_LETTER, "nested too deeply"),
    (VIEW, b"[]", DEAD_LETTER, "the event must be a JSON object"),
    (VIEW, b"7", DEAD_LETTER, "the event must be a JSON object"),
    (
        VIEW,
        b"x" * (LARGEST_EVENT + 1),
        DEAD_LETTER,
        f"the event must not be larger than {LARGEST_EVENT} bytes",
    ),
    # Fields.
    (VIEW, b"{}", DEAD_LETTER, "event_id is missing"),
    (VIEW, value(VIEW, event_id=""), DEAD_LETTER, f"event_id {NAME}"),
    (VIEW, value(VIEW, event_id="e" * 257), DEAD_LETTER, f"event_id {NAME}"),
    (VIEW, value(VIEW, user_id=...), DEAD_LETTER, "user_id is missing"),
    (VIEW, value(VIEW, user_id=7), DEAD_LETTER, f"user_id {NAME}"),
    (VIEW, value(VIEW, user_id="\ud800"), DEAD_LETTER, "user_id must be text that UTF-8 can write"),
    (VIEW, value(VIEW, session_id=None), DEAD_LETTER, "session_id is missing"),
    (VIEW, value(VIEW, device=7), DEAD_LETTER, f"device {NAME}"),
    (
        VIEW,
        value(VIEW, user_agent="x" * 1025),
        DEAD_LETTER,
        "user_agent must be text of 1 to 1024 characters",
    ),
    (VIEW, value(VIEW, product_id=...), DEAD_LETTER, "product_id is missing"),
    (CART, value(CART, quantity="two"), DEAD_LETTER, f"quantity {PIECES}"),
    (CART, value(CART, quantity=True), DEAD_LETTER, f"quantity {PIECES}"),
    (CART, value(CART, quantity=0), DEAD_LETTER, f"quantity {PIECES}"),
    (CART, value(CART, quantity=2**31), DEAD_LETTER, f"quantity {PIECES}"),
    (CART, value(CART, price_cents=-1), DEAD_LETTER, f"price_cents {CENTS}"),
    (CART, value(CART, price_cents=1.0), DEAD_LETTER, f"price_cents {CENTS}"),
    (CART, value(CART, price_cents=2**63 - 1), DEAD_LETTER, f"price_cents {CENTS}"),
    (BUY, value(BUY, order_id=...), DEAD_LETTER, "order_id is missing"),
    (BUY, value(BUY, items=...), DEAD_LETTER, "items is missing"),
    (BUY, value(BUY, items=[]), DEAD_LETTER, "items must be a list of 1 to 1000 items"),
    (BUY, value(BUY, items=[3]), DEAD_LETTER, "items [0] must be an object"),
    (
        BUY,
        value(BUY, items=[ITEM, {"quantity": 1}]),
        DEAD_LETTER,
        "items [1].product_id is missing",
    ),
    (
        BUY,
        value(BUY, items=[ITEM, ITEM]),
        DEAD_LETTER,
        "total_cents must be the sum over the items, 400",
    ),
    # What once overflowed, and ended the query for good.
    (BUY, order((2, 2**63 - 1)), DEAD_LETTER, f"items [0].price_cents {CENTS}"),
    (BUY, order((2**31 - 1, 1), (1, 1)), DEAD_LETTER, f"items [0].quantity {PIECES}"),
    (BUY, order((1, 9 * 10**18)), DEAD_LETTER, f"items [0].price_cents {CENTS}"),
    (BUY, order(*[(1, MOST_CENTS)] * 10), DEAD_LETTER, f"total_cents {CENTS}"),
    (BUY, order((1, MOST_CENTS)), ACCEPTED, None),
    # Times.
    (VIEW, value(VIEW, event_time=...), DEAD_LETTER, "event_time is missing"),
    (VIEW, value(VIEW, event_time="soon"), DEAD_LETTER, f"event_time {NO_TIME}"),
    (VIEW, value(VIEW, event_time=1763210000), DEAD_LETTER, f"event_time {NO_TIME}"),
    (VIEW, value(VIEW, event_time="2026-11-15T12:30:00"), DEAD_LETTER, f"event_time {NO_TIME}"),
    (VIEW, value(VIEW, event_time="2026-11-15"), DEAD_LETTER, f"event_time {NO_TIME}"),
    (VIEW, value(VIEW, event_time="2026-W46-7T12:30:00Z"), DEAD_LETTER, f"event_time {NO_TIME}"),
    (VIEW, value(VIEW, event_time="2026-02-30T12:30:00Z"), DEAD_LETTER, f"event_time {NO_TIME}"),
    (
        VIEW,
        value(VIEW, event_time="+292277026-12-04T15:30:08Z"),
        DEAD_LETTER,
        f"event_time {NO_TIME}",
    ),
    (
        VIEW,
        value(VIEW, event_time="1969-12-31T23:59:59Z"),
        DEAD_LETTER,
        "event_time lies before 1970",
    ),
    (
        VIEW,
        value(VIEW, event_time="0001-01-01T00:00:00+23:59"),
        DEAD_LETTER,
        "event_time lies before 1970",
    ),
    (
        VIEW,
        value(VIEW, event_time="9999-12-31T23:59:59-23:59"),
        DEAD_LETTER,
        "event_time lies in the future",
    ),
    (
        VIEW,
        value(VIEW, event_time="2026-11-15T12:36:00.000001Z"),
        DEAD_LETTER,
        "event_time lies in the future",
    ),
    (VIEW, value(VIEW, event_time="2026-11-15T12:36:00Z"), ACCEPTED, None),
]


@pytest.mark.parametrize(("topic", "record", "outcome", "reason"), JUDGED)
def test_every_record_has_its_outcome_and_every_dead_letter_its_reason(
    topic: str, record: bytes | None, outcome: str, reason: str | None
) -> None:
    found = judge(topic, record, NOW * 1000)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_a_record_without_a_timestamp_did_not_arrive_at_any_time() -> None:
    assert judge(VIEW, value(VIEW), -1000).reason == "the record has no timestamp"


def test_a_record_that_breaks_the_judge_is_a_dead_letter_too() -> None:
    found = judge("a topic of which no rules are known", value(VIEW), NOW * 1000)
    assert (found.outcome, found.reason) == (DEAD_LETTER, "it cannot be judged: KeyError")


def test_microseconds_of_a_time_are_exact() -> None:
    assert time_us("2026-11-15T12:35:00.123456789Z") == NOW * 1000 + 123_456
    assert time_us("1970-01-01T01:00:00.000001+01:00") == 1


# -- the endpoint has the same rules ---------------------------------------------------------------


@pytest.mark.parametrize("topic", topics.INPUTS)
def test_the_example_of_the_contract_is_taken(topic: str) -> None:
    taken = take({"event": topic, **sent(topic)}, NOW)
    assert (taken.topic, taken.user) == (topic, "u00042")
    assert json.loads(taken.value) == topics.CONTRACTS[topic].value


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "the event must be a JSON object"),
        ({}, "event must be one of product_viewed"),
        ({"event": "x"}, "event must be one of"),
        ({"event": ["product_viewed"]}, "event must be one of"),
        ({"event": VIEW, **sent(VIEW, user_id=7)}, f"user_id {NAME}"),
        ({"event": VIEW, **sent(VIEW, extra="x" * LARGEST_EVENT)}, "must not be larger than"),
    ],
)
def test_a_wrong_event_is_refused_with_the_field_and_the_reason(document: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        take(document, NOW)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(Refused) as refused:
        take({"event": CART, **sent(CART, user_id=..., quantity="2", event_time=5)}, NOW)
    assert [field for field, _ in refused.value.problems] == ["user_id", "quantity", "event_time"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, MOST_CENTS, MOST_PIECES, 10**400])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=()), max_size=300)
    | st.sampled_from(["2026-11-15T12:35:00Z", "2026-11-15T12:35:00", "9999-12-31T23:59:59Z"]),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["product_id", "quantity", "price_cents"]), inside)
    ),
    max_leaves=6,
)


@given(
    topic=st.sampled_from(topics.INPUTS),
    changes=st.dictionaries(
        st.sampled_from([*topics.CONTRACTS[BUY].value, "product_id", "quantity", "price_cents"]),
        ANYTHING,
        max_size=3,
    ),
)
def test_endpoint_and_pipeline_agree_on_every_event(topic: str, changes: dict[str, Any]) -> None:
    document = read(json.dumps({"event": topic, **sent(topic), **changes}).encode())
    judged = judge(topic, value(topic, **changes), NOW * 1000)
    problems, taken = [], b""
    try:
        taken = take(document, NOW).value
    except Refused as refused:
        problems = refused.problems
    if problems:
        assert (judged.outcome, judged.reason) == (DEAD_LETTER, " ".join(problems[0]))
    else:
        assert judged == judge(topic, taken, NOW * 1000)
        assert judged.reason is None


@given(records=st.lists(st.tuples(st.sampled_from(topics.INPUTS), st.binary() | st.none())))
def test_whatever_bytes_come_each_record_becomes_one_row(
    records: list[tuple[str, bytes | None]],
) -> None:
    rows = [*((topic, record) for topic, record, _, _ in JUDGED), *records]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([f"eu-{topic}" for topic, _ in rows]),
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array(range(len(rows)), pa.int64()),
            "timestamp": pa.array([NOW * 1000] * len(rows), pa.timestamp("us", "UTC")),
            "value": pa.array([record for _, record in rows], pa.binary()),
        }
    )
    made = judged_batch(batch, "eu-", tuple(COLUMNS), OUTCOMES)
    assert made.num_rows == len(rows)
    assert set(made.column("topic").to_pylist()) <= set(topics.INPUTS)
    assert set(made.column("outcome").to_pylist()) <= set(OUTCOMES)
    kept = judged_batch(batch, "eu-", EVENT, (ACCEPTED,))
    assert kept.num_rows == made.column("outcome").to_pylist().count(ACCEPTED)
