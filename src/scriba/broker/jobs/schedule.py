"""All background work of a node in one table: what runs, and how often.

A job is one bounded pass. An exception that it does not expect stops the node loudly: the state it
left is unknown. A failure confined to one partition is handled where it happens and marks that
partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import Configuration, EventLog, Timekeeping
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.runtime.loop.pace import Pace, in_slices

if TYPE_CHECKING:
    from scriba.broker.jobs.clock_guard import ClockGuard
    from scriba.broker.jobs.compaction import LogCleaner
    from scriba.broker.metadata.controller import QuorumController
    from scriba.broker.metadata.deaths import DeathWatch
    from scriba.broker.metadata.lifecycle import BrokerLifecycle
    from scriba.broker.observe.events import Events
    from scriba.broker.partitions.directories.write_watermark import WriteWatermarks
    from scriba.broker.partitions.replicas import Replicas
    from scriba.broker.partitions.replication.stalls import Stalls

CONNECTION_CHECK_MS: Final = 1_000
CLOCK_CHECK_MS: Final = 5_000
CONTROLLER_TICK_MS: Final = 500
BALANCE_CHECK_MS: Final = 1_000
REMOVAL_CHECK_MS: Final = 1_000
VOLUME_CHECK_MS: Final = 1_000
STALL_CHECK_MS: Final = 250
SILENCE_CHECK_MS: Final = 1_000
"""Whether any follower reaches this broker: so often, or a tenth of what they may be behind."""
OBSERVER_CHECK_MS: Final = 500
EVENTS_CHECK_MS: Final = 10_000
UNUSED_CHECK_MS: Final = 10_000
"""Of what is switched off. Whoever switches it on ends the pause."""
LONGEST_FLUSH_CHECK_MS: Final = 1_000


class IdleConnections(Protocol):
    def close_idle(self) -> object:
        """Closes connections that have been idle for longer than they may be."""


class JobHost(Configuration, EventLog, Timekeeping, Protocol):
    """What background work is done on: all that stands by itself in a node, and no request."""

    @property
    def clock_guard(self) -> ClockGuard: ...

    @property
    def log_cleaner(self) -> LogCleaner: ...

    @property
    def metadata(self) -> QuorumController: ...

    @property
    def deaths(self) -> DeathWatch: ...

    @property
    def events(self) -> Events: ...

    @property
    def stalls(self) -> Stalls: ...

    @property
    def write_watermarks(self) -> WriteWatermarks: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def server(self) -> IdleConnections: ...

    @property
    def settings_changed(self) -> asyncio.Event: ...

    @property
    def lifecycle(self) -> BrokerLifecycle: ...


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    run: Callable[[JobHost, Instant], Awaitable[None]]
    every_ms: Callable[[JobHost], int]
    on_controllers: bool = False
    """Whether a controller that is no broker has it, too."""


async def heartbeat_pass(node: JobHost, now: Instant) -> None:
    await node.lifecycle.beat()


async def assignments_pass(node: JobHost, now: Instant) -> None:
    await node.replicas.assignments.tell()


async def registration_pass(node: JobHost, now: Instant) -> None:
    await node.lifecycle.register_controller()


async def clock_pass(node: JobHost, now: Instant) -> None:
    # It is a record of the metadata log. Where the controller is away, or its device takes no
    # writes, the next pass brings it again.
    with suppress(KafkaError):
        await node.clock_guard.settle(now)


async def retention_pass(node: JobHost, now: Instant) -> None:
    """Drops what retention no longer covers, a partition at a time; idle logs close their files.

    Retention by age trusts the wall clock. While that has run far ahead of the monotonic one it is
    not believed, and says so: a wrong date must not wipe a log.
    """
    by_age = node.clock_guard.allowed(now)
    pace = Pace(node.world.clock)
    for partition in node.replicas:
        await pace()
        home = node.replicas.home(partition)
        if home is None:
            continue  # it was taken away meanwhile
        try:
            with home.guarded(f"retention of {partition!r}"):
                partition.log.roll_if_due(now)
                gone = await partition.log.truncation.retention(
                    now, partition.high_watermark.value, by_age
                )
                partition.log.close_if_idle()
            if gone:
                text = f"dropped {len(gone)} segments"
                node.note(EventKind.SEGMENTS_DELETED, repr(partition), text)
        except KafkaError as error:
            node.note(EventKind.RETENTION_FAILED, repr(partition), str(error))


async def cleaning_pass(node: JobHost, now: Instant) -> None:
    """Compacts what is due. Tombstones go by the wall clock, so that has to be right."""
    if node.settings.log_cleaner_enable and node.clock_guard.allowed(now):
        await node.log_cleaner.run(now)


async def flush_pass(node: JobHost, now: Instant) -> None:
    for partition in node.replicas:
        partition.flush_if_due(now)


async def recovery_checkpoint_pass(node: JobHost, now: Instant) -> None:
    await _or_note(node, node.replicas.checkpoint())


async def start_checkpoint_pass(node: JobHost, now: Instant) -> None:
    await _or_note(node, node.replicas.checkpoint_starts())


async def high_watermark_pass(node: JobHost, now: Instant) -> None:
    await _or_note(node, node.replicas.checkpoint_high_watermarks())


async def _or_note(node: JobHost, checkpoint: Awaitable[None]) -> None:
    """A checkpoint that cannot be written is a matter of its directory, not of the node."""
    try:
        await checkpoint
    except KafkaError as error:
        node.note(EventKind.CHECKPOINT_FAILED, "log directory", error.message)


async def producer_expiry_pass(node: JobHost, now: Instant) -> None:
    """Forgets idle producers. One forgotten too early could write a batch twice."""
    if not node.clock_guard.allowed(now):
        return
    pace = Pace(node.world.clock)
    for partition in node.replicas:
        await pace()
        gone = partition.log.expire_producers(now, node.settings.producer_id_expiration_ms)
        await in_slices(gone, pace)


async def controller_pass(node: JobHost, now: Instant) -> None:
    await node.metadata.tick(now)
    node.deaths.look()


async def balance_pass(node: JobHost, now: Instant) -> None:
    await node.metadata.balance()


async def isr_pass(node: JobHost, now: Instant) -> None:
    await node.replicas.isr_updates.look_at_all(node.replicas, now)


async def stalls_pass(node: JobHost, now: Instant) -> None:
    await node.stalls.look(now)


async def observers_pass(node: JobHost, now: Instant) -> None:
    await node.replicas.observers.look(now)


async def volumes_pass(node: JobHost, now: Instant) -> None:
    await node.write_watermarks.look()


async def removal_pass(node: JobHost, now: Instant) -> None:
    await node.replicas.remove_deleted(now.mono_ms)
    node.replicas.open_waiting()


async def events_pass(node: JobHost, now: Instant) -> None:
    """Says of what was told too often to be told each time how much of it there was."""
    node.events.flush()


async def idle_connections_pass(node: JobHost, now: Instant) -> None:
    node.server.close_idle()


JOBS: Final = (
    Job("heartbeat", heartbeat_pass, lambda n: n.settings.broker_heartbeat_interval_ms),
    Job("directories", assignments_pass, lambda n: n.settings.broker_heartbeat_interval_ms),
    Job(
        "registration",
        registration_pass,
        lambda n: n.settings.broker_heartbeat_interval_ms,
        on_controllers=True,
    ),
    Job("clock", clock_pass, lambda n: CLOCK_CHECK_MS),
    Job("retention", retention_pass, lambda n: n.settings.log_retention_check_interval_ms),
    Job(
        "flush",
        flush_pass,
        lambda n: min(n.settings.log_flush_scheduler_interval_ms, LONGEST_FLUSH_CHECK_MS),
    ),
    Job(
        "recovery points",
        recovery_checkpoint_pass,
        lambda n: n.settings.log_flush_offset_checkpoint_interval_ms,
    ),
    Job(
        "log starts",
        start_checkpoint_pass,
        lambda n: n.settings.log_flush_start_offset_checkpoint_interval_ms,
    ),
    Job(
        "high watermarks",
        high_watermark_pass,
        lambda n: n.settings.replica_high_watermark_checkpoint_interval_ms,
    ),
    Job(
        "producer expiry",
        producer_expiry_pass,
        lambda n: n.settings.producer_id_expiration_check_interval_ms,
    ),
    Job("cleaner", cleaning_pass, lambda n: n.settings.log_cleaner_backoff_ms),
    Job("controller", controller_pass, lambda n: CONTROLLER_TICK_MS, on_controllers=True),
    Job(
        "balance",
        balance_pass,
        lambda n: BALANCE_CHECK_MS if n.settings.scriba_balance_auto else UNUSED_CHECK_MS,
        on_controllers=True,
    ),
    Job("in-sync sets", isr_pass, lambda n: n.settings.replica_lag_time_max_ms // 2),
    Job(
        "stalled followers",
        stalls_pass,
        lambda n: (
            STALL_CHECK_MS
            if n.settings.scriba_replica_stall_ms
            else min(SILENCE_CHECK_MS, n.settings.replica_lag_time_max_ms // 10)
        ),
    ),
    Job("observers", observers_pass, lambda n: OBSERVER_CHECK_MS),
    Job(
        "volumes",
        volumes_pass,
        lambda n: (
            VOLUME_CHECK_MS if n.settings.scriba_log_dirs_write_watermark else UNUSED_CHECK_MS
        ),
    ),
    Job("removal", removal_pass, lambda n: REMOVAL_CHECK_MS),
    Job("events", events_pass, lambda n: EVENTS_CHECK_MS, on_controllers=True),
    Job(
        "idle connections",
        idle_connections_pass,
        lambda n: CONNECTION_CHECK_MS,
        on_controllers=True,
    ),
)


async def run_forever(node: JobHost, job: Job) -> None:
    while True:
        await _pause(node, job)
        await job.run(node, node.world.clock.now())


async def _pause(node: JobHost, job: Job) -> None:
    """Until the interval has passed, as it is set then: a shorter one counts from now on."""
    clock = node.world.clock
    began = clock.mono_ms()
    while (left_ms := began + max(job.every_ms(node), 1) - clock.mono_ms()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000):
                await node.settings_changed.wait()
