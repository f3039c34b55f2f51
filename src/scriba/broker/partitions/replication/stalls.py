"""Followers that hold acknowledgements back, and a leader that no follower reaches.

`replica.lag.time.max.ms` (30 s) forgives a follower much, and each acks=all waits that long. With
`scriba.replica.stall.ms` a follower leaves the ISR once it has held acknowledgements back for that
time, if `min.insync.replicas` stay without it (`replication.leader`). Only partitions are looked at
of which a follower has not confirmed what it was sent, as its session knows, or which have a new
leader that some follower has not asked yet.

If all followers fall silent at once, two at least, and all of them are alive by the metadata while
this broker's own heartbeats are answered, it is this broker that cannot be reached. To shrink ISRs
would leave a leader alone that nobody can write to, either: it hands its leaderships over. That is
looked at without the setting, too: with half of what `replica.lag.time.max.ms` forgives, so that it
comes before any ISR shrinks.

With a single live follower (two replicas, or three and one broker away) nobody can say which of the
two is cut off: if it were the follower, it could as little replicate to this broker once it leads,
and would hand back. So one more broker has to bear witness: none of the leaders that this broker
follows answers its fetches, and one of them is another than that follower. Else nothing is done.
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
    from scriba.broker.partitions.replication.follower_sessions import Followed, FollowerSession
    from scriba.instant import Instant
    from scriba.settings import NodeSettings

ALONE_FOR: Final = 3
"""Looks in a row by which all followers have to be silent: a process that stood still finds all of
them so when it wakes, and hears of them with its next turn."""
AGAIN_MS: Final = 10_000
"""After which time a broker tries again that could hand nothing over."""
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


def silence_ms(settings: NodeSettings) -> int:
    """After which time without a fetch a follower is silent: half-way between how long a fetch may
    wait and how long a follower may be behind, unless a stall takes less."""
    half_ms = (settings.replica_lag_time_max_ms + settings.replica_fetch_wait_max_ms) // 2
    return min(stall_ms(settings) or half_ms, half_ms)


def _follows(session: FollowerSession, followed: Followed) -> bool:
    """Whether a partition is led here, and followed as more than an observer: one behind a link
    that is down says nothing of this broker."""
    partition, replica = followed.partition, session.replica
    leader = partition.leader if partition is not None else None
    return leader is not None and replica in leader.followers and replica not in leader.observers


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
        self._reached = False
        """Whether the last look found a follower that was heard."""
        self._back_ms = 0
        """When they get these back."""
        self._next_ms = 0
        """Before which time nothing is handed over: where nobody reaches anybody, each would pass
        on at once what it was given. Whom a follower has reached since may do it again sooner."""

    async def look(self, now: Instant) -> None:
        """One pass over what followers have not confirmed."""
        if self._handed and now.mono_ms >= self._back_ms:
            await self._put_back(now)
        silent = await self._silent(now.mono_ms - silence_ms(self._node.settings))
        if silent and self._is_heard(now):
            self._looks += 1
            if self._looks >= ALONE_FOR and now.mono_ms >= self._next_ms:
                await self._step_down(silent, now)
            return
        self._looks = 0
        if self._reached:
            self._next_ms = min(self._next_ms, now.mono_ms + AGAIN_MS)
        if stall_ms(self._node.settings):
            await self._drop_stalled(now)
        else:
            self._node.replicas.unheard.clear()

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

    async def _silent(self, since_ms: int) -> list[int]:
        """The live brokers that do not reach this one, if it must be this one that is cut off."""
        replicas = self._node.replicas
        pace = Pace(self._node.world.clock)
        self._reached = False
        found: set[int] = set()
        # The one heard last comes first: in good times that is all that is looked at.
        for session in sorted(replicas.follower_sessions, key=lambda each: -each.heard.ms):
            if session.replica in replicas.active and await self._is_followed(session, pace):
                if session.heard.ms >= since_ms:
                    self._reached = True
                    return []
                found.add(session.replica)
        if len(found) == 1:
            for leader, silent in replicas.fetchers.silent(since_ms).items():
                if leader in replicas.active:
                    if not silent:
                        return []
                    found.add(leader)
        return sorted(found) if len(found) > 1 else []

    async def _is_followed(self, session: FollowerSession, pace: Pace) -> bool:
        first = next(iter(session.followed.values()), None)
        if first is not None and _follows(session, first):
            return True
        for followed in tuple(session.followed.values()):
            if _follows(session, followed):
                return True
            await pace()
        return False

    def _is_heard(self, now: Instant) -> bool:
        """Whether the controller has answered lately."""
        lifecycle, settings = self._node.lifecycle, self._node.settings
        age_ms = now.mono_ms - lifecycle.heard_at
        return not lifecycle.fenced and age_ms <= 2 * settings.broker_heartbeat_interval_ms

    async def _step_down(self, silent: list[int], now: Instant) -> None:
        node = self._node
        self._looks = 0
        self._next_ms = now.mono_ms + AGAIN_MS
        led = [partition for partition in node.replicas if partition.leader is not None]
        wanted = await plan(node, led, self._handed, even_cordoned=True)
        if not wanted:
            return  # nobody else is in sync: there is nothing to tell but what was told
        self._back_ms = now.mono_ms + BACK_MS
        told = ", ".join(map(str, silent))
        text = f"brokers {told} are alive and do not reach it: it hands its leaderships over"
        node.note(EventKind.LEADER_CUT_OFF, f"broker {node.id}", text)
        try:
            await carry_out(node, wanted)
            self._next_ms = self._back_ms
        except KafkaError as error:
            node.note(EventKind.LEADER_CUT_OFF, f"broker {node.id}", f"could not: {error}")

    async def _put_back(self, now: Instant) -> None:
        self._back_ms = now.mono_ms + AGAIN_MS
        with suppress(KafkaError):  # else it is tried again
            self._handed = await put_back(self._node, self._handed)
