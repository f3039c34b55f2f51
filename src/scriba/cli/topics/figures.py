"""Offsets and sizes of partitions, as far as their leaders tell them.

Whoever asks may do so because something is wrong: a broker that does not answer, or a partition
that knows no end before its replicas are back, leaves a gap in the table and takes nothing else
along.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from scriba.client import Admin, ClientError, OffsetSpec, TopicPartition

Sizes = dict[TopicPartition, int]
Offsets = dict[TopicPartition, tuple[int | None, int | None]]

PATIENCE_MS: Final = 5_000
"""How long a leader is waited for."""
ALONE_MS: Final = 3_000
"""For a single partition, where its leader did not tell all that it was asked for at once."""
ALONE_AT_ONCE: Final = 64


async def offsets_of(admin: Admin, leaders: Mapping[TopicPartition, int]) -> Offsets:
    """First and next offset of each partition; None for what its leader does not tell."""
    starts, ends = await asyncio.gather(
        _told(admin, leaders, OffsetSpec.EARLIEST), _told(admin, leaders, OffsetSpec.LATEST)
    )
    return {where: (starts.get(where), ends.get(where)) for where in leaders}


async def _told(
    admin: Admin, leaders: Mapping[TopicPartition, int], spec: int
) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for where, leader in leaders.items():
        by_leader.setdefault(leader, []).append(where)
    found: dict[TopicPartition, int] = {}
    turns = asyncio.Semaphore(ALONE_AT_ONCE)

    async def ask(partitions: Sequence[TopicPartition], timeout_ms: int) -> None:
        try:
            told = await admin.list_offsets(dict.fromkeys(partitions, spec), timeout_ms=timeout_ms)
        except ClientError:
            if len(partitions) > 1:  # one of them may have no end yet
                await asyncio.gather(*(alone(where) for where in partitions))
            return
        found.update({where: at.offset for where, at in told.items() if at is not None})

    async def alone(where: TopicPartition) -> None:
        async with turns:
            await ask([where], ALONE_MS)

    await asyncio.gather(*(ask(part, PATIENCE_MS) for part in by_leader.values()))
    return found


async def sizes_of(admin: Admin, leaders: Mapping[TopicPartition, int]) -> Sizes:
    """Bytes of each partition at its leader, where that tells."""

    async def ask(broker: int) -> Sizes:
        try:
            told = await admin.describe_log_dirs([broker], timeout_ms=PATIENCE_MS)
        except ClientError:
            return {}
        return {
            where: replica.size
            for directory in told[broker]
            for where, replica in directory.replicas.items()
            if leaders.get(where) == broker and not replica.future
        }

    found = await asyncio.gather(*(ask(broker) for broker in sorted(set(leaders.values()))))
    return {where: count for sizes in found for where, count in sizes.items()}
