"""The active controller: the one of an epoch that this node leads, and of no other.

It is made when the node wins an epoch, from all that the log holds, and thrown away when it loses
it, together with its speculative image: whoever waits for an answer is told NOT_CONTROLLER, and
what became of the request shows in the log of the next one.

A request is handled, its records are appended and replayed into the speculative image without an
await in between; then the call waits until the committed image has them, too. So whoever gets an
answer finds its effect in the metadata of this node.

Work on thousands of records is cut into slices. While such a request is under way others wait their
turn, but the loop does not: between two slices it serves whatever else is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.metadata.follower import SLICE, MetadataFollower
from scriba.broker.metadata.quorum.batches import Batch, BatchBuilder
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.controller import levels
from scriba.controller.machine import Controller, idle_record
from scriba.controller.plans import Cut, Slice, Step, next_slice, twice
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.records.batch import HEADER_SIZE
from scriba.runtime.loop.pace import next_turn_collected
from scriba.runtime.loop.tasks import to_its_end
from scriba.runtime.ports import Clock
from scriba.settings import NodeSettings
from scriba.storage.results import NoRoom
from scriba.wire.messages.admin import CreatePartitionsRequest, CreateTopicsRequest
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.request import Context

SLICE_MS: Final = 5
"""How long records are made in one go."""


class ActiveController:
    def __init__(
        self,
        quorum: MetadataQuorum,
        follower: MetadataFollower,
        machine: Controller,
        epoch: int,
        clock: Clock,
        settings: NodeSettings,
        has_room: Callable[[], bool],
        look_after: Callable[[], None] = lambda: None,
    ) -> None:
        """`look_after` is called when the machine may have something to tell, or to ask."""
        self.epoch = epoch
        self.machine = machine
        self._quorum = quorum
        self._follower = follower
        self._clock = clock
        self._settings = settings
        self._has_room = has_room
        self._look_after = look_after
        self._long: asyncio.Future[None] | None = None
        self._last_append = clock.mono_ms()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """This node does not lead the epoch any more: nobody hears otherwise from here."""
        if not self._lost.done():
            self._lost.set_result(None)

    def begin(self, records: Sequence[Message]) -> None:
        """Writes what the epoch begins with."""
        self._append(records)

    # ---- requests ----

    async def call(
        self, request: Message, version: int | None = None, ctx: Context | None = None
    ) -> Any:
        """Carries out a request and returns its response once that is committed.

        KafkaError when the request is refused as a whole.
        """
        if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
            self._check_room()
        while self._long is not None:
            await asyncio.shield(self._long)
        self._check_leads()
        result = self.machine.handle(
            request, request.VERSIONS.high if version is None else version, self._clock.now()
        )
        await self._carry_out(result.records, result.atomic)
        return result.response

    def _check_leads(self) -> None:
        if self._lost.done():
            raise KafkaError(ErrorCode.NOT_CONTROLLER)

    def _check_room(self) -> None:
        """Nobody is told of a partition that has no place yet. Where other brokers take replicas,
        they may have one, whatever the device of this node is like."""
        brokers, own = self.machine.image.brokers.values(), self._settings.node_id
        elsewhere = any(each.active and each.takes_new for each in brokers if each.id != own)
        if not elsewhere and not self._has_room():
            raise NoRoom(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "no log directory has room for another partition: make room, and try again",
            )

    async def _carry_out(self, plan: Iterable[Step], atomic: bool) -> None:
        pull = iter(plan)
        first = self._slice(pull)
        if first.cut is Cut.END:
            self._append(first.records)
        else:
            # Begun, it must end, even if the caller goes: half of it would not be in the image.
            self._long = asyncio.get_running_loop().create_future()
            await to_its_end(self._in_slices(first, pull, atomic))
        self._look_after()
        # Reads wait as well: they may rest on records that are still on their way.
        await self._committed(self._quorum.log.end_offset)

    async def _committed(self, end_offset: int) -> None:
        """Waits until the committed image reaches `end_offset`, in this epoch.

        After that of another leader the same offsets stand for other records.
        """
        reached = self._follower.applied.reach(end_offset)
        if not reached.done():
            await asyncio.wait([reached, self._lost], return_when=asyncio.FIRST_COMPLETED)
        self._check_leads()
        if reached.done():
            await reached

    def _slice(self, pull: Iterator[Step]) -> Slice:
        end = self._clock.mono_ms() + SLICE_MS
        return next_slice(
            pull, lambda records: len(records) == SLICE or self._clock.mono_ms() >= end
        )

    async def _in_slices(self, first: Slice, pull: Iterator[Step], atomic: bool) -> None:
        assert self._long is not None
        try:
            records, cut = first
            while True:
                if atomic and cut is Cut.FULL:
                    cut = await self._append_slowly(records, pull)
                else:
                    self._append(records)
                    await next_turn_collected()
                if cut is Cut.END:
                    break
                records, cut = self._slice(pull)
        finally:
            self._long.set_result(None)
            self._long = None

    async def _append_slowly(self, records: list[Message], pull: Iterator[Step]) -> Cut:
        """One batch of all records up to the next barrier: encoded and replayed in slices."""
        builder, level = BatchBuilder(), self.machine.level
        everything: list[Message] = []
        changed: set[tuple[Any, ...]] = set()
        cut = Cut.FULL
        while True:
            _check_changes(records, changed)
            for record in records:
                builder.add(levels.encode(record, level))
            everything += records
            await next_turn_collected()
            if cut is not Cut.FULL:
                break
            records, cut = self._slice(pull)
        batch = self._write(builder, everything)
        for at in range(0, len(everything), SLICE):
            part = everything[at : at + SLICE]
            self.machine.replay(part, batch.base_offset + at, batch.epoch)
            await next_turn_collected()
        return cut

    def _append(self, records: Sequence[Message]) -> None:
        if not records:
            return
        _check_changes(records, set())
        builder, level = BatchBuilder(), self.machine.level
        for record in records:
            builder.add(levels.encode(record, level))
        batch = self._write(builder, records)
        self.machine.replay(records, batch.base_offset, batch.epoch)

    def _write(self, builder: BatchBuilder, records: Sequence[Message]) -> Batch:
        most = self._settings.internal_metadata_max_batch_size_in_bytes
        if builder.size + HEADER_SIZE > most:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the change takes {builder.size + HEADER_SIZE} bytes in the metadata log, one may "
                f"take {most}; ask for it in parts",
            )
        self._check_leads()
        batch = self._quorum.append(builder, records, self.epoch)
        self._last_append = self._clock.mono_ms()
        return batch

    async def step(self, decide: Callable[[Controller, Instant], Iterable[Step]]) -> None:
        """Carries out what the machine decides of itself."""
        while self._long is not None:
            await asyncio.shield(self._long)
        self._check_leads()
        await self._carry_out(decide(self.machine, self._clock.now()), atomic=False)

    # ---- background ----

    async def tick(self, now: Instant) -> None:
        """One bounded pass, due at least every half second: sessions and idle records."""
        if self._long is not None:
            return
        expired = self.machine.tick(now)
        if expired:
            await self._carry_out(expired, atomic=False)
        else:
            self._look_after()
        idle = self._settings.metadata_max_idle_interval_ms
        if idle and now.mono_ms - self._last_append >= idle:
            self._last_append = self._clock.mono_ms()
            self._append([idle_record()])


def _check_changes(records: Sequence[Message], changed: set[tuple[Any, ...]]) -> None:
    """`changed` has what the records before these change that nobody has replayed yet."""
    both = twice(records, changed)
    assert both is None, f"{both}: changed by two records of one slice"
