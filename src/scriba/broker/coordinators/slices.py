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

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.coordinators.shard import Shard, State
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.outcome import Outcome
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.coordinators.shard_log import Batch, Packing
    from scriba.outcome import Change, Origin
    from scriba.runtime.ports import Clock

BETWEEN_LOOKS: Final = 64
"""Records after which the clock is looked at."""


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

    def surprised(self, shard: Shard) -> None: ...


async def carry_out_in_slices(steps: Steps, shard: Shard, outcome: Outcome, now: Instant) -> None:
    try:
        whole = await _carry_out(steps, shard, outcome, now)
    except Exception:
        if shard.state is State.BUSY:
            steps.surprised(shard)
        return
    if whole is not None:
        shard.move(State.ACTIVE)
        steps.conclude(shard, whole)


async def _carry_out(steps: Steps, shard: Shard, outcome: Outcome, now: Instant) -> Outcome | None:
    """The outcome once it is in the log and replayed; None where it came to nothing."""
    pace = Pace(steps.clock)
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
        packing = steps.packing(shard, outcome, now)
        for count, change in enumerate(outcome.records):
            packing.add(change)
            if count % BETWEEN_LOOKS == 0:
                await pace()
                if shard.state is not State.BUSY:
                    return None
        built = steps.checked(shard, packing.done())
    except KafkaError as error:
        _give_up(steps, shard, outcome, error)
        return None
    for batch in built:
        try:
            replayed = steps.append_batch(shard, batch, outcome, now)
        except KafkaError as error:
            _give_up(steps, shard, outcome, error)
            return None
        for count, (change, origin) in enumerate(replayed):
            shard.machine.replay(*change, origin)
            if count % BETWEEN_LOOKS == 0:
                await pace()
                if shard.state is not State.BUSY:
                    return None
    return outcome


def _give_up(steps: Steps, shard: Shard, outcome: Outcome, error: KafkaError) -> None:
    shard.move(State.ACTIVE)
    steps.not_appended(shard, outcome, error)
