"""At most once: what is read is committed first, then used.

A crash in between loses what was committed and not yet used; nothing is used twice. For what may be
missing now and then, and must never be doubled: a sound, a mail, a sample.

    python at_most_once.py localhost:9092 source target
"""

import asyncio
import sys

from scriba.client import Consumer, Producer


def work(value: bytes | None) -> bytes | None:
    return value and value.upper()  # a deletion (no value) stays one


async def main(bootstrap: str, source: str, target: str) -> None:
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id="at-most-once",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=10,
        session_timeout_ms=6_000,  # so soon a crash is noticed
    )
    async with consumer, Producer(bootstrap_servers=bootstrap) as producer:
        consumer.subscribe(source)
        while True:
            records = await consumer.poll(1000)
            await consumer.commit()
            for record in records:
                await producer.send(target, work(record.value), record.key)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
