"""What each customer owes (aiokafka)."""

import json
from collections import Counter

from aiokafka import AIOKafkaConsumer


async def totals(bootstrap_servers: str, invoices: str, count: int) -> Counter[str]:
    """Adds up the first `count` invoices, and commits that it has."""
    owed: Counter[str] = Counter()
    consumer = AIOKafkaConsumer(
        invoices,
        bootstrap_servers=bootstrap_servers,
        group_id="totals",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer:
        for _ in range(count):
            invoice = json.loads((await consumer.getone()).value)
            owed[invoice["customer"]] += invoice["total"]
        await consumer.commit()
    return owed
