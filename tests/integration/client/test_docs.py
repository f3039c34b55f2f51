"""The page on the clients: its tables are the declarations."""

import re
from pathlib import Path

import pytest

from scriba.client.settings import AdminSettings, ConsumerSettings, ProducerSettings
from scriba.config import Settings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "client.md").read_text()


@pytest.mark.parametrize("settings", [ProducerSettings, ConsumerSettings, AdminSettings])
def test_every_setting_is_in_a_table(settings: type[Settings]) -> None:
    for name, declared in settings.table.items():
        row = re.search(rf"^\| `{re.escape(name)}` \|(.*?)\| (.*?) \|$", PAGE, re.MULTILINE)
        if declared.feature:
            assert row is None, f"{name} is not served yet"
            continue
        assert row is not None, f"{name} is missing"
        default = declared.render(declared.default)
        assert row[1].strip() == (f"`{default}`" if default else "")
        assert row[2].startswith(declared.doc)
