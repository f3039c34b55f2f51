"""How a play of the cast ends: the groups catch up, and the books are held against what is left."""

import asyncio
from dataclasses import dataclass
from typing import Any

from scriba.client import Consumer, TopicPartition
from scriba.peers.ports import Ports
from scriba.testing.history import Where, check_copied
from scriba.testing.sim.actors.cast import (
    AUDITORS,
    COPIERS,
    ROWS,
    SINK,
    SOURCE,
    Books,
    everything,
    rows_of,
)

TOPIC_OF = {COPIERS: SOURCE, AUDITORS: SINK}


@dataclass(frozen=True, slots=True)
class Verdict:
    books: Books
    bootstrap: str
    partitions: int

    def reading(self, ports: Ports, **more: Any) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"},
            _ports=ports,
            auto_offset_reset="earliest",
            **more,
        )

    async def catch_up(self, group: str, ports: Ports) -> None:
        """Returns when the group has committed all there is; markers at the end do not count."""
        wanted = [TopicPartition(TOPIC_OF[group], at) for at in range(self.partitions)]
        async with self.reading(ports, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign(wanted)
            last = dict.fromkeys(wanted, -1)
            for where in wanted:
                for record in (await everything(consumer, where))[0]:
                    last[TopicPartition(record.topic, record.partition)] = record.offset
            while True:
                found = await consumer.committed(wanted)
                places = {where: 0 if at is None else at.offset for where, at in found.items()}
                if all(places[where] > last[where] for where in wanted):
                    return
                await asyncio.sleep(0.2)

    async def check(self, ports: Ports) -> None:
        books = self.books
        sources, sinks = await self.logs(SOURCE, ports), await self.logs(SINK, ports)
        copied, audited = await self._offsets(COPIERS, ports), await self._offsets(AUDITORS, ports)
        books.records.check({where[1]: log for where, log in sources.items()})
        books.transactions.check(sinks, {(COPIERS, where): copied[where] for where in sources})
        for text in check_copied(sources, sinks, copied, lambda value: value.split(b"|", 1)[1]):
            books.transactions.violation(text)
        books.groups.check(
            {
                (group, where): [at for at, _ in log if at < (offsets[where] or 0)]
                for group, offsets, of in ((COPIERS, copied, sources), (AUDITORS, audited, sinks))
                for where, log in of.items()
            }
        )
        async with self.reading(ports) as consumer:
            consumer.assign([ROWS])
            books.table.read(ROWS, *await rows_of(consumer))

    async def logs(self, topic: str, ports: Ports) -> dict[Where, list[tuple[int, bytes]]]:
        logs: dict[Where, list[tuple[int, bytes]]] = {}
        for partition in range(self.partitions):
            where = TopicPartition(topic, partition)
            async with self.reading(ports) as consumer:
                consumer.assign([where])
                found, _ = await everything(consumer, where)
            logs[where] = [(record.offset, record.value) for record in found]
        return logs

    async def _offsets(self, group: str, ports: Ports) -> dict[Where, int | None]:
        fetch = self.books.groups.fetch(group)
        async with self.reading(ports, group_id=group, enable_auto_commit=False) as consumer:
            wanted = [(TOPIC_OF[group], at) for at in range(self.partitions)]
            found = await consumer.committed(wanted)
        told: dict[Where, tuple[int, str] | None] = {
            where: None if at is None else (at.offset, at.metadata) for where, at in found.items()
        }
        self.books.groups.fetched(fetch, told)
        return {where: None if at is None else at.offset for where, at in found.items()}
