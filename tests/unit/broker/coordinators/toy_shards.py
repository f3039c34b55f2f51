"""A machine that is easy to follow, in the place of a node's coordinators of groups.

The toy keeps a number per group. `add` stores the next one and replies with it, `read` replies with
the one that is known, `wait` waits until somebody adds, `nap` until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable

import pytest

from scriba.broker.coordinators.internal_topics import make_internal_topic
from scriba.broker.coordinators.runtime import CoordinatorRuntime, Kind
from scriba.broker.node import Node
from scriba.broker.request import Context
from scriba.errors import ErrorCode, KafkaError
from scriba.events import Event, EventKind
from scriba.instant import Instant
from scriba.outcome import Caller, Change, Origin, Outcome, Token
from scriba.records.compression import Codec
from scriba.wire.messages.coordinators import OFFSETS_TOPIC
from scriba.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from scriba.wire.messages.stored_groups import OffsetCommitKey, OffsetCommitValue
from scriba.wire.schema import Message

CALLER = Context("User:ANONYMOUS", "PLAINTEXT", "tester", "10.0.0.9", 12, 4, 0)


class Toy:
    def __init__(self, index: int) -> None:
        self.index = index
        self.numbers: dict[str, int] = {}
        self.pending: dict[int, dict[str, int]] = {}
        self.origins: list[Origin] = []
        self.waiting: dict[str, list[Token]] = {}
        self.naps: list[tuple[int, Token]] = []
        self.callers: list[Caller] = []
        self.told: list[str] = []
        self.loaded_at: Instant | None = None
        self.cannot_replay: set[str] = set()

    def replay(self, key: Message, value: Message | None, origin: Origin) -> None:
        assert isinstance(key, OffsetCommitKey)
        if key.group in self.cannot_replay:
            raise RuntimeError("a bug in the machine")
        self.origins.append(origin)
        numbers = self.numbers
        if origin.producer_id >= 0:
            numbers = self.pending.setdefault(origin.producer_id, {})
        if value is None:
            numbers.pop(key.group, None)
        else:
            assert isinstance(value, OffsetCommitValue)
            numbers[key.group] = value.offset

    def replay_marker(
        self, producer_id: int, producer_epoch: int, commit: bool
    ) -> Generator[None, None, None]:
        yield from ()
        if self.cannot_replay:
            raise RuntimeError("a bug in the machine")
        numbers = self.pending.pop(producer_id, {})
        if commit:
            self.numbers.update(numbers)

    def loaded(self, now: Instant) -> Outcome:
        self.loaded_at = now
        return Outcome()

    def handle(self, request: Message, token: Token, caller: Caller, now: Instant) -> Outcome:
        assert isinstance(request, HeartbeatRequest)
        self.callers.append(caller)
        group, amount = request.group_id, request.generation_id
        match request.member_id:
            case "add":
                return self._add(group, amount, token)
            case "add in a transaction":
                outcome = self._add(group, amount, token)
                outcome.producer = (70, amount)
                return outcome
            case "add many":
                changes = [change(f"{group}{i}", i, "x" * 1000) for i in range(amount)]
                return Outcome(changes, [(token, answer(amount))], splittable=True)
            case "add too much":
                return Outcome([change(group, 1, "x" * amount)], [(token, answer(1))])
            case "read":
                return Outcome(replies=[(token, answer(self.numbers.get(group, 0)))])
            case "wait":
                self.waiting.setdefault(group, []).append(token)
                return Outcome()
            case "nap":
                self.naps.append((now.mono_ms + amount, token))
                return Outcome()
            case "send":
                outcome = self._add(group, amount, token)
                outcome.sends.append(f"sent {amount}")
                return outcome
            case "refuse":
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        raise RuntimeError("a bug in the machine")

    def _add(self, group: str, amount: int, token: Token) -> Outcome:
        number = self.numbers.get(group, 0) + amount
        replies = [(each, answer(number)) for each in [*self.waiting.pop(group, []), token]]
        events = [Event(EventKind.GROUP_REBALANCE, group, f"is {number}")]
        return Outcome([change(group, number)], list(replies), events=events)

    def tick(self, now: Instant) -> Outcome:
        due = [nap for nap in self.naps if nap[0] <= now.mono_ms]
        assert due, "ticked before its time"
        if due[0][0] < 0:
            raise RuntimeError("a bug in the machine")
        self.naps = [nap for nap in self.naps if nap not in due]
        return Outcome(replies=[(token, answer(now.mono_ms)) for _, token in due])

    def next_deadline(self) -> int | None:
        return min((at for at, _ in self.naps), default=None)

    def topics_changed(self, names: Iterable[str], now: Instant) -> Outcome:
        self.told += names
        return Outcome()


def change(group: str, number: int, metadata: str = "") -> Change:
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    return Change(key, OffsetCommitValue(offset=number, metadata=metadata, commit_timestamp=1))


def answer(number: int) -> Message:
    return HeartbeatResponse(throttle_time_ms=number)


async def with_toys(
    node: Node, codec: Codec = Codec.NONE, load_bytes: int = 1000
) -> CoordinatorRuntime:
    """The node's coordinators of groups, replaced by toys."""
    node.group_coordinators.stop()
    node.group_coordinators = CoordinatorRuntime(
        node,
        Kind(
            OFFSETS_TOPIC,
            Toy,
            lambda s: load_bytes,
            lambda s: 5000,
            lambda s: codec,
            draws=frozenset({HeartbeatRequest}),
        ),
    )
    node.group_coordinators.start()
    await make_internal_topic(node, OFFSETS_TOPIC)
    for partition in node.replicas:
        node.on_lead(partition)
    return node.group_coordinators


def ask(
    shards: CoordinatorRuntime, what: str, amount: int = 1, group: str = "g"
) -> Awaitable[Message]:
    request = HeartbeatRequest(group_id=group, generation_id=amount, member_id=what)
    return shards.ask(group, request, CALLER)


async def number(asked: Awaitable[Message]) -> int:
    response = await asked
    assert isinstance(response, HeartbeatResponse)
    return response.throttle_time_ms


async def refusal(asked: Awaitable[Message]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await asked
    return caught.value.code


async def ready(shards: CoordinatorRuntime, group: str = "g") -> None:
    """Returns when the shard of the group answers."""
    while True:
        try:
            await ask(shards, "read", group=group)
        except KafkaError as error:
            if not error.code.retriable:
                raise
            await asyncio.sleep(0.001)
        else:
            return


def toy(shards: CoordinatorRuntime, group: str = "g") -> Toy:
    machine = shards.machine_of(shards.partition_of(group))
    assert isinstance(machine, Toy)
    return machine


async def begun(asked: Awaitable[Message]) -> asyncio.Task[Message]:
    """The request has reached its shard when this returns."""

    async def wait() -> Message:
        return await asked

    task = asyncio.get_running_loop().create_task(wait())
    await asyncio.sleep(0)
    return task
