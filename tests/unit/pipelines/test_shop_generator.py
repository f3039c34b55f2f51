"""The generator: the same seed gives the same stream, and the stream looks like a shop."""

import json
from collections import Counter
from itertools import islice, pairwise

import pytest

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import HOUR_MS, MINUTE_MS, time_ms, time_name
from scriba.pipelines.shop.simulation.catalogue import name_of
from scriba.pipelines.shop.simulation.generator import Delivery, Event, Generator, Shape, encode
from scriba.pipelines.shop.simulation.truth import Truth, sessions

START = 1_793_000_000_000


@pytest.fixture(scope="module")
def hour() -> list[Delivery]:
    shape = Shape(seed=7, rate=8, swing=0, users=300)
    return list(Generator(shape, START, START + HOUR_MS).deliveries())


def test_one_seed_gives_one_stream() -> None:
    def stream(seed: int) -> list[Delivery]:
        return list(islice(Generator(Shape(seed=seed), START).deliveries(), 2000))

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)


def test_deliveries_come_in_the_order_of_arrival(hour: list[Delivery]) -> None:
    assert all(one.arrival_ms <= other.arrival_ms for one, other in pairwise(hour))
    assert all(START <= delivery.event.time_ms < START + HOUR_MS for delivery in hour)
    assert all(delivery.arrival_ms > delivery.event.time_ms for delivery in hour)


def test_the_rate_is_about_what_was_asked_for(hour: list[Delivery]) -> None:
    assert 6 < len(hour) / 3600 < 10


def test_what_arrives_is_what_the_contract_says(hour: list[Delivery]) -> None:
    for delivery in hour:
        event = delivery.event
        if not delivery.broken:
            value = json.loads(delivery.value)
            example = topics.CONTRACTS[event.topic].value
            assert value.keys() == example.keys()
            assert all(type(value[name]) is type(example[name]) for name in value)
            assert time_ms(value["event_time"]) == event.time_ms


def test_shares_are_those_of_a_shop(hour: list[Delivery]) -> None:
    total = len(hour)
    topic = Counter(delivery.event.topic for delivery in hour)
    assert topic[topics.PRODUCT_VIEWED] > 4 * topic[topics.ADD_TO_CART]
    assert topic[topics.ADD_TO_CART] > 2 * topic[topics.PURCHASE_COMPLETED] > 0
    assert 0.1 < sum(delivery.event.bot for delivery in hour) / total < 0.35
    assert 0.005 < sum(delivery.copy for delivery in hour) / total < 0.015
    delays = [delivery.arrival_ms - delivery.event.time_ms for delivery in hour]
    assert 0.04 < sum(delay > 10_000 for delay in delays) / total < 0.08
    assert 0.0005 < sum(delay > 10 * MINUTE_MS for delay in delays) / total < 0.004
    assert any(delivery.broken for delivery in hour)
    views = Counter(d.event.items[0][0] for d in hour if d.event.topic == topics.PRODUCT_VIEWED)
    assert views["p0000"] > 1.5 * views["p0001"] > 1.5 * views["p0009"]


def test_truth_accounts_for_every_delivery(hour: list[Delivery]) -> None:
    truth = Truth()
    for delivery in hour:
        truth.add(delivery)
    summary = truth.summary()
    late_copies = sum(row["late"] for row in truth.tables()[topics.HEALTH].values())
    sums = summary["counted"] + summary["duplicates"] + summary["bots"] + late_copies
    assert sums + sum(summary["dead_letters"].values()) == len(hour)
    assert summary["revenue_cents"] == sum(
        row["revenue_cents"] for row in truth.tables()[topics.SALES_PER_MINUTE].values()
    )


def event(minute: float, topic: str = topics.PRODUCT_VIEWED, user: str = "u") -> Event:
    at = START + int(minute * MINUTE_MS)
    return Event(at, topic, f"{at}", user, "s", "web", "Firefox", False, (("p1", 2, 150),))


def test_a_session_ends_with_a_gap() -> None:
    found = dict(sessions([event(0), event(29), event(61), event(10, user="v")]))
    assert [(row["user_id"], row["views"]) for row in found.values()] == [
        ("u", 2),
        ("u", 1),
        ("v", 1),
    ]


def test_sliding_windows_hold_what_their_minutes_hold() -> None:
    truth = Truth()
    for number, minute in enumerate((0, 1, 4)):
        bought = event(minute, topics.PURCHASE_COMPLETED)
        truth.add(Delivery(bought.time_ms + 50, number, bought, encode(bought), False, ""))
    tables = truth.tables()
    assert [row["revenue_cents"] for row in tables[topics.SALES_PER_MINUTE].values()] == [300] * 3
    sliding = [row["orders"] for row in tables[topics.SALES_SLIDING].values()]
    assert sliding == [1, 2, 2, 2, 3, 2, 1, 1, 1]


def test_times_are_read_as_they_are_written() -> None:
    assert time_name(START + 1234) == "2026-10-26T07:33:21.234Z"
    assert time_ms(time_name(START + 1234)) == START + 1234
    with pytest.raises(ValueError, match="no time zone"):
        time_ms("2026-10-26T07:33:21")


def test_every_product_has_a_name_of_its_own() -> None:
    names = [name_of(number) for number in range(2000)]
    assert len(set(names)) == len(names)
    assert name_of(7) == topics.CONTRACTS[topics.PRODUCTS].value["name"]
