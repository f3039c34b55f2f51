"""A large step of a coordinator, a slice at a time: the commit of thousands of offsets, a topic of
thousands of partitions that goes, a transaction with thousands of offsets that ends.

It is one step all the same. While it lasts its shard is BUSY: requests wait, timers wait, nobody
else reads or changes the machine. The records are computed and encoded in slices, appended in one
go, and replayed in slices; only then the replies leave. Markers alone come in between, in the log.
They end transactions, and what is carried out here belongs to none, so that what is left in the end
does not depend on the order of the two: a plain commit stands against one that was pending before
it by their places in the log, and a tombstone takes the pending ones of its place. So they are
replayed when the step is done, one after the other and in slices as well, before anybody reads.

A step may answer thousands at once: a classic group whose generation is formed. Each answer wakes
a connection that encodes and sends it, so they leave some in each turn of the loop.

Never: for records of a transaction, which must be appended in the step that verified them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scriba.broker.coordinators.shard import Settled, Shard, State
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.outcome import Outcome, Telling
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.coordinators.shard_log import Batch, Packing
    from scriba.outcome import Change, Machine, Origin
    from scriba.runtime.ports import Clock
    from scriba.wire.schema import Message

BETWEEN_LOOKS: Final = 64
"""Records after which the clock is looked at."""
ANSWERS_AT_ONCE: Final = 32
"""Answers of one step that leave in one turn of the loop."""


class Steps(Protocol):
    """The parts of a step, as the runtime of the shards does each of them."""

    @property
    def clock(self) -> Clock: ...

    def packing(self, shard: Shard, outcome: Outcome, now: Instant) -> Packing: ...

    def checked(self, shard: Shard, built: list[Batch]) -> list[Batch]: ...

    def append_batch(
        self, shard: Shard, batch: Batch, outcome: Outcome, now: Instant
    ) -> Iterator[tuple[Change, Origin]]: ...

    def not_appended(self, shard: Shard, outcome: Outcome, error: KafkaError) -> None: ...

    def conclude(self, shard: Shard, outcome: Outcome) -> None: ...

    def set_alarm(self, shard: Shard) -> None: ...

    def surprised(self, shard: Shard) -> None: ...


class Done(NamedTuple):
    """A step that is in the log and replayed, or that came to nothing for the reason given."""

    outcome: Outcome
    refused: KafkaError | None = None


class _Gone(Exception):
    """The shard rests, or has lost its leadership: its machine counts for nothing any more."""


class Look:
    """Gives way between two slices, and looks whether the work is still wanted after it."""

    def __init__(self, steps: Steps, shard: Shard) -> None:
        self._pace = Pace(steps.clock)
        self._shard = shard
        self._machine: Machine = shard.machine

    async def __call__(self) -> None:
        await self._pace()
        if not self.wanted:
            raise _Gone

    @property
    def wanted(self) -> bool:
        return self._shard.state is State.BUSY and self._shard.machine is self._machine


async def carry_out_in_slices(steps: Steps, shard: Shard, outcome: Outcome, now: Instant) -> None:
    look = Look(steps, shard)
    try:
        done = await _carry_out(steps, shard, outcome, now, look)
        await _replay_markers(shard, look)
    except _Gone:
        return
    except Exception:
        if look.wanted:
            steps.surprised(shard)
        return
    if not look.wanted:
        return  # the append that failed took the leadership with it
    shard.move(State.ACTIVE)
    if done.refused is not None:
        steps.not_appended(shard, done.outcome, done.refused)
    else:
        steps.conclude(shard, done.outcome)


async def end_in_slices(steps: Steps, shard: Shard) -> None:
    """Replays the markers of large transactions."""
    look = Look(steps, shard)
    try:
        await _replay_markers(shard, look)
    except _Gone:
        return
    except Exception:
        if look.wanted:
            steps.surprised(shard)
        return
    shard.move(State.ACTIVE)
    steps.set_alarm(shard)


async def tell_in_slices(clock: Clock, telling: Telling) -> Message:
    """The reply that is put together; its shard goes on meanwhile."""
    pace = Pace(clock)
    while True:
        try:
            next(telling)
        except StopIteration as done:
            reply: Message = done.value
            return reply
        await pace()


async def answer_in_turns(
    covered: Awaitable[None], answers: list[tuple[asyncio.Future[Settled], Settled]]
) -> None:
    """Once what they tell is committed: else those who wait for that would wake together."""
    try:
        await covered
    except KafkaError as error:
        answers = [(waiter, (error, 0)) for waiter, _ in answers]
    for count, (waiter, settled) in enumerate(answers, 1):
        if not waiter.done():  # else its caller has gone
            waiter.set_result(settled)
        if count % ANSWERS_AT_ONCE == 0:
            # Not behind a slice of each long work: sessions of those who wait here run already.
            await asyncio.sleep(0)


async def _replay_markers(shard: Shard, look: Look) -> None:
    """Also those that come meanwhile."""
    while shard.markers:
        for _ in shard.markers.popleft():
            await look()


async def _carry_out(
    steps: Steps, shard: Shard, outcome: Outcome, now: Instant, look: Look
) -> Done:
    work = outcome.work
    while work is not None:
        try:
            next(work)
        except StopIteration as done:
            outcome, work = done.value, None
        await look()
    try:
        packing = steps.packing(shard, outcome, now)
        for count, change in enumerate(outcome.records):
            packing.add(change)
            if count % BETWEEN_LOOKS == 0:
                await look()
        built = steps.checked(shard, packing.done())
    except KafkaError as error:
        return Done(outcome, error)
    for batch in built:
        try:
            replayed = steps.append_batch(shard, batch, outcome, now)
        except KafkaError as error:
            return Done(outcome, error)
        for count, (change, origin) in enumerate(replayed):
            shard.machine.replay(*change, origin)
            if count % BETWEEN_LOOKS == 0:
                await look()
    return Done(outcome)
