"""Compaction of a node's logs: which ones, when, how fast, and what became of it.

Each pass looks at every compacted log here, and works off those that are due, the dirtiest first,
`log.cleaner.threads` at a time. The reading and writing is done by a worker outside the loop's
process (`storage.compaction.cleaner`), which is handed paths and bounds. As it reports what it has
done it is held to `log.cleaner.io.max.bytes.per.second`, and each segment that it completes is
swapped in here. How far a log is compacted is written down after the last of them.

The worker gets only time that nobody else wants. On a machine that is never idle that would be
next to none, and logs would grow for ever; so one that gets nowhere is replaced by one that takes
time from others, until the pass is over.

A log that is deleted, truncated or shortened meanwhile makes the work stale: it is dropped, and
the next pass looks again. A log in which the worker finds damage, or at which it fails in any other
way that would come again, is marked as uncleanable, with an event and in `uncleanable`: it is
served as before and only grows. One log must not stop the node, nor the compaction of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from scriba.broker.observe.counters import CleanerGauges
from scriba.broker.ports import Configuration, Counting, EventLog, WorldAccess
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.runtime.ports import Clock, Worker
from scriba.settings import NodeSettings
from scriba.storage.compaction.choice import Dirt, dirtiest
from scriba.storage.compaction.cleaner import Finished, Means, Progress, Rewritten
from scriba.storage.compaction.log import Stale, dirt_of, work_on
from scriba.storage.compaction.source import Damage
from scriba.storage.directory.names import PartitionName
from scriba.storage.results import FULL

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.partitions.replicas import Replicas
    from scriba.storage.directory.logdir import LogDir

TASK: Final = "scriba.storage.compaction.cleaner:clean"
MOST_STEP_BYTES: Final = 16 << 20
"""Between two reports of a worker; the loop has a word each time, and pays for it."""

PATIENCE_MS: Final = 10_000
LEAST_BYTES: Final = 64 << 20
"""What a worker that gets any time to speak of moves within that; one left alone needs 0.1 s."""


class Throttle:
    """Tells how long to wait so that, over time, no more bytes than allowed are moved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paid_until_ms = 0.0

    def pause_ms(self, moved: int, bytes_per_second: float) -> float:
        now = self._clock.mono_ms()
        self._paid_until_ms = max(self._paid_until_ms, now) + moved / bytes_per_second * 1000
        return self._paid_until_ms - now


_EXPECTED: Final = (Damage, OSError, KafkaError)
"""What a compaction may fail with; anything else is a defect, and the log has its trace."""


class Starved(Exception):
    """A worker that waits for idle time, of which there is none."""


class _Candidate(NamedTuple):
    partition: Partition
    home: LogDir
    dirt: Dirt
    generation: int
    """That of the log when it was looked at."""


class LogCleanerHost(Configuration, Counting, EventLog, WorldAccess, Protocol):
    @property
    def replicas(self) -> Replicas: ...


class LogCleaner:
    def __init__(self, node: LogCleanerHost) -> None:
        self._node = node
        self._throttle = Throttle(node.world.clock)
        self.gauges = CleanerGauges()
        self.uncleanable: dict[Partition, str] = {}
        """Partitions in which damage was found, and where."""
        self._cleaning: set[Partition] = set()

    def is_cleaning(self, partition: Partition) -> bool:
        """Whether a compaction of it is under way, that may still put in place what it has made."""
        return partition in self._cleaning

    async def run(self, now: Instant) -> None:
        """One pass over all logs that are due."""
        self.gauges.last_run_ms = now.mono_ms
        due = await self._due(now)
        if not due:
            return
        left = deque(due)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._node.settings.log_cleaner_threads, len(due))):
                group.create_task(self._work_off(left))

    # ---- which ----

    async def _due(self, now: Instant) -> list[_Candidate]:
        pace = Pace(self._node.world.clock)
        found: list[tuple[_Candidate, Dirt]] = []
        delay_ms = 0
        here = set(self._node.replicas)
        self.uncleanable = {each: why for each, why in self.uncleanable.items() if each in here}
        for partition in self._node.replicas:
            await pace()
            home = self._node.replicas.home(partition)
            if home is None or not self._may_clean(partition) or partition in self.uncleanable:
                continue
            with suppress(KafkaError, OSError):  # the log has said so, or is gone
                generation = partition.log.compaction.generation
                dirt = await self._look(partition, home, now)
                delay_ms = max(delay_ms, dirt.overdue_ms)
                if dirt.is_due(partition.log.settings):
                    found.append((_Candidate(partition, home, dirt, generation), dirt))
        gauges = self.gauges
        gauges.max_dirty_percent = int(100 * max((dirt.ratio for _, dirt in found), default=0))
        gauges.max_compaction_delay_ms = delay_ms
        gauges.uncleanable_partitions_count = len(self.uncleanable)
        gauges.uncleanable_bytes = sum(each.log.size for each in self.uncleanable)
        return dirtiest(found)

    def _may_clean(self, partition: Partition) -> bool:
        log = partition.log
        return (
            "compact" in log.settings.cleanup_policy
            and log.failure is None
            and not self._node.replicas.moves.is_moving(partition)  # its copy would fall behind
            and self._node.replicas.get(partition.topic, partition.index) is partition
        )

    async def _look(self, partition: Partition, home: LogDir, now: Instant) -> Dirt:
        log = partition.log
        log.roll_if_due(now)
        stable = log.last_stable_offset(partition.high_watermark.value)
        checkpoint = home.compacted.get(PartitionName(partition.topic, partition.index))
        return await dirt_of(log, stable, checkpoint, now)

    # ---- carrying it out ----

    async def _work_off(self, left: deque[_Candidate]) -> None:
        workers = self._node.world.workers
        worker = workers.start(idle=True)
        try:
            while left:
                candidate = left.popleft()
                try:
                    await self._clean(worker, candidate)
                except Starved:
                    left.appendleft(candidate)
                    await worker.close()
                    worker = workers.start(idle=False)
        finally:
            await worker.close()

    async def _clean(self, worker: Worker, candidate: _Candidate) -> None:
        partition, log = candidate.partition, candidate.partition.log
        node, started = self._node, self._node.world.clock.mono_ms()
        self.gauges.in_progress += 1
        self._cleaning.add(partition)
        unexpected: Exception | None = None
        try:
            await self._compact(worker, candidate)
            node.counters.compactions += 1
            return
        except Starved:
            text = "begins again: the machine is never idle"
            node.note(EventKind.COMPACTION_STARVED, repr(partition), text)
            raise
        except Stale:
            kind, why = EventKind.COMPACTION_STALE, "given up: the log has changed meanwhile"
        except Exception as error:
            kind, why = self._judge(partition, error)
            unexpected = error if not isinstance(error, _EXPECTED) else None
        finally:
            self.gauges.in_progress -= 1
            self._cleaning.discard(partition)
            took_ms = node.world.clock.mono_ms() - started
            self.gauges.max_clean_time_ms = max(self.gauges.max_clean_time_ms, took_ms)
        node.counters.failed_compactions += 1
        node.note(kind, repr(partition), why, unexpected)
        if log.failure is None:
            with suppress(OSError):
                log.compaction.discard()

    def _judge(self, partition: Partition, error: Exception) -> tuple[EventKind, str]:
        """What a failed compaction means for its partition, and for no other."""
        if partition.log.failure is not None:
            return EventKind.COMPACTION_STALE, "given up: the log is gone"
        full = isinstance(error, OSError) and error.errno in FULL
        if full or isinstance(error, KafkaError | ChildProcessError):
            # No room, or a worker that was ended: the next pass may fare better.
            return EventKind.COMPACTION_PUT_OFF, f"put off: {error}"
        expected = isinstance(error, _EXPECTED)
        why = f"uncleanable: {error}" if expected else f"uncleanable: {error!r}"
        self.uncleanable[partition] = why
        self.gauges.uncleanable_partitions_count = len(self.uncleanable)
        return EventKind.PARTITION_UNCLEANABLE, why

    async def _compact(self, worker: Worker, candidate: _Candidate) -> None:
        partition, home, dirt, _ = candidate
        name = PartitionName(partition.topic, partition.index)
        first_dirty = dirt.first_dirty
        while first_dirty < dirt.first_uncleanable:
            done = await self._pass(worker, candidate, first_dirty)
            first_dirty = done.end_offset
            if home.logs.get(name) is not partition.log:
                raise Stale  # its topic was deleted, and may have been made anew under its name
            if self._is_cut(candidate):
                raise Stale  # the checkpoint is lowered for a truncation, and stays so
            await home.checkpoint_compacted(partition.log, first_dirty)

    async def _pass(self, worker: Worker, candidate: _Candidate, first_dirty: int) -> Finished:
        """As much as the keys fit into the memory for them."""
        partition, home, dirt, generation = candidate
        node, log = self._node, partition.log
        now = node.world.clock.now()
        means = means_of(node.settings)
        seed = node.world.rng.bytes(16)
        looking = work_on(log, first_dirty, dirt.first_uncleanable, means, seed, now)
        work = await in_slices(looking, Pace(node.world.clock))
        sources = {segment.base_offset for segment in work.segments}
        told = (0, 0)
        try:
            async with aclosing(worker.run(TASK, work)) as steps:
                async for step in in_time(node.world.clock, steps, worker.idle):
                    if not self._may_clean(partition) or self._is_cut(candidate):
                        raise Stale
                    match step:
                        case Progress(read, written):
                            self._count(read, written)
                            told = (told[0] + read, told[1] + written)
                            await self._hold_back(read + written)
                        case Rewritten():
                            await home.take_compacted(log, step, generation, now)
                            sources.difference_update(step.replaced)
                        case Finished():
                            # Steps are told when they are large enough; the rest of them is not.
                            self._count(step.bytes_read - told[0], step.bytes_written - told[1])
                            self._note(partition, step, now)
                            return step
        except Exception as error:
            gone = sources - {each.base_offset for each in log.compaction.sources(log.end_offset)}
            # What is no longer the log's says nothing of it, whatever the worker found there.
            if isinstance(error, Starved) or not (gone or self._is_cut(candidate)):
                raise
            raise Stale from error
        raise Stale

    def _is_cut(self, candidate: _Candidate) -> bool:
        """Whether the log was truncated since it was looked at, or is about to be."""
        partition = candidate.partition
        cut = candidate.generation != partition.log.compaction.generation
        return cut or self._node.replicas.fetchers.is_truncating(partition)

    def _count(self, read: int, written: int) -> None:
        self._node.counters.compaction_bytes_read += read
        self._node.counters.compaction_bytes_written += written

    async def _hold_back(self, moved: int) -> None:
        rate = self._node.settings.log_cleaner_io_max_bytes_per_second
        pause_ms = self._throttle.pause_ms(moved, rate)
        if pause_ms >= 1:
            await asyncio.sleep(pause_ms / 1000)

    def _note(self, partition: Partition, done: Finished, began: Instant) -> None:
        gauges = self.gauges
        gauges.max_buffer_utilization_percent = int(100 * done.map_use)
        gauges.cleaner_recopy_percent = 100 * done.bytes_written // max(done.bytes_read, 1)
        took_ms = self._node.world.clock.mono_ms() - began.mono_ms
        self._node.note(
            EventKind.COMPACTION_DONE,
            repr(partition),
            f"up to offset {done.end_offset} in {took_ms} ms: kept {done.records_kept} of "
            f"{done.records_read} records, wrote {done.bytes_written} bytes",
        )


async def in_time(clock: Clock, steps: AsyncIterator[Any], idle: bool) -> AsyncIterator[Any]:
    """The steps of a worker; Starved if it is an idle one that gets nowhere."""
    waited_ms = moved = 0
    while True:
        asked = clock.mono_ms()
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000 if idle else None):
                step = await anext(steps)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Starved from None
        waited_ms += clock.mono_ms() - asked
        if isinstance(step, Progress):
            moved += step.read + step.written
        if waited_ms >= PATIENCE_MS:
            if idle and moved < LEAST_BYTES:
                raise Starved
            waited_ms = moved = 0
        yield step


def means_of(settings: NodeSettings) -> Means:
    """What each of the cleaners at work may use."""
    threads = settings.log_cleaner_threads
    rate = settings.log_cleaner_io_max_bytes_per_second
    return Means(
        map_bytes=settings.log_cleaner_dedupe_buffer_size // threads,
        map_load=settings.log_cleaner_io_buffer_load_factor,
        buffer_bytes=settings.log_cleaner_io_buffer_size // threads // 2,
        step_bytes=int(min(rate / 4, MOST_STEP_BYTES)),
    )
