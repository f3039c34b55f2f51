"""The page on the clients: its tables are the declarations."""

import re
from pathlib import Path

import pytest

from scriba.client.settings import AdminSettings, ConsumerSettings, ProducerSettings
from scriba.config import Settings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "client.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## Settings of {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        (ProducerSettings, "the producer"),
        (ConsumerSettings, "the consumer"),
        (AdminSettings, "the admin"),
    ],
)
def test_every_setting_is_in_a_table(settings: type[Settings], title: str) -> None:
    tables = section(title) + section("all clients")
    for name, declared in settings.table.items():
        row = re.search(rf"^\| `{re.escape(name)}` \|(.*?)\| (.*?) \|$", tables, re.MULTILINE)
        if declared.feature:
            assert row is None, f"{name} is not served yet"
            continue
        assert row is not None, f"{name} is missing"
        default = declared.render(declared.default)
        assert row[1].strip() == (f"`{default}`" if default else "")
        assert row[2].startswith(declared.doc)
