"""The diagram on the page of transactions is the table."""

import re
from pathlib import Path

from scriba.client.transactions.machine import VALID

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    drawn = set(
        re.findall(r"^    (\w+) --> (\w+)", (DOCS / "transactions.md").read_text(), re.MULTILINE)
    )
    steps = {(a.name, b.name) for a, after in VALID.items() for b in after if a is not b}
    assert drawn == steps
