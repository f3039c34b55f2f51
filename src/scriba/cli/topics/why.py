"""`scriba topic why`: has the state of a topic's partitions explained, from what all nodes know."""

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scriba.cli.node.arguments import DATA
from scriba.cli.node.control import running
from scriba.cli.output import counted, note, print_json, print_lines
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import timeout_ms, with_admin
from scriba.client import Admin
from scriba.client.admin.model import TopicDescription
from scriba.client.diagnosis.explain import is_well
from scriba.client.diagnosis.gather import PATIENCE_MS, explained
from scriba.client.diagnosis.page import WHOLE, pages

_PARTITION: Final = re.compile(r"(.+)[-:](\d+)")


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    topic, number = await named(admin, options.topic)
    now_ms = time.time_ns() // 1_000_000
    documents = await explained(admin, topic, number, min(timeout_ms(options), PATIENCE_MS), now_ms)
    drop_orders_to_nobody(documents)
    if options.json:
        print_json(documents)
        return 0
    shown = [each for each in documents if number is not None or not is_well(each)]
    if shown:
        print_lines(pages(shown, now_ms))
        if len(shown) > WHOLE:
            note(f"for each of them: scriba topic why {topic.name}:N")
    else:
        note(f"all is well with {counted(len(documents), 'partition')} of {topic.name}")
        if not all(each["controlled"] for each in documents):
            note("no active controller answers: nobody is elected, and nobody let in sync")
        moving = sum(each["move"] is not None for each in documents)
        if moving:
            are = "1 of them is" if moving == 1 else f"{moving} of them are"
            note(f"{are} being moved: scriba cluster reassign --list")
    return 0


def drop_orders_to_nobody(documents: Sequence[Mapping[str, Any]]) -> None:
    """`scriba node start` is for nodes that `scriba up --nodes` runs over the directory here."""
    choices = [choice for each in documents for choice in each["choices"]]
    orders = [c for c in choices if (c["command"] or "").startswith("scriba node start ")]
    nodes = {str(each["node_id"]): each["address"] for each in running(DATA)} if orders else {}
    for choice in orders:
        address = nodes.get(choice["command"].rpartition(" ")[2])
        if address is None or f" at {address} " not in choice["choice"]:
            choice["command"] = None


async def named(admin: Admin, text: str) -> tuple[TopicDescription, int | None]:
    """A topic, and one partition of it if that is named: as events do, or as other commands."""
    there = {topic.name for topic in await admin.list_topics(include_internal=True)}
    name, number = text, None
    found = _PARTITION.fullmatch(text)
    if text not in there and found and found[1] in there:
        name, number = found[1], int(found[2])
    elif found and found[1] in there:
        note(f"this is the topic {text}; for a partition of {found[1]}: {found[1]}:{found[2]}")
    elif ":" in text:  # which no topic has in its name
        topic_alone = text.rpartition(":")[0]
        if topic_alone in there:
            raise Misuse(f"{text} names no partition of {topic_alone}", f"write {topic_alone}:0")
        raise CommandError(f"there is no topic {topic_alone}", "see scriba topic list")
    topic = (await admin.describe_topics([name]))[name]
    if number is not None and number >= len(topic.partitions):
        raise CommandError(
            f"{name} has no partition {number}", f"choose one below {len(topic.partitions)}"
        )
    return topic, number
