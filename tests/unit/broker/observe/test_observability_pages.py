"""The pages of metrics and events say what is declared."""

from pathlib import Path

import pytest

from tools import observability


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (observability.METRICS_PAGE, observability.metrics_page()),
        (observability.EVENTS_PAGE, observability.events_page()),
    ],
    ids=["metrics", "events"],
)
def test_the_page_is_up_to_date(page: Path, text: str) -> None:
    assert page.read_text("utf-8") == text, "run `make docs`"
