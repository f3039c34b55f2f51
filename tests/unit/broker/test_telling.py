"""The pages of metrics and events say what is declared."""

from tools import telling


def test_the_pages_are_up_to_date() -> None:
    assert telling.METRICS_PAGE.read_text("utf-8") == telling.metrics_page(), "run `make docs`"
    assert telling.EVENTS_PAGE.read_text("utf-8") == telling.events_page(), "run `make docs`"
