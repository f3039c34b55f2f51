"""One shard: a coordinator's machine over its partition, what state it is in, and who waits for it.

LOADING -> ACTIVE             everything has been replayed
LOADING -> RESTING            the log could not be replayed
ACTIVE  -> BUSY -> ACTIVE     a large step is carried out, or a large transaction ended, in slices;
                              whoever comes waits
ACTIVE  -> RESTING -> LOADING an append failed: what the machine believes is no longer true
BUSY    -> RESTING            likewise
any     -> ENDED              the leadership has gone
"""

from __future__ import annotations

import asyncio
import enum
import sys
from array import array
from collections import deque
from collections.abc import Generator
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING, Final

from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import Machine, Telling, Token
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition

FIRST_REST_MS: Final = 100
LONGEST_REST_MS: Final = 60_000
LONGEST_WAIT_MS: Final = 1_000
"""How long it rests at most while replicas are missing: the log is well, and they may be back."""


class State(enum.Enum):
    LOADING = "loading"
    ACTIVE = "active"
    BUSY = "busy"
    RESTING = "resting"
    ENDED = "ended"


VALID: Final = {
    State.LOADING: {State.ACTIVE, State.RESTING, State.ENDED},
    State.ACTIVE: {State.BUSY, State.RESTING, State.ENDED},
    State.BUSY: {State.ACTIVE, State.RESTING, State.ENDED},
    State.RESTING: {State.LOADING, State.ENDED},
    State.ENDED: set(),
}

REFUSALS: Final = {
    State.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    State.BUSY: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    State.RESTING: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    State.ENDED: ErrorCode.NOT_COORDINATOR,
}

Settled = tuple[Message | Telling | KafkaError, int]
"""A reply, or what puts it together, and the end of the log when it was computed."""


class Shard:
    __slots__ = (
        "due_ms",
        "epoch",
        "idle",
        "index",
        "machine",
        "markers",
        "partition",
        "rest_ms",
        "state",
        "told",
        "waiting",
    )

    def __init__(self, partition: Partition, machine: Machine) -> None:
        self.partition = partition
        self.index = partition.index
        self.epoch = partition.leader_epoch
        self.machine = machine
        self.state = State.LOADING
        self.waiting: dict[Token, asyncio.Future[Settled]] = {}
        self.rest_ms = FIRST_REST_MS
        """How long the next rest is."""
        self.due_ms = 0
        """While RESTING: when to load again."""
        self.told = ""
        """Why it could not be loaded, as it was last logged."""
        self.idle: asyncio.Future[None] | None = None
        """While BUSY: done when it no longer is."""
        self.markers: deque[Generator[None, None, None]] = deque()
        """While BUSY: what is left to be replayed of markers, before it no longer is."""

    def __repr__(self) -> str:
        return f"{self.partition!r} in epoch {self.epoch}"

    def move(self, state: State) -> None:
        assert state in VALID[self.state], f"{self!r}: {self.state} -> {state}"
        self.state = state
        if self.idle is not None:
            self.idle.set_result(None)
            self.idle = None
        if state is State.BUSY:
            self.idle = asyncio.get_running_loop().create_future()

    def rest(self, now_ms: int, why: str, longest_ms: int) -> None:
        """Lets go of everyone; the log is read again, after a longer while each time."""
        self.move(State.RESTING)
        self.markers.clear()
        self.let_go(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why))
        self.due_ms = now_ms + min(self.rest_ms, longest_ms)
        self.rest_ms = min(max(2 * self.rest_ms, FIRST_REST_MS), longest_ms)

    def end(self, error: KafkaError) -> None:
        self.move(State.ENDED)
        self.markers.clear()
        self.let_go(error)

    def reply(self, token: Token, answer: Message | Telling | KafkaError) -> None:
        waiter = self.waiting.pop(token, None)
        if waiter is not None and not waiter.done():  # else its caller has gone
            waiter.set_result((answer, self.partition.log.end_offset))

    def take(
        self, replies: list[tuple[Token, Message]]
    ) -> list[tuple[asyncio.Future[Settled], Settled]]:
        """Those who wait for these replies, which somebody else gives them."""
        end = self.partition.log.end_offset
        return [
            (waiter, (answer, end))
            for token, answer in replies
            if (waiter := self.waiting.pop(token, None)) is not None
        ]

    def let_go(self, error: KafkaError) -> None:
        """Ends every wait: nobody will answer these any more."""
        waiting, self.waiting = self.waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_result((error, 0))


_RUN: Final = 1024
_POWERS: Final = [pow(31, n, 1 << 32) for n in range(_RUN + 1)]
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
MOST_KEPT: Final = 256
"""Of longer names nothing is kept: four thousand of them could be over a hundred megabytes."""


def partition_for(key: str, partitions: int) -> int:
    """As Java does: `Math.abs` of the string's hash code, 0 for the one that has no positive."""
    return (_kept if len(key) <= MOST_KEPT else _partition_for)(key, partitions)


def _partition_for(key: str, partitions: int) -> int:
    number = _hash_code(key)
    if number >= 1 << 31:
        number = 0 if number == 1 << 31 else (1 << 32) - number
    return number % partitions


def _hash_code(key: str) -> int:
    """Some calls for each thousand characters: names of 32 KB take milliseconds otherwise."""
    units = array("H", key.encode(_UTF_16, "surrogatepass"))
    number = 0
    for start in range(0, len(units), _RUN):
        run = units[start : start + _RUN]
        size = len(run)
        more = sum(map(mul, run, _POWERS[size - 1 :: -1]))
        number = (number * _POWERS[size] + more) & 0xFFFFFFFF
    return number


_kept: Final = lru_cache(maxsize=4096)(_partition_for)
