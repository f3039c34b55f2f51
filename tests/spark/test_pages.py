"""The pages that start a Spark can be typed, block after block, into an empty folder."""

from pathlib import Path

import pytest

from tests import pages


@pytest.mark.parametrize("page", pages.HEAVY)
def test_page_can_be_typed_in_order(page: str, tmp_path: Path) -> None:
    pages.read(page, tmp_path)
