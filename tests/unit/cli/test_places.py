from datetime import datetime

import pytest

from scriba.cli.parsing.partitions import partitions_named
from scriba.cli.parsing.positions import BEGINNING, END, Position, parse_position
from scriba.cli.problems import Misuse
from scriba.client import Admin

NOW = 1_767_225_600_000
HOUR = 3_600_000


def test_places_that_have_a_name_or_a_number() -> None:
    assert parse_position("beginning", NOW) == BEGINNING
    assert parse_position(" End ", NOW) == END
    assert parse_position("earliest", NOW) == BEGINNING
    assert parse_position("Latest", NOW) == END
    assert parse_position("42", NOW) == Position("offset", 42)
    assert parse_position("-10", NOW) == Position("last", 10)
    assert parse_position("@1234", NOW) == Position("time", 1234)


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("2h ago", 2 * HOUR),
        ("2 hours ago", 2 * HOUR),
        ("1h30m ago", HOUR * 3 // 2),
        ("1 day 2 hours ago", 26 * HOUR),
        ("1.5h ago", HOUR * 3 // 2),
        ("90 sec ago", 90_000),
        ("1W AGO", 7 * 24 * HOUR),
        ("PT2H", 2 * HOUR),
        ("p1dt30m", 24 * HOUR + HOUR // 2),
        ("9999w ago", NOW),  # before 1970 there was nothing
    ],
)
def test_a_time_ago(text: str, back: int) -> None:
    assert parse_position(text, NOW) == Position("time", NOW - back)


def test_a_date_is_local_unless_it_names_its_zone() -> None:
    local = datetime(2026, 1, 31, 12).timestamp()
    assert parse_position("2026-01-31T12:00", NOW) == Position("time", round(local * 1000))
    assert parse_position("2026-01-01T00:00:00Z", NOW) == Position("time", NOW)
    assert parse_position("2026-01-01 01:00+01:00", NOW) == Position("time", NOW)
    assert parse_position("2026-01-01T00:00:00.250Z", NOW) == Position("time", NOW + 250)


@pytest.mark.parametrize("text", ["", "ago", "2 ago", "2 moons ago", "1h x ago", "noon", "@", "1h"])
def test_anything_else_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(ValueError, match="2h ago"):
        parse_position(text, NOW)


@pytest.mark.parametrize("text", ["t:", "t:0,", "t:,", "t:x", ":"])
async def test_partitions_that_are_only_begun_to_be_named_are_not_all_of_the_topic(
    text: str,
) -> None:
    async with Admin(bootstrap_servers="127.0.0.1:1") as admin:
        with pytest.raises(Misuse, match="not of the form"):
            await partitions_named(admin, [text])


@pytest.mark.parametrize("text", ["@" + "9" * 23, "9" * 23, "-" + "9" * 23, "9" * 400 + "s ago"])
def test_what_is_beyond_all_logs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="beyond all offsets and times"):
        parse_position(text, NOW)
