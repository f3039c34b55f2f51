"""Consume, transform, produce; exactly once, in ten lines.

python transform.py localhost:9092 source target
"""

import asyncio
import sys

from scriba.client import Consumer, Producer

READING = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,  # the transaction commits them
    "isolation.level": "read_committed",
}


async def main(at: str, source: str, target: str) -> None:
    consumer = Consumer(READING, bootstrap_servers=at, group_id=f"transform-{source}")
    producer = Producer(bootstrap_servers=at, transactional_id=f"transform-{source}")
    async with consumer, producer:
        consumer.subscribe(source)
        while records := await consumer.poll(10_000):  # ends after ten quiet seconds
            offsets = {(r.topic, r.partition): r.offset + 1 for r in records}
            async with producer.transaction() as transaction:
                for r in records:
                    await producer.enqueue(target, r.value.upper(), r.key)
                await transaction.send_offsets(offsets, consumer.group_metadata())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
