"""What the shop's page shows, made from records: tables by key, minutes, hours, nonsense."""

from typing import Any

import pytest

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.dashboard.picture import KEPT, LETTERS, READ, SHOWN, Picture, Reading

NOON = 1_794_744_000_000  # 2026-11-15T12:00:00Z
MINUTE = 60_000


def iso(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def sell(picture: Picture, at: int, orders: int, cents: int, heard: int = NOON) -> None:
    value: dict[str, Any] = {"window_start": iso(at), "window_end": iso(at + MINUTE)}
    value |= {"orders": orders, "units": orders, "revenue_cents": cents}
    picture.take(topics.SALES_PER_MINUTE, iso(at), value, heard)


def draw(picture: Picture, now: int = NOON + 1_000, **reading: Any) -> dict[str, Any]:
    return picture.draw(now, Reading(connected=True, **reading))


@pytest.mark.parametrize("topic", READ)
def test_the_example_of_every_topic_is_understood(topic: str) -> None:
    picture = Picture()
    example = topics.CONTRACTS[topic]
    picture.take(topic, example.key, example.value, NOON)
    assert picture.strange == 0
    picture.drop(topic, example.key)
    empty = Picture()
    shown = draw(picture)
    shown["figures_at"] = shown["progress_at"] = None
    assert shown == draw(empty)


def test_a_later_record_of_a_minute_replaces_the_earlier() -> None:
    picture = Picture()
    sell(picture, NOON, 1, 1_000)
    sell(picture, NOON, 4, 9_000)
    shown = draw(picture)
    assert shown["minutes"]["orders"][-1] == 4
    assert shown["hour"]["revenue_cents"] == 9_000


def test_silence_between_known_minutes_is_nothing_and_outside_it_is_unknown() -> None:
    picture = Picture()
    sell(picture, NOON - 5 * MINUTE, 1, 100)
    sell(picture, NOON - 2 * MINUTE, 2, 200)
    assert draw(picture)["minutes"]["orders"][-7:] == [None, 1, 0, 0, 2, None, None]


def test_the_page_shows_an_hour_that_ends_now_or_with_the_last_figures() -> None:
    picture = Picture()
    sell(picture, NOON, 3, 300)
    soon = draw(picture, NOON + 59 * MINUTE)
    assert soon["minutes"]["orders"][0] == 3
    assert soon["first"] * 1000 == NOON
    much_later = draw(picture, NOON + 600 * MINUTE)
    assert much_later["minutes"]["orders"][-1] == 3
    assert len(much_later["minutes"]["orders"]) == SHOWN


def test_an_event_from_the_far_future_does_not_move_the_page() -> None:
    picture = Picture()
    sell(picture, NOON, 3, 300)
    sell(picture, NOON + 600 * MINUTE, 7, 700)
    shown = draw(picture)
    assert shown["minutes"]["orders"][-1] == 3
    assert shown["hour"]["orders"] == 3


def test_a_month_of_minutes_keeps_a_day_of_them() -> None:
    picture = Picture()
    for back in range(3 * KEPT):
        sell(picture, NOON - (3 * KEPT - back) * MINUTE, 1, 100)
    sell(picture, NOON, 1, 100)
    assert draw(picture)["hour"]["orders"] == SHOWN
    assert sum(map(len, (picture._minutes[topics.SALES_PER_MINUTE]._rows,))) <= KEPT + SHOWN


def test_five_minutes_are_shown_as_an_average_at_their_last_minute_once_they_are_over() -> None:
    picture = Picture()
    for back in range(8):
        start = NOON - back * MINUTE
        sell(picture, start, 1, 100)
        value: dict[str, Any] = {
            "window_start": iso(start),
            "orders": 5,
            "revenue_cents": 500 + back,
        }
        picture.take(topics.SALES_SLIDING, iso(start), value, NOON)
    # Nor is the window whole that begins with the first minute of all.
    assert draw(picture)["minutes"]["average"][-4:] == [None, 101, 101, None]


def test_the_first_minute_of_all_and_the_running_one_are_not_whole() -> None:
    picture = Picture()
    for back in (3, 2, 1, 0):
        sell(picture, NOON - back * MINUTE, 1, 100)
    health = topics.CONTRACTS[topics.HEALTH].value
    picture.take(topics.HEALTH, "k", {**health, "minute": iso(NOON - MINUTE)}, NOON)
    assert draw(picture)["partial"] == {
        "figures": [SHOWN - 4, SHOWN - 1],
        "arrivals": [SHOWN - 2],
    }
    later = draw(picture, NOON + 90 * MINUTE)
    assert later["partial"]["figures"] == [SHOWN - 4]
    for back in range(4, 2 * SHOWN):
        sell(picture, NOON - back * MINUTE, 1, 100)
    assert draw(picture)["partial"]["figures"] == [SHOWN - 1]


def test_products_are_shown_by_their_names_where_these_are_known() -> None:
    picture = Picture()
    products = [{"product_id": "p1", "views": 7}, {"product_id": "p2", "views": 3}]
    hour = {"window_start": iso(NOON - 60 * MINUTE), "window_end": iso(NOON)}
    picture.take(topics.TOP_VIEWED_PRODUCTS, topics.LATEST, {**hour, "products": products}, NOON)
    picture.take(topics.PRODUCTS, "p1", {"product_id": "p1", "name": "Desk Lamp"}, NOON)
    shown = draw(picture)["top"]["products"]
    assert [(each["id"], each["name"]) for each in shown] == [("p1", "Desk Lamp"), ("p2", "p2")]
    picture.drop(topics.PRODUCTS, "p1")
    assert draw(picture)["top"]["products"][0]["name"] == "p1"


def test_records_that_make_no_sense_are_counted_and_change_nothing() -> None:
    picture = Picture()
    sell(picture, NOON, 2, 200)
    before = draw(picture)
    value: Any
    for value in (
        {},
        {"window_start": "yesterday", "orders": 1, "units": 1, "revenue_cents": 1},
        {"window_start": iso(NOON), "orders": None, "units": 1, "revenue_cents": 1},
        [],
    ):
        with pytest.raises(ValueError, match="sales_per_minute"):
            picture.take(topics.SALES_PER_MINUTE, "k", value, NOON + 5)
    after = draw(picture)
    assert after.pop("reading")["strange"] == 4
    del before["reading"]
    assert after == before


def test_only_the_newest_dead_letters_are_kept() -> None:
    picture = Picture()
    for n in range(3 * LETTERS):
        letter = {"topic": "t", "reason": f"r{n}", "arrived": iso(NOON + n * MINUTE)}
        picture.take(topics.DEAD_LETTERS, str(n), letter, NOON)
    assert [each["reason"] for each in draw(picture)["letters"]] == [
        f"r{n}" for n in range(3 * LETTERS - 1, 2 * LETTERS - 1, -1)
    ]


def test_progress_is_no_news_of_the_figures() -> None:
    picture = Picture()
    example = topics.CONTRACTS[topics.PROGRESS]
    picture.take(topics.PROGRESS, example.key, example.value, NOON)
    shown = draw(picture)
    assert (shown["figures_at"], shown["progress_at"]) == (None, NOON)


def test_the_lag_of_a_groups_offsets_is_believed_before_what_a_query_said() -> None:
    picture = Picture()
    example = topics.CONTRACTS[topics.PROGRESS]
    picture.take(topics.PROGRESS, example.key, example.value, NOON)
    assert draw(picture)["queries"][0]["lag"] == 12
    assert draw(picture, lags={"figures": 900})["queries"][0]["lag"] == 900
