"""What a log's owner does for compaction: tell what there is, and put new segments in their place.

The swap is Kafka's, so that either could finish what the other began. The new files are complete
and synced as `.cleaned`. Then, without a pause, they are renamed to `.swap`, the segments they
replace to `.deleted`, and `.swap` to the names of segments, each time the log before its indexes.
A file system keeps the order of names, so a crash leaves one of three things, and every start
knows them apart: `.cleaned` files, which are removed; a `.swap` log, which takes its place, and
what it covers goes; or indexes that are still called `.swap` beside their log.

Readers that are sending from a replaced segment finish: its file stays open until it is removed.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from scriba.instant import Instant
from scriba.runtime.ports import Disk, Offload
from scriba.storage.compaction.choice import (
    Dirt,
    GroupLimits,
    LogFacts,
    Rules,
    SealedSegment,
    assess,
)
from scriba.storage.compaction.cleaner import Means, Rewritten, Work
from scriba.storage.compaction.output import discard
from scriba.storage.directory.names import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    file_name,
    parse_file,
)
from scriba.storage.durability import Durability
from scriba.storage.limits import Limits
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.segments.aborted import AbortedTxns
from scriba.storage.segments.index import OFFSET_ENTRY, TIME_ENTRY
from scriba.storage.segments.segment import UNKNOWN, Segment
from scriba.storage.segments.segments import Segments

if TYPE_CHECKING:
    from scriba.storage.log import Log

FOR_EVER_MS: Final = 2**63 - 1


class Stale(Exception):
    """The log has changed since its compaction began: what was made of it is of no use."""


class Compaction:
    __slots__ = ("_disk", "_durability", "_limits", "_offload", "_segments", "_snapshots")

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        segments: Segments,
        snapshots: Snapshots,
        durability: Durability,
        limits: Callable[[int], Limits],
    ) -> None:
        self._disk = disk
        self._offload = offload
        self._segments = segments
        self._snapshots = snapshots
        self._durability = durability
        self._limits = limits

    @property
    def generation(self) -> int:
        """Changes when the log is truncated; the files of segments are then not what they were."""
        return self._durability.generation

    async def facts(
        self,
        *,
        start_offset: int,
        end_offset: int,
        stable_offset: int,
        checkpoint: int | None,
        rules: Rules,
    ) -> LogFacts:
        """What deciding needs; timestamps are looked up only where a rule asks for them."""
        by_age = rules.min_compaction_lag_ms > 0
        overdue = rules.max_compaction_lag_ms < FOR_EVER_MS
        for segment in self._sealed():
            if by_age:
                await segment.load_times()
            if overdue and segment.first_timestamp == UNKNOWN:
                self._segments.touch(segment)
                await segment.load_first_time()
        return LogFacts(
            tuple(map(_facts_of, self._sealed())),
            self._segments.active.base_offset,
            start_offset,
            end_offset,
            stable_offset,
            checkpoint,
        )

    def sources(self, end_offset: int) -> tuple[SealedSegment, ...]:
        """The sealed segments before `end_offset`."""
        return tuple(_facts_of(each) for each in self._sealed() if each.base_offset < end_offset)

    def _sealed(self) -> list[Segment]:
        return [segment for segment in self._segments if segment is not self._segments.active]

    # ---- taking over ----

    async def sync(self, rewritten: Rewritten) -> None:
        """Makes the new files durable under the names they have."""
        stem = self._stem(rewritten.base_offset)
        for suffix in _suffixes(rewritten):
            file = self._disk.open(stem + suffix + CLEANED)
            try:
                await file.datasync()
            finally:
                file.close()

    def swap(self, rewritten: Rewritten, generation: int, delete_at_ms: int) -> None:
        """One step: afterwards the new segment is the log's. Stale if it cannot be."""
        old = self._replaced(rewritten, generation)
        disk, stem = self._disk, self._stem(rewritten.base_offset)
        new = Segment(
            disk,
            self._offload,
            self._segments.directory,
            rewritten.base_offset,
            size=rewritten.size,
            index_bytes=rewritten.index_bytes,
            time_index_bytes=rewritten.time_index_bytes,
            aborted=AbortedTxns(rewritten.aborted),
            created_ms=old[-1].created_ms,
            limits=self._limits(rewritten.base_offset),
        )
        self._remove_strays(rewritten)
        for suffix in _suffixes(rewritten):
            disk.rename(stem + suffix + CLEANED, stem + suffix + SWAP)
        for segment in old:
            base = segment.base_offset
            snapshot = None if base == new.base_offset else self._snapshots.path(base)
            self._segments.removal.schedule_deletion(segment, snapshot, delete_at_ms)
            if snapshot is not None:
                self._snapshots.forget(base)
            self._durability.dropped(segment)
        for suffix in _suffixes(rewritten):
            disk.rename(stem + suffix + SWAP, stem + suffix)
        self._segments.replace(old, new)

    def _replaced(self, rewritten: Rewritten, generation: int) -> list[Segment]:
        by_base = {segment.base_offset: segment for segment in self._sealed()}
        if generation != self.generation or any(base not in by_base for base in rewritten.replaced):
            raise Stale
        return [by_base[base] for base in rewritten.replaced]

    def _remove_strays(self, rewritten: Rewritten) -> None:
        """Files of attempts that were given up: a start that found them would undo the swap."""
        own = {file_name(rewritten.base_offset, each + CLEANED) for each in _suffixes(rewritten)}
        for name in self._disk.list(self._segments.directory):
            if name.endswith(CLEANED) and name not in own:
                found = parse_file(name)
                if found is not None and found[0] <= rewritten.base_offset:
                    self._disk.unlink(f"{self._segments.directory}/{name}")

    async def sync_names(self) -> None:
        await self._disk.sync_dir(self._segments.directory)

    def discard(self) -> None:
        """Removes what an abandoned compaction left."""
        directory = self._segments.directory
        for name in self._disk.list(directory):
            if name.endswith(CLEANED) and (found := parse_file(name)) is not None:
                discard(self._disk, self._stem(found[0]))

    def _stem(self, base_offset: int) -> str:
        return f"{self._segments.directory}/{file_name(base_offset, '')}"


def _suffixes(rewritten: Rewritten) -> tuple[str, ...]:
    """The log first. Only a segment with aborted transactions has an index of them."""
    return SEGMENT_SUFFIXES if rewritten.aborted else (LOG, INDEX, TIME_INDEX)


def _facts_of(segment: Segment) -> SealedSegment:
    return SealedSegment(
        segment.base_offset,
        segment.size,
        len(segment.indexes.offsets) * OFFSET_ENTRY,
        len(segment.indexes.times) * TIME_ENTRY,
        segment.first_timestamp,
        segment.newest_ms,
    )


async def dirt_of(log: "Log", stable_offset: int, checkpoint: int | None, now: Instant) -> Dirt:
    """How much of a log wants compaction. KafkaError where it cannot be read."""
    facts = await log.steadily(
        lambda: log.compaction.facts(
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            stable_offset=stable_offset,
            checkpoint=checkpoint,
            rules=log.settings,
        )
    )
    return assess(facts, log.settings, now)


def work_on(
    log: "Log", first_dirty: int, end_offset: int, means: Means, seed: bytes, now: Instant
) -> Generator[None, None, Work]:
    """What a cleaner has to know of a log to compact it up to `end_offset`. In steps, the last of
    which looks at all but the producers: who of them writes meanwhile does so behind that."""
    producers = yield from log.producers.last_written(end_offset)
    settings, segments = log.settings, log.compaction.sources(end_offset)
    return Work(
        directory=log.directory,
        segments=segments,
        first_dirty=first_dirty,
        end_offset=end_offset,
        aborted=tuple(log.aborted_transactions(log.first_segment_offset, end_offset)),
        producers=producers,
        limits=GroupLimits(settings.segment_bytes, settings.segment_index_bytes),
        index_interval=settings.index_interval_bytes,
        delete_retention_ms=settings.delete_retention_ms,
        now_ms=now.wall_ms,
        map_seed=seed,
        means=means,
    )


# ---- what a crash interrupted ----


def finish_swaps(disk: Disk, directory: str, end_of: Callable[[str, int], int]) -> None:
    """Brings the names in a log's directory to where a swap would have brought them.

    `end_of` tells where the batches of a log file end, given its path and base offset.
    """
    files = {found for name in disk.list(directory) if (found := parse_file(name)) is not None}
    unfinished = [base for base, suffix in files if suffix.endswith(CLEANED)]
    first_unfinished = min(unfinished, default=FOR_EVER_MS)

    def path(base: int, suffix: str) -> str:
        return f"{directory}/{file_name(base, suffix)}"

    for base, suffix in sorted(files):
        # Kafka also splits segments this way: a part of one that is not all there is none.
        invalid = suffix.endswith(SWAP) and base >= first_unfinished
        if invalid or suffix.endswith(CLEANED):
            disk.unlink(path(base, suffix))
            files.discard((base, suffix))
    for base, _ in sorted(found for found in files if found[1] == LOG + SWAP):
        end = end_of(path(base, LOG + SWAP), base)
        for offset, suffix in sorted(files):
            if base <= offset < end and suffix in SEGMENT_SUFFIXES:
                disk.unlink(path(offset, suffix))
                files.discard((offset, suffix))
    for base, suffix in sorted(files):
        if suffix.endswith(SWAP):
            disk.rename(path(base, suffix), path(base, suffix.removesuffix(SWAP)))
