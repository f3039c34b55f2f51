"""What a client of the active controller sees of the metadata quorum, and read-your-writes.

An administrator's answer leaves when every broker that follows the metadata log has applied what
was changed: a topic that was just made is known wherever its client asks next. The leader knows
from each fetch how far a replica's log and its high watermark reach. A broker that has been silent
for a second is not waited for, and nobody is waited for longer than the request allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from scriba.broker.metadata.channel import Leader
from scriba.broker.metadata.follower import NotFollowed
from scriba.broker.ports import WorldAccess
from scriba.wire.messages.brokers import BrokerHeartbeatRequest

if TYPE_CHECKING:
    from scriba.broker.metadata.controller import QuorumController
    from scriba.broker.request import Context
    from scriba.raft.progress import Replica
    from scriba.wire.schema import Message

SILENT_MS: Final = 1_000


class QuorumViewHost(WorldAccess, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def metadata(self) -> QuorumController: ...


class QuorumView:
    """The metadata quorum, for `ControllerChannel`."""

    def __init__(self, node: QuorumViewHost) -> None:
        self._node = node

    @property
    def leads(self) -> bool:
        return self._node.metadata.active is not None

    async def call(self, request: Message, version: int | None, ctx: Context | None) -> Any:
        """What the active controller in this process answers."""
        if isinstance(request, BrokerHeartbeatRequest) and request.want_shut_down:
            self._note_positions()
        return await self._node.metadata.call(request, version, ctx)

    def _note_positions(self) -> None:
        """A broker may leave when the others know who leads instead of it: how far they are, their
        fetches tell sooner than their heartbeats."""
        metadata = self._node.metadata
        if metadata.active is not None:
            machine = metadata.active.machine
            machine.note_position(self._node.id, metadata.follower.image.end_offset)
            for replica in self._replicas():
                machine.note_position(replica.voter.id, _applied(replica))

    def leader(self) -> Leader | None:
        quorum = self._node.metadata.quorum
        epoch, leader = quorum.leadership
        if leader is None:
            return None
        return Leader(leader, epoch, quorum.address(leader))

    def voters(self) -> list[int]:
        return sorted(self._node.metadata.quorum.raft.voters)

    def changed(self) -> Awaitable[None]:
        return self._node.metadata.quorum.changed.wait()

    async def applied(self) -> None:
        metadata = self._node.metadata
        with suppress(NotFollowed):  # the change is in force, wherever it can be
            await metadata.follower.applied.reach(metadata.quorum.high_watermark.value)

    async def visible(self, deadline: int) -> None:
        metadata, clock = self._node.metadata, self._node.world.clock
        end_offset = metadata.follower.image.end_offset
        while metadata.active is not None:
            now = clock.mono_ms()
            heard = list(self._behind(end_offset, now))
            if not heard or now >= deadline:
                return
            until = min(deadline, min(heard) + SILENT_MS)
            with suppress(TimeoutError):
                async with asyncio.timeout((until - now) / 1000):
                    await metadata.quorum.fetched.wait()

    def _behind(self, end_offset: int, now: int) -> Iterator[int]:
        """When those live brokers were last heard that have not applied all up to `end_offset`.

        A leader that is new has heard nobody yet: its brokers have a second to come.
        """
        metadata = self._node.metadata
        progress = metadata.quorum.raft.progress
        if progress is None:
            return
        heard = dict.fromkeys(
            (broker.id for broker in metadata.image.brokers.values() if not broker.fenced),
            progress.since,
        )
        heard.pop(self._node.id, None)
        for replica in self._replicas():
            at = replica.voter.id
            if at in metadata.image.brokers:
                if _applied(replica) >= end_offset:
                    heard.pop(at, None)
                else:
                    heard[at] = max(heard.get(at, -1), replica.last_contact)
        yield from (last for last in heard.values() if 0 <= last > now - SILENT_MS)

    def _replicas(self) -> Iterator[Replica]:
        """All others that fetch from this leader."""
        progress = self._node.metadata.quorum.raft.progress
        if progress is not None:
            for replica in (*progress.voters.values(), *progress.observers.values()):
                if replica.voter.id != self._node.id:
                    yield replica


def _applied(replica: Replica) -> int:
    """How far a replica has applied the log, for all that its last fetch said."""
    return min(replica.end_offset, replica.high_watermark)
