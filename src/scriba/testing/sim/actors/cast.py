"""Programs that use groups and transactions, played by our own client library, on simulated time or
against a broker's process.

    Feeder    writes numbered records to SOURCE, idempotently
    Copier    a member of a group: reads SOURCE, writes a copy to SINK and commits its offsets, all
              in one transaction
    Auditor   a member of another group: reads what is committed in SINK, and commits by hand
    Keeper    writes rows to TABLE, a compacted topic, some in slow transactions
    Reader    reads TABLE from its start, again and again

Each begins anew after any error of its client, and tells the histories what it asked, was told and
read. The scene kills them, lets them leave, and starts them again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from scriba.client import (
    AbortableTransactionError,
    Admin,
    ClientError,
    Consumer,
    ConsumerRecord,
    OffsetAndMetadata,
    Producer,
    TimedOut,
    TopicPartition,
)
from scriba.peers.ports import Ports
from scriba.runtime.rng import SeededRng
from scriba.testing.history import Groups, History, Table, Transactions, Where
from scriba.testing.history.groups import Commit
from scriba.testing.history.table import Row, Write

SOURCE, SINK, TABLE = "source", "sink", "table"
COPIERS, AUDITORS = "copiers", "auditors"
ROWS: Final[Where] = (TABLE, 0)
KEYS: Final = 6

Client = TypeVar("Client", Producer, Consumer)

PATIENCE: Final = {
    "request.timeout.ms": 1_500,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 500,
    "metadata.max.age.ms": 2_000,
}


@dataclass(slots=True)
class Books:
    """All histories of one run."""

    records: History
    transactions: Transactions = field(default_factory=Transactions)
    groups: Groups = field(default_factory=Groups)
    table: Table = field(default_factory=Table)

    @property
    def violations(self) -> list[str]:
        parts = (self.records, self.transactions, self.groups, self.table)
        return [text for part in parts for text in part.violations]


@dataclass(slots=True)
class Actor:
    name: str
    books: Books
    rng: SeededRng
    partitions: int
    bootstrap: str
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make a consumer a member under one protocol."""
    transactional_id: str = ""
    """Of a writer whose transactions these are; a twin has another name and the same id."""
    stopping: bool = False
    """Set from outside: finish what is under way and return."""
    lives: int = 0
    steps: int = 0
    """What it has brought to an end, to see that it goes on."""

    async def main(self, ports: Ports) -> None:
        while not self.stopping:
            self.lives += 1
            with suppress(ClientError):
                await self.live(ports)
            if not self.stopping:
                await asyncio.sleep(self.rng.between(0.02, 0.3))

    async def live(self, ports: Ports) -> None:
        """One life; a client's error ends it."""
        raise AssertionError("an actor has a part to play")

    def admin(self, ports: Ports) -> Admin:
        """A client whose patience is short: the next step comes soon."""
        config = {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.name,
            **PATIENCE,
            "default.api.timeout.ms": 3_000,
        }
        return Admin(config, _ports=ports)

    def died(self) -> None:
        """The process was killed."""

    def twin(self, rng: SeededRng) -> Self:
        """Another one with the same transactional id, started because this one seems dead."""
        return replace(self, name=f"{self.name}-{rng.below(1 << 30)}", rng=rng, lives=0, steps=0)

    @asynccontextmanager
    async def using(self, client: Client) -> AsyncIterator[Client]:
        """Closes a client at its end, but not when the process is killed: it has no time to."""
        try:
            yield client
        except Exception:
            await client.close(0)
            raise
        await client.close(1_000)

    def producer(self, ports: Ports, **more: Any) -> Producer:
        limits = {"max.block.ms": 3_000, "delivery.timeout.ms": 6_000, "linger.ms": 0}
        config = {"bootstrap.servers": self.bootstrap, "client.id": self.name, **PATIENCE, **limits}
        return Producer(config, _ports=ports, **more)

    def consumer(self, ports: Ports, **more: Any) -> Consumer:
        config = {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.name,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "default.api.timeout.ms": 3_000,
            "fetch.max.wait.ms": 100,
            "max.poll.interval.ms": 4_000,  # and how long a JoinGroup is waited for
            **PATIENCE,
        }
        return Consumer(config, _ports=ports, **more)


class Feeder(Actor):
    quiet = False
    """Set from outside: nothing is sent while it holds."""

    async def live(self, ports: Ports) -> None:
        pending: set[asyncio.Task[None]] = set()
        async with self.using(self.producer(ports)) as producer:
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.01, 0.15))
                if self.quiet:
                    continue
                partition = self.rng.below(self.partitions)
                value = b"%s.%d:%d:" % (self.name.encode(), self.lives, self.steps)
                self.steps += 1
                self.books.records.send(partition, [value], idempotent=True)
                delivery = await producer.enqueue(SOURCE, value, partition=partition)
                pending.add(asyncio.ensure_future(self._acked(delivery, partition, value)))
                pending = {task for task in pending if not task.done()}
            await producer.flush(10_000)
        if pending:
            await asyncio.wait(pending)

    async def _acked(self, delivery: Any, partition: int, value: bytes) -> None:
        with suppress(ClientError):
            offset = (await delivery).offset
            records = self.books.records
            records.ack(partition, offset, [value], records.power_cuts)


# ---- members ----


class Member(Actor):
    group = ""
    topic = ""

    def died(self) -> None:
        self.books.groups.gone(self.group, self.identity)

    @property
    def identity(self) -> str:
        return f"{self.name}.{self.lives}"

    @asynccontextmanager
    async def membership(self, ports: Ports) -> AsyncIterator[Consumer]:
        """A subscribed consumer whose partitions are taken down."""
        groups, me = self.books.groups, self.identity
        leaving = False

        async def assigned(partitions: Sequence[TopicPartition]) -> None:
            groups.assigned(self.group, me, generation(consumer), partitions)
            await self.look(consumer, partitions)

        def revoked(partitions: Sequence[TopicPartition]) -> None:
            (groups.lost if leaving else groups.revoked)(self.group, me, partitions)

        def lost(partitions: Sequence[TopicPartition]) -> None:
            groups.lost(self.group, me, partitions)

        consumer = self.consumer(
            ports, group_id=self.group, enable_auto_commit=False, **self.protocol
        )
        consumer.subscribe([self.topic], on_assigned=assigned, on_revoked=revoked, on_lost=lost)
        try:
            yield consumer
        except Exception:
            leaving = True
            await consumer.close(0)
            groups.gone(self.group, me)
            raise
        # Nobody knows whether the group has given its partitions to others by now.
        leaving = True
        await consumer.close(1_000)
        groups.gone(self.group, me)

    async def look(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Asks what is committed, and has it checked."""
        fetch = self.books.groups.fetch(self.group)
        try:
            found = await consumer.committed(partitions, 1_000)
        except ClientError:
            return
        self.books.groups.fetched(
            fetch,
            {
                where: None if place is None else (place.offset, place.metadata)
                for where, place in found.items()
            },
        )

    def next_offsets(self, records: Sequence[ConsumerRecord[Any, Any]]) -> dict[Where, int]:
        offsets: dict[Where, int] = {}
        for record in records:
            where = (record.topic, record.partition)
            offsets[where] = max(offsets.get(where, 0), record.offset + 1)
            self.books.groups.poll(self.group, where, [record.offset])
        return offsets

    def noted(self, offsets: Mapping[Where, int], note: str) -> dict[Where, OffsetAndMetadata]:
        return {where: OffsetAndMetadata(offset, note) for where, offset in offsets.items()}

    def committing(self, consumer: Consumer, offsets: Mapping[Where, int], note: str) -> Commit:
        return self.books.groups.commit(
            self.group,
            self.identity,
            generation(consumer),
            {where: (offset, note) for where, offset in offsets.items()},
        )


def generation(consumer: Consumer) -> int:
    return consumer.group_metadata().generation_id


class Auditor(Member):
    group, topic = AUDITORS, SINK

    async def live(self, ports: Ports) -> None:
        async with self.membership(ports) as consumer:
            while not self.stopping:
                records = await consumer.poll(200, 1 + self.rng.below(20))
                for record in records:
                    where = (record.topic, record.partition)
                    self.books.transactions.read(where, record.offset, record.value)
                offsets = self.next_offsets(records)
                if self.rng.chance(0.2):
                    await self.look(consumer, consumer.assignment())
                if offsets:
                    await self._commit(consumer, offsets)

    async def _commit(self, consumer: Consumer, offsets: Mapping[Where, int]) -> None:
        self.steps += 1
        note = f"{self.identity}/{self.steps}"
        commit = self.committing(consumer, offsets, note)
        try:
            await consumer.commit(self.noted(offsets, note), 2_000)
        except TimedOut:
            return
        self.books.groups.accept(commit)


class Copier(Member):
    group, topic = COPIERS, SOURCE

    async def live(self, ports: Ports) -> None:
        producer = self.producer(
            ports, transactional_id=self.transactional_id, transaction_timeout_ms=2_500
        )
        async with self.using(producer):
            await producer.init_transactions()
            async with self.membership(ports) as consumer:
                while not self.stopping:
                    records = await consumer.poll(200, 1 + self.rng.below(10))
                    if records:
                        await self._copy(consumer, producer, records)

    async def _copy(
        self, consumer: Consumer, producer: Producer, records: list[ConsumerRecord[Any, Any]]
    ) -> None:
        told = self.books.transactions
        self.steps += 1
        name = f"{self.identity}/{self.steps}"
        await producer.begin_transaction()
        told.begin(name, self.identity)
        offsets = self.next_offsets(records)
        commit = self.committing(consumer, offsets, name)
        try:
            for record in records:
                value = b"%s|%s" % (name.encode(), record.value)
                partition = self.rng.below(self.partitions)
                told.write(name, (SINK, partition), value)
                await producer.enqueue(SINK, value, partition=partition)
            told.send_offsets(name, self.group, offsets)
            await producer.send_offsets_to_transaction(
                self.noted(offsets, name), consumer.group_metadata()
            )
            if self.rng.chance(0.1):
                await asyncio.sleep(self.rng.between(0, 1))
            if self.rng.chance(0.85):
                told.commit(name)
                await commit_patiently(producer)
                told.committed(name)
                self.books.groups.accept(commit)
                return
        except AbortableTransactionError:
            pass
        await producer.abort_transaction()
        told.aborted(name)
        self.books.groups.refuse(commit)
        for record in reversed(records):
            where = TopicPartition(record.topic, record.partition)
            if where in consumer.assignment():
                consumer.seek(where, record.offset)


async def commit_patiently(producer: Producer) -> None:
    """A commit that timed out once may have happened: only asking again can tell."""
    try:
        await producer.commit_transaction()
    except TimedOut:
        await producer.commit_transaction()


# ---- the compacted topic ----


class Keeper(Actor):
    """Writes rows: plainly, or in transactions that take their time and are often aborted."""

    transactional = False

    async def live(self, ports: Ports) -> None:
        more = {"transactional_id": self.transactional_id, "transaction_timeout_ms": 2_500}
        async with self.using(
            self.producer(ports, **(more if self.transactional else {}))
        ) as producer:
            if self.transactional:
                await producer.init_transactions()
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.02, 0.2))
                if self.transactional:
                    await self._transaction(producer)
                else:
                    write = self._write()
                    self.books.table.written(write, await self._send(producer, write))

    def _write(self) -> Write:
        self.steps += 1
        key = b"key-%d" % self.rng.below(KEYS)
        padding = b"." * self.rng.below(200)
        value = b"%s:%d:%s" % (self.name.encode(), self.steps, padding)
        return self.books.table.write(ROWS, key, None if self.rng.chance(0.1) else value)

    async def _send(self, producer: Producer, write: Write) -> int:
        return (await producer.send(TABLE, write.value, write.key, partition=0)).offset

    async def _transaction(self, producer: Producer) -> None:
        table = self.books.table
        writes: list[tuple[Write, int]] = []
        asked = False
        await producer.begin_transaction()
        try:
            for _ in range(1 + self.rng.below(4)):
                write = self._write()
                writes.append((write, -1))
                writes[-1] = (write, await self._send(producer, write))
                await asyncio.sleep(self.rng.between(0, 0.5))
            if self.rng.chance(0.5):
                asked = True
                await commit_patiently(producer)
                for write, offset in writes:
                    table.written(write, offset)
                return
            await producer.abort_transaction()
        finally:
            if not asked:  # and never will be
                for write, _ in writes:
                    table.never(write)


class SlowKeeper(Keeper):
    transactional = True


class Reader(Actor):
    async def live(self, ports: Ports) -> None:
        async with self.using(self.consumer(ports)) as consumer:
            consumer.assign([ROWS])
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.3, 1.5))
                await self.read(consumer)

    async def read(self, consumer: Consumer) -> None:
        table = self.books.table
        known = table.known(ROWS)
        table.read(ROWS, *await rows_of(consumer), known)
        self.steps += 1


async def rows_of(consumer: Consumer) -> tuple[list[Row], int]:
    """The whole table, and where it ended."""
    records, end = await everything(consumer, ROWS)
    return [(record.offset, record.key, record.value) for record in records], end


async def everything(
    consumer: Consumer, where: Where
) -> tuple[list[ConsumerRecord[Any, Any]], int]:
    """All committed records of an assigned partition, to what was its end when that was reached."""
    consumer.seek_to_beginning(where)
    found: list[ConsumerRecord[Any, Any]] = []
    while True:
        found += await consumer.poll(100)
        end = (await consumer.end_offsets([where]))[TopicPartition(*where)]
        if await consumer.position(where) >= end:
            return found, end
