"""A setting that is accepted has an effect: somewhere in the product its value is read."""

import ast
from pathlib import Path

import scriba
from scriba.settings import NodeSettings, TopicSettings

SOURCE = Path(scriba.__file__).parent
DECLARATIONS = {"topic.py", "node_keys.py", "cleaner_keys.py"}
TURNED_INTO_ANOTHER = {"internal.segment.bytes"}
"""Given, it becomes the value of `segment.bytes`."""

BOUNDS = {
    f"group.consumer.{bound}{what}.ms"
    for bound in ("min.", "max.", "")
    for what in ("session.timeout", "heartbeat.interval", "assignment.interval")
}
"""Checked against each other by name."""


def attributes_read() -> set[str]:
    read: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        if room in ("client", "peers") or (room == "settings" and path.name in DECLARATIONS):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return read


def test_every_setting_is_read_somewhere() -> None:
    read = attributes_read()
    topic = TopicSettings.table.values()
    through_topics = {name for s in topic if s.attribute in read for name in s.synonyms}
    idle = [s.name for s in topic if not s.feature and s.attribute not in read]
    idle += [
        s.name
        for s in NodeSettings.table.values()
        if not s.feature and s.attribute not in read and s.name not in through_topics
    ]
    assert set(idle) - BOUNDS == TURNED_INTO_ANOTHER
