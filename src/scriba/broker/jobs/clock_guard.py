"""Whether anything may go because of its age: records, tombstones, offsets, producers, ids.

Age is told by the wall clock, and a wrong date must not wipe a log. One `ClockWatch` of the node is
asked by all who delete by age, coordinators included. It stops them when the clock jumps, and when
a start finds it more than a day ahead of the newest time on disk: that of the metadata log, which
has a record twice a second while a node runs, or that of a record in some partition.

A pause must outlast a restart: what is written meanwhile bears the doubtful time, and would vouch
for it. So it is kept in the metadata as a setting of the broker, `scriba.retention.paused.at.ms`:
the time that is believed. Whoever deletes it (`scriba log retention resume` does) has looked at the
clock, and all goes on. So it does, and the setting goes, after a day of running or once the clock
is right. The day may be made of many short runs: how long they were is kept beside it, in
`scriba.retention.paused.for.ms`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import (
    BrokerIdentity,
    Configuration,
    ControllerAccess,
    EventLog,
    Timekeeping,
)
from scriba.controller.image import BROKER, ClusterImage
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.instant import OFF_MS, PAUSE_MS, ClockWatch, Instant
from scriba.runtime.loop.pace import Pace
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from scriba.wire.messages.stored import ConfigRecord
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scriba.broker.partitions.partition import Partition

PAUSED_AT: Final = "scriba.retention.paused.at.ms"
PAUSED_FOR: Final = "scriba.retention.paused.for.ms"
NOTED_EVERY_MS: Final = 600_000
"""How often it is noted how long the node has run in a pause."""

SET, DELETE = 0, 1
_HOUR_MS: Final = 3_600_000


class ClockGuardHost(
    BrokerIdentity, Configuration, ControllerAccess, EventLog, Timekeeping, Protocol
):
    @property
    def replicas(self) -> Iterable[Partition]:
        """Partitions whose records may vouch for the clock."""


class ClockGuard:
    def __init__(self, node: ClockGuardHost) -> None:
        self._node = node
        self.watch = ClockWatch(node.world.clock.now())
        self._kept = False
        """Whether the setting that outlasts a restart was there when last looked."""
        self._told = False
        self._resumed_pause = False
        """Whether the pause began before this start."""
        self._noted_at = 0

    @property
    def paused(self) -> bool:
        return self.watch.jump_ms > 0

    def allowed(self, now: Instant) -> bool:
        """Whether anything may go because of its age. Says so when that changes."""
        believed = self.watch.believes(now)
        if believed == self._told:
            self._tell(now)
        return believed

    def _tell(self, now: Instant) -> None:
        self._told = not self._told
        if not self._told:
            text = "deletion by age goes on"
        else:
            watch = self.watch
            then, ahead = _date(watch.expected_ms(now)), _span(watch.jump_ms)
            what = f"the clock jumped ahead by {ahead}, from {then} to {_date(now.wall_ms)}"
            if watch.since_start:
                what = (
                    f"the clock says {_date(now.wall_ms)}, and the newest time on disk is {ahead} "
                    f"before, {then}: the machine was off that long, or the clock is wrong"
                )
            text = (
                f"{what}. Nothing is deleted for its age (records, tombstones, committed offsets, "
                f"producers, transactional ids) for {_span(watch.left_ms(now))}, or until the "
                "clock is back. If it is right: scriba log retention resume"
            )
        kind = EventKind.CLOCK_IN_DOUBT if self._told else EventKind.CLOCK_TRUSTED
        self._node.note(kind, "wall clock", text)

    # ---- at the start ----

    def at_start(self, image: ClusterImage, newest_ms: int) -> list[Message]:
        """Compares the clock with the newest time in the metadata; what is to be stored of it."""
        now = self._node.world.clock.now()
        stored = image.config(BROKER, str(self._node.id))
        kept = stored.get(PAUSED_AT)
        witness_ms = newest_ms if kept is None else int(kept)
        ran_ms = 0 if kept is None else int(stored.get(PAUSED_FOR) or 0)
        self._kept = witness_ms >= 0 and self.watch.suspect(witness_ms, now, ran_ms)
        self._resumed_pause = kept is not None
        self._noted_at = now.mono_ms
        if self._kept:
            self._tell(now)
        if self._kept == (kept is not None):
            return []
        value = str(witness_ms) if self._kept else None
        changed = {PAUSED_AT: value} | dict.fromkeys(stored.keys() & {PAUSED_FOR})
        return [
            ConfigRecord(
                resource_type=BROKER,
                resource_name=str(self._node.id),
                name=name,
                value=value,
            )
            for name, value in changed.items()
        ]

    async def join(self, image: ClusterImage, newest_ms: int) -> None:
        """As `at_start`, for a node that has to ask another to store it.

        Where that fails, the next pass stores it."""
        records = self.at_start(image, newest_ms)
        changed = {r.name: r.value for r in records if isinstance(r, ConfigRecord)}
        if changed:
            with suppress(KafkaError):
                await self._store(changed)

    async def ask_records(self) -> None:
        """A record of the last day vouches for the clock as well, if all it vouches for is true.

        For nodes whose metadata log may be silent for long (`metadata.max.idle.interval.ms=0`).
        After a restart in a pause it proves nothing: it may have been written in that pause.
        """
        if not self.paused or self._resumed_pause:
            return
        pace = Pace(self._node.world.clock)
        for partition in self._node.replicas:
            await pace()
            now = self._node.world.clock.now()
            newest_ms = await partition.log.newest_record_ms()
            if now.wall_ms - OFF_MS <= newest_ms <= now.wall_ms:
                self.watch.trust(now)
                return

    # ---- while running ----

    def on_configs(self) -> None:
        """A setting of this broker has changed: perhaps somebody has looked at the clock."""
        witness_ms = self._node.settings.scriba_retention_paused_at_ms
        now = self._node.world.clock.now()
        if self._kept and witness_ms < 0 and self.paused:
            self.watch.trust(now)
            self._tell(now)
        elif witness_ms >= 0 and not self.paused and self.watch.suspect(witness_ms, now):
            self._tell(now)  # somebody wants it so
        self._kept = witness_ms >= 0

    async def settle(self, now: Instant) -> None:
        """Brings the settings in line with the watch."""
        paused = not self.allowed(now)
        changed: dict[str, str | None] = {}
        if paused != self._kept:
            changed[PAUSED_AT] = str(self.watch.expected_ms(now)) if paused else None
            self._noted_at = now.mono_ms
        if not paused and self._node.settings.scriba_retention_paused_for_ms:
            changed[PAUSED_FOR] = None
        elif paused and now.mono_ms - self._noted_at >= NOTED_EVERY_MS:
            self._noted_at = now.mono_ms
            changed[PAUSED_FOR] = str(PAUSE_MS - self.watch.left_ms(now))
        if changed:
            await self._store(changed)

    async def _store(self, changed: dict[str, str | None]) -> None:
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig(
                name=name, config_operation=DELETE if value is None else SET, value=value
            )
            for name, value in changed.items()
        ]
        await self._node.controller.call(
            IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsRequestAlterConfigsResource(
                        resource_type=BROKER, resource_name=str(self._node.id), configs=changes
                    )
                ]
            )
        )


def _date(wall_ms: int) -> str:
    """In UTC; what no calendar holds stays a number."""
    try:
        moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(wall_ms)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _span(ms: int) -> str:
    hours = round(ms / _HOUR_MS)
    return f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
