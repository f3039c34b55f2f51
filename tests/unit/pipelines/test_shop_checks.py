"""What the endpoint takes, and what it says of events that it does not take."""

from typing import Any

import pytest

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.checks import Refused, take
from scriba.pipelines.shop.rules import time_ms

NOW = time_ms("2026-11-15T12:35:00Z")


def sent(topic: str, **changes: Any) -> dict[str, Any]:
    event = {"event": topic, **topics.CONTRACTS[topic].value, **changes}
    return {name: value for name, value in event.items() if value is not ...}


@pytest.mark.parametrize("topic", topics.INPUTS)
def test_the_example_of_the_contract_is_taken(topic: str) -> None:
    taken = take(sent(topic), NOW)
    assert (taken.topic, taken.user) == (topic, "u00042")
    assert taken.event == topics.CONTRACTS[topic].value


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "the event must be a JSON object"),
        ({}, "event must be one of product_viewed"),
        (sent("product_viewed", event="x"), "event must be one of"),
        (sent("product_viewed", user_id=...), "user_id is missing"),
        (sent("product_viewed", user_id=7), "user_id must be text"),
        (sent("product_viewed", product_id=""), "product_id must be text that is not empty"),
        (sent("product_viewed", event_time="yesterday"), "event_time must be a time with its zone"),
        (sent("product_viewed", event_time="2026-11-15T12:00:00"), "time with its zone"),
        (
            sent("product_viewed", event_time="2027-11-15T12:00:00Z"),
            "event_time lies in the future",
        ),
        (sent("product_viewed", user_agent=5), "user_agent must be text"),
        (sent("add_to_cart", quantity=0), "quantity must be a whole number from 1 on"),
        (sent("add_to_cart", quantity=True), "quantity must be a whole number"),
        (sent("add_to_cart", price_cents=1.5), "price_cents must be a whole number from 0 on"),
        (sent("purchase_completed", items=[]), "items must be a list of at least one item"),
        (sent("purchase_completed", items=[3]), r"items \[0\] must be an object"),
        (sent("purchase_completed", items=[{}]), r"items \[0\].product_id is missing"),
        (sent("purchase_completed", total_cents=1), "total_cents must be the sum .* 1999"),
    ],
)
def test_a_wrong_event_is_refused_with_the_field_and_the_reason(document: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        take(document, NOW)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(Refused) as refused:
        take(sent("add_to_cart", user_id=..., quantity="2"), NOW)
    assert [field for field, _ in refused.value.problems] == ["user_id", "quantity"]
