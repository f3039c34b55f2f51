"""The README's example makes what it says, the diagram of transactions is the table."""

import re
from pathlib import Path
from typing import Any

from brokers import Broker

from scriba.client import NewTopic, SyncAdmin, SyncConsumer, SyncProducer
from scriba.client.transactions import VALID

DOCS = Path(__file__).resolve().parents[3] / "docs"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run(source: str, broker: Broker, topic: str, names: tuple[str, ...]) -> None:
    source = source.replace("localhost:9092", broker.bootstrap)
    for name in names:
        source = source.replace(f'"{name}"', f'"{topic}-{name}"')
    scope: dict[str, Any] = {"print": lambda *words: None}
    exec(compile(source, "docs", "exec"), scope)


def test_the_example_of_the_readme_makes_invoices_of_orders(broker: Broker, topic: str) -> None:
    orders, invoices = f"{topic}-orders", f"{topic}-invoices"
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(orders, 1), NewTopic(invoices, 1)])
    with SyncProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(orders, b"7 pencils")
    (source,) = examples("../README.md")
    run(source, broker, topic, ("orders", "invoices", "billing", "billing-1"))
    with SyncConsumer(
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign([(invoices, 0)])
        assert [record.value for record in consumer.poll(10_000)] == [b"invoice for 7 pencils"]


def test_the_diagram_of_states_is_the_table_of_transitions() -> None:
    drawn = set(
        re.findall(r"^    (\w+) --> (\w+)", (DOCS / "transactions.md").read_text(), re.MULTILINE)
    )
    steps = {(a.name, b.name) for a, after in VALID.items() for b in after if a is not b}
    assert drawn == steps
