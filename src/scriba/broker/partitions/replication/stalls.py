"""Followers that hold acknowledgements back, and a leader that no follower reaches.

`replica.lag.time.max.ms` (30 s) forgives a follower much, and each acks=all waits that long. With
`scriba.replica.stall.ms` a follower leaves the ISR once it has held acknowledgements back for that
time, if `min.insync.replicas` stay without it (`replication.leader`). Only partitions are looked at
of which a follower has not confirmed what it was sent, as its session knows, or which have a new
leader that some follower has not asked yet.

If all followers fall silent at once, two at least, and all of them are alive by the metadata while
this broker's own heartbeats are answered, it is this broker that cannot be reached. To shrink ISRs
would leave a leader alone that nobody can write to, either: it hands its leaderships over. With a
single follower nobody can say which of the two it is, and nothing is done.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.partitions.partition import stall_ms
from scriba.broker.partitions.replication.handover import (
    HandoverHost,
    Orders,
    carry_out,
    plan,
    put_back,
)
from scriba.broker.ports import Configuration, EventLog, WorldAccess
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.partitions.replicas import Replicas
    from scriba.broker.partitions.replication.follower_sessions import FollowerSession
    from scriba.instant import Instant

ALONE_FOR: Final = 3
"""Looks in a row by which all followers have to be silent: a process that stood still finds all of
them so when it wakes, and hears of them with its next turn."""
BACK_MS: Final = 600_000
"""After which time partitions that were handed over get their old order of replicas back, so that
the next election of preferred leaders finds this broker first where it was. Until then it has no
way to know whether it can be reached: nobody follows it."""


class ControllerContact(Protocol):
    """How the controller sees this broker."""

    @property
    def fenced(self) -> bool: ...

    @property
    def heard_at(self) -> int:
        """When it last answered a heartbeat, in monotonic milliseconds."""


def _votes(session: FollowerSession) -> bool:
    """Whether it follows anything as more than an observer: one behind a link that is down says
    nothing of this broker."""
    return any(
        each.leader is None or session.replica not in each.leader.observers
        for each in session.followed.values()
    )


class StallHost(Configuration, EventLog, HandoverHost, WorldAccess, Protocol):
    @property
    def lifecycle(self) -> ControllerContact: ...

    @property
    def replicas(self) -> Replicas: ...


class Stalls:
    def __init__(self, node: StallHost) -> None:
        self._node = node
        self._looks = 0
        """In a row by which no follower was heard."""
        self._handed: Orders = {}
        """What was handed over, with the orders of replicas before."""
        self._back_ms = 0
        """When they get these back."""

    async def look(self, now: Instant) -> None:
        """One pass over what followers have not confirmed."""
        limit_ms = stall_ms(self._node.settings)
        if not limit_ms:
            self._node.replicas.unheard.clear()
            return
        if self._handed and now.mono_ms >= self._back_ms:
            handed, self._handed = self._handed, {}
            with suppress(KafkaError):
                await put_back(self._node, handed)
        silent = self._silent(now.mono_ms - limit_ms)
        if len(silent) > 1 and self._is_heard(now):
            self._looks += 1
            if self._looks >= ALONE_FOR and not self._handed:
                await self._step_down(silent, now)
            return
        self._looks = 0
        await self._drop_stalled(now)

    async def _drop_stalled(self, now: Instant) -> None:
        replicas = self._node.replicas
        pace = Pace(self._node.world.clock)
        for session in replicas.follower_sessions:
            for followed in tuple(session.news):
                partition = followed.partition
                leader = partition.leader if partition is not None else None
                if (
                    partition is not None
                    and leader is not None
                    and leader.holds_back(session.replica, now)
                ):
                    replicas.isr_updates.look(partition, now)
                await pace()
        for partition in tuple(replicas.unheard):
            leader = partition.leader
            unheard = leader.unheard() if leader is not None else []
            if leader is None or not unheard:
                replicas.unheard.pop(partition, None)
            elif any(leader.holds_back(replica, now) for replica in unheard):
                replicas.isr_updates.look(partition, now)
            await pace()

    def _silent(self, since_ms: int) -> list[int]:
        """The live brokers that follow this one, if none of them has fetched since."""
        replicas = self._node.replicas
        found: set[int] = set()
        for session in replicas.follower_sessions:
            if _votes(session) and session.replica in replicas.active:
                if session.heard.ms >= since_ms:
                    return []
                found.add(session.replica)
        return sorted(found)

    def _is_heard(self, now: Instant) -> bool:
        """Whether the controller has answered lately."""
        lifecycle, settings = self._node.lifecycle, self._node.settings
        age_ms = now.mono_ms - lifecycle.heard_at
        return not lifecycle.fenced and age_ms <= 2 * settings.broker_heartbeat_interval_ms

    async def _step_down(self, silent: list[int], now: Instant) -> None:
        node = self._node
        self._looks = 0
        self._back_ms = now.mono_ms + BACK_MS
        led = [partition for partition in node.replicas if partition.leader is not None]
        told = ", ".join(map(str, silent))
        text = f"brokers {told} are alive and do not fetch: it hands its leaderships over"
        node.note(EventKind.LEADER_CUT_OFF, f"broker {node.id}", text)
        try:
            await carry_out(node, await plan(node, led, self._handed, even_cordoned=True))
        except KafkaError as error:
            node.note(EventKind.LEADER_CUT_OFF, f"broker {node.id}", f"could not: {error}")
