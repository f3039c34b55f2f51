"""A large step of a coordinator, a slice at a time: the commit of thousands of offsets, a topic of
thousands of partitions that goes.

It is one step all the same. While it lasts its shard is BUSY: requests wait, timers wait, nobody
else reads or changes the machine. The records are computed and encoded in slices, appended in one
go, and replayed in slices; only then the replies leave. Markers alone come in between, as they do
in the log: they end transactions, and what is carried out here belongs to none, so that what is
left in the end does not depend on the order of the two. A plain commit stands against one that was
pending before it by their places in the log, and a tombstone takes the pending ones of its place.

Never: for records of a transaction, which must be appended in the step that verified them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scriba.broker.coordinators.shard import Shard, State
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.outcome import Outcome
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.coordinators.runtime import CoordinatorRuntime

BETWEEN_LOOKS: Final = 64
"""Records after which the clock is looked at."""


async def carry_out_in_slices(
    shards: CoordinatorRuntime, shard: Shard, outcome: Outcome, now: Instant
) -> None:
    try:
        whole = await _carry_out(shards, shard, outcome, now)
    except Exception:
        if shard.state is State.BUSY:
            shards.surprised(shard)
        return
    if whole is not None:
        shard.move(State.ACTIVE)
        shards.conclude(shard, whole)


async def _carry_out(
    shards: CoordinatorRuntime, shard: Shard, outcome: Outcome, now: Instant
) -> Outcome | None:
    """The outcome once it is in the log and replayed; None where it came to nothing."""
    pace = Pace(shards.clock)
    work = outcome.work
    while work is not None:
        try:
            next(work)
        except StopIteration as done:
            outcome, work = done.value, None
        await pace()
        if shard.state is not State.BUSY:
            return None  # it rests, or has lost its leadership
    try:
        packing = shards.packing(shard, outcome, now)
        for count, change in enumerate(outcome.records):
            packing.add(change)
            if count % BETWEEN_LOOKS == 0:
                await pace()
                if shard.state is not State.BUSY:
                    return None
        built = shards.checked(shard, packing.done())
    except KafkaError as error:
        _give_up(shards, shard, outcome, error)
        return None
    for batch in built:
        try:
            replayed = shards.append_batch(shard, batch, outcome, now)
        except KafkaError as error:
            _give_up(shards, shard, outcome, error)
            return None
        for count, (change, origin) in enumerate(replayed):
            shard.machine.replay(*change, origin)
            if count % BETWEEN_LOOKS == 0:
                await pace()
                if shard.state is not State.BUSY:
                    return None
    return outcome


def _give_up(shards: CoordinatorRuntime, shard: Shard, outcome: Outcome, error: KafkaError) -> None:
    shard.move(State.ACTIVE)
    shards.not_appended(shard, outcome, error)
