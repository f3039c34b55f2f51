"""What both services share: to be a member of a group and do something for every event.

An event is done, then committed. After a crash some are done again, so each service must take an
event a second time without harm.
"""

import asyncio
import sys
from collections.abc import Callable

from events import TOPIC

from scriba.client import Consumer

Handle = Callable[[str, str], str]
"""(order, event) -> what was done about it."""


async def serve(bootstrap: str, group: str, name: str, handle: Handle) -> None:
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        client_id=name,
        group_id=group,
        key_deserializer="str",
        value_deserializer="str",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
    )
    async with consumer:
        consumer.subscribe(TOPIC, on_assigned=lambda parts: say(f"has {numbers(consumer)}"))
        while True:
            for record in await consumer.poll(1000, max_records=5):
                say(f"{record.key} {record.value}: {handle(record.key, record.value)}")
                await consumer.commit({(record.topic, record.partition): record.offset + 1})


def numbers(consumer: Consumer) -> str:
    """The partitions this member has; a member too many has none."""
    return " ".join(str(where.partition) for where in consumer.assignment()) or "nothing"


def say(text: str) -> None:
    print(text, flush=True)


def run(group: str, handle: Handle) -> None:
    """The command line of a service: BOOTSTRAP NAME."""
    bootstrap, name = sys.argv[1:]
    asyncio.run(serve(bootstrap, group, name, handle))
