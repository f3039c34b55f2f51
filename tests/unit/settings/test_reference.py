"""The reference page says what the declarations say."""

from tools import reference


def test_the_page_is_up_to_date() -> None:
    assert reference.PAGE.read_text("utf-8") == reference.page(), "run `make docs`"
