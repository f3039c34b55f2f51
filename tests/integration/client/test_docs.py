"""The page on the clients: its examples run, its tables are the declarations."""

import re
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker

from scriba.client.settings import AdminSettings, ConsumerSettings, ProducerSettings
from scriba.config import Settings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run_in_their_order(broker: Broker, topic: str) -> None:
    assert len(EXAMPLES) == 6
    names = ("orders", "payments", "events", "greetings", "billing")
    for example in EXAMPLES:
        source = example.replace("localhost:9092", broker.bootstrap)
        for name in names:
            source = source.replace(f'"{name}"', f'"{topic}-{name}"')
        scope: dict[str, Any] = {"print": lambda *words: None}
        exec(compile(source, "docs/client.md", "exec"), scope)


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
