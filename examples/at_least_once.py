"""At least once: what is read is used first, then committed.

A crash in between uses again what was used and not yet committed; nothing is lost. For what does no
harm when it is done twice: to set a value, to write a row under its key.

    python at_least_once.py localhost:9092 source target
"""

import asyncio
import sys

from scriba.client import Consumer, Producer


def work(value: bytes | None) -> bytes | None:
    return value and value.upper()  # a deletion (no value) stays one


async def main(bootstrap: str, source: str, target: str) -> None:
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id="at-least-once",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=10,
        session_timeout_ms=6_000,  # so soon a crash is noticed
    )
    async with consumer, Producer(bootstrap_servers=bootstrap) as producer:
        consumer.subscribe(source)
        while True:
            records = await consumer.poll(1000)
            for record in records:
                await producer.send(target, work(record.value), record.key)
            await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
