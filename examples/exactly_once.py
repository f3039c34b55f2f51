"""Exactly once: what is written and what is committed stand or fall together, in a transaction.

A crash at any moment leaves an open transaction, which is aborted; whoever reads the target with
read_committed never sees it, and the group goes on before it. A second process with the same
transactional id fences the first, so no zombie writes either. It covers what is written to topics,
not mails that were sent on the way.

    python exactly_once.py localhost:9092 source target
"""

import asyncio
import sys

from scriba.client import AbortableTransactionError, Consumer, Producer


def work(value: bytes | None) -> bytes | None:
    return value and value.upper()  # a deletion (no value) stays one


async def step(consumer: Consumer, producer: Producer, target: str) -> None:
    """Some records, all of them or none."""
    records = await consumer.poll(1000)
    if not records:
        return
    offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
    async with producer.transaction() as transaction:
        for record in records:
            await producer.enqueue(target, work(record.value), record.key)
        await transaction.send_offsets(offsets, consumer.group_metadata())


async def main(bootstrap: str, source: str, target: str) -> None:
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id="exactly-once",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_poll_records=10,
        session_timeout_ms=6_000,  # so soon a crash is noticed
    )
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=f"exactly-once-{source}")
    async with consumer, producer:
        consumer.subscribe(source)
        while True:
            try:
                await step(consumer, producer, target)
            except AbortableTransactionError:  # aborted; what was read in it is read again
                committed = await consumer.committed(consumer.assignment())
                for where, place in committed.items():
                    consumer.seek(where, place.offset if place else 0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
