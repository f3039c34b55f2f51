"""The active writer: takes over, catches up, decides one command after the other, writes it down.

Transactions isolate no reads: two writers that both read a stock of 1 could both sell it. So one
decides, and whatever believes to be it as well can do no harm:

    take over   the transactional id, the same for all writers: whoever had it is fenced, and what
                it left open is ended, before anything is read
    catch up    the store reads to the ends of both topics as they are now, so that it has all that
                earlier writers committed; later ones would have fenced this one
    decide      on the store (see `decide`)
    write       every event to both topics, in one transaction for the command
    read back   until the store has what was written: the next decision is made on it

A crash leaves the command as a whole or not at all, and the next writer's store says which. Only a
commit whose answer is missing is not known here; then this writer gives up its place (`Unsettled`),
and the same command, asked again, finds what became of it.

A refusal writes nothing, so nothing would tell a writer that was fenced unnoticed. It therefore
catches up once more before it refuses.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from scriba.client import (
    AbortableTransactionError,
    Admin,
    ClientError,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from scriba.pipelines.inventory.decide import Accepted, Decision, Refused, decide
from scriba.pipelines.inventory.follower import Faulty, Follower
from scriba.pipelines.inventory.model import Command, Event
from scriba.pipelines.inventory.store import BooksDamaged, Store
from scriba.pipelines.inventory.topics import Names

log = logging.getLogger(__name__)

QUEUED: Final = 1000
"""Commands that may wait; more are turned away at once."""

SETTINGS: Final[Mapping[str, Any]] = {
    "acks": "all",
    "linger.ms": 0,
    "max.block.ms": 15_000,
    "request.timeout.ms": 10_000,
    "delivery.timeout.ms": 15_000,
    "transaction.timeout.ms": 30_000,
}

Watch = Callable[[str], None]
"""Told the name of each step before it is taken."""


class Unavailable(Exception):
    """There is no decision now, and nothing was written; try again."""


class Unsettled(Exception):
    """Whether the command was carried out is not known yet; the same one, asked again, tells."""


class Writer:
    def __init__(
        self,
        client: Mapping[str, Any],
        names: Names,
        store: Store,
        follower: Follower,
        watch: Watch = lambda step: None,
    ) -> None:
        self.failed = asyncio.Event()
        """Set when this writer can go on no more."""
        self.accepted = 0
        self.refused = 0
        self._names = names
        self._store = store
        self._follower = follower
        self._watch = watch
        self._producer = Producer(
            {**client, **SETTINGS, "transactional.id": names.transactional_id}
        )
        self._admin = Admin(client)
        self._queue: asyncio.Queue[tuple[Command, asyncio.Future[Decision]]] = asyncio.Queue(QUEUED)
        self._worker: asyncio.Task[None] | None = None

    async def take_over(self, announcement: bytes) -> Self:
        """Fences, catches up, and says where the writer is; then commands are taken."""
        await self._admin.__aenter__()
        await self._producer.start()
        self._watch("fenced")
        await self._to_the_end()
        self._watch("caught up")
        async with self._producer.transaction():
            await self._producer.enqueue(self._names.writer, announcement, b"writer")
        self._worker = asyncio.create_task(self._work())
        return self

    async def close(self) -> None:
        self.failed.set()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        while not self._queue.empty():
            _, answer = self._queue.get_nowait()
            if not answer.done():
                answer.set_exception(Unavailable("the writer has given up its place"))
        await self._producer.close(1000)
        await self._admin.close()

    async def ask(self, command: Command) -> Decision:
        """The outcome of a command. It goes on even when whoever asked goes away."""
        if self.failed.is_set():
            raise Unavailable("the writer is about to change")
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((command, answer))
        except asyncio.QueueFull:
            raise Unavailable(f"{QUEUED} commands are waiting already") from None
        return await answer

    # -- one after the other ---------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            command, answer = await self._queue.get()
            try:
                outcome: Decision | Exception = await self._carry_out(command)
            except (Unavailable, Unsettled) as failure:
                outcome = failure
            except asyncio.CancelledError:
                _answer(answer, Unsettled("the writer stopped while the command was under way"))
                raise
            except Exception as failure:
                log.exception("the writer failed")
                self.failed.set()
                _answer(answer, Unsettled(f"the writer failed: {failure}"))
                raise
            _answer(answer, outcome)

    async def _carry_out(self, command: Command) -> Decision:
        try:
            decision = self._decide(command)
            if isinstance(decision, Refused):
                self._watch("refuse")
                await self._to_the_end()
                decision = self._decide(command)
        except (Faulty, BooksDamaged) as damage:
            self.failed.set()
            raise Unavailable(f"the books cannot be trusted: {damage}") from damage
        except (ClientError, TimeoutError) as failure:
            raise Unavailable(f"the end of the books was not reached: {failure}") from failure
        if isinstance(decision, Accepted) and not decision.repeated:
            self._watch("decided")
            await self._write(decision.events)
            self.accepted += 1
        elif isinstance(decision, Refused):
            self.refused += 1
        return decision

    def _decide(self, command: Command) -> Decision:
        return decide(command, self._store.books(command), time.time_ns() // 1_000_000)

    async def _write(self, events: tuple[Event, ...]) -> None:
        producer, names = self._producer, self._names
        deliveries = []
        try:
            async with producer.transaction():
                for event in events:
                    key, value = event.item.encode(), event.encode()
                    for topic in (names.audit, names.events):
                        deliveries.append(await producer.enqueue(topic, value, key))
                        self._watch("enqueued")
                await producer.flush(SETTINGS["max.block.ms"])
                self._watch("commit")
            self._watch("committed")
            written = [await delivery for delivery in deliveries]
        except AbortableTransactionError as failure:
            raise Unavailable(f"the transaction was aborted: {failure}") from failure
        except ClientError as failure:
            self.failed.set()
            raise Unsettled(f"the commit was not answered: {failure}") from failure
        ends: dict[TopicPartition, int] = {}
        for place in written:
            where = TopicPartition(place.topic, place.partition)
            ends[where] = max(ends.get(where, 0), place.offset + 1)
        try:
            async with asyncio.timeout(SETTINGS["max.block.ms"] / 1000):
                await self._follower.reached(ends)
        except (Faulty, TimeoutError) as failure:
            self.failed.set()
            raise Unsettled(f"the command could not be read back: {failure}") from failure
        self._watch("read back")

    async def _to_the_end(self) -> None:
        """Until the store has everything, open transactions of anybody included: none may be left
        that could still change the books."""
        wanted: dict[tuple[str, int], int]
        wanted = dict.fromkeys(self._follower.positions, OffsetSpec.LATEST)
        async with asyncio.timeout(SETTINGS["max.block.ms"] / 1000):
            found = await self._admin.list_offsets(wanted)
            await self._follower.reached(
                {where: place.offset for where, place in found.items() if place is not None}
            )


def _answer(future: asyncio.Future[Decision], outcome: Decision | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
