"""One partition's log: appended at one end, read anywhere, truncated at either (`truncation`).

Everything that changes it is a synchronous step on the loop; only the device is awaited. `append`
checks the producer, gives the batch its place, writes it with one call and takes note of it; until
the write has succeeded nothing has changed, so a full disk costs that batch and nothing else.

`flush` makes durable what was written before it was called; everybody who waits while one sync is
under way shares the next. `flushed_offset` never passes what the device has, directory entries and
leader epochs included. After a failed sync nobody knows what the device holds, so there is no
second one: the log fails for good, and reading is all that is left. The same happens when bytes
below the flushed end turn out to be damaged.

Offsets: `start_offset <= end_offset`, `flushed_offset <= end_offset`; ends are exclusive. A batch
is never split: not by a roll, not by a truncation, and a read begins at one.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from errno import ENOENT
from functools import partial
from typing import Final, Self, TypeVar

from scriba.errors import ErrorCode, KafkaError, ParseError, anew
from scriba.instant import Instant
from scriba.records.batch import EndTxnMarker
from scriba.records.header import CONTROL, LOG_OVERHEAD, PLACE, BatchHeader, read_header
from scriba.runtime.ports import Disk, Offload
from scriba.settings import TopicSettings
from scriba.storage.compaction.cleaner import Rewritten
from scriba.storage.compaction.log import Compaction, Stale
from scriba.storage.directory.names import INDEX, LOG, TIME_INDEX, file_name, parent_of
from scriba.storage.directory.partition_metadata import claim, write_topic_id
from scriba.storage.durability import Durability
from scriba.storage.epochs import Epochs
from scriba.storage.incoming import check_batches, read_marker
from scriba.storage.inline import Inline
from scriba.storage.limits import Limits, limits_of
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.producers.state import AbortedTxn, ActiveProducer, Producers
from scriba.storage.recovery.load import Loaded, LogLocation, load, new
from scriba.storage.results import (
    EMPTY,
    FULL,
    Appended,
    Empty,
    Failure,
    Slice,
    storage_error,
)
from scriba.storage.segments.not_resident import NotResident
from scriba.storage.segments.recent import MOST_RECENT
from scriba.storage.segments.search import TimedOffset, first_after, latest
from scriba.storage.segments.segment import Damaged, Segment
from scriba.storage.segments.segments import Segments
from scriba.storage.truncation import Truncation
from scriba.storage.writer import Writer

__all__ = ["EMPTY", "Appended", "Empty", "Failure", "Log", "NotResident", "Slice", "TimedOffset"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

DAY_MS: Final = 86_400_000
METADATA_TOPIC: Final = "__cluster_metadata"
LARGE_APPEND: Final = 2 << 20
"""From this size on, finding memory for a batch takes longer than a slice of long work may."""
ROOM_AND_START: Final = "make room; if no other replica fills it anew, start the node again"
_place = PLACE.pack_into


def _location_of(
    disk: Disk,
    directory: str,
    settings: TopicSettings,
    now: Instant,
    offload: Offload | None,
    producer_expiration_ms: int = DAY_MS,
) -> LogLocation:
    return LogLocation(
        disk=disk,
        offload=offload or Inline(),
        directory=directory,
        limits=limits_of(settings, directory, 0),
        producer_expiration_ms=producer_expiration_ms,
        compacted="compact" in settings.cleanup_policy,
        now_ms=now.wall_ms,
    )


class Log:
    __slots__ = (
        "_disk",
        "_durability",
        "_offload",
        "_seen_end",
        "_segments",
        "_settings",
        "_snapshots",
        "_writer",
        "compaction",
        "cut_batches",
        "cut_tail",
        "directory",
        "end_offset",
        "epochs",
        "failure",
        "found_full",
        "has_files",
        "lost_tail",
        "make_room",
        "on_failure",
        "on_refused",
        "partition",
        "producers",
        "start_offset",
        "topic",
        "topic_id",
        "truncation",
    )

    def __init__(
        self,
        loaded: Loaded,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: TopicSettings,
        on_failure: Callable[["Log", Failure], None] | None,
        sync_parent: Callable[[], Awaitable[None]] | None,
    ) -> None:
        location = loaded.location
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = location.directory
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        self.epochs: Epochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self.failure: Failure | None = None
        self._disk = location.disk
        self._offload = location.offload
        self.on_failure = on_failure
        self.on_refused: Callable[[str], None] | None = None
        """Told of each write that the device did not take, for lack of room or otherwise."""
        self.make_room: Callable[[], bool] | None = None
        """Asked for room where what is written beside the batches does not fit; whether there may
        be some now."""
        self._settings = settings
        self._snapshots: Snapshots = loaded.snapshots
        self._segments = Segments(
            location.disk, location.offload, location.directory, loaded.segments, self._limits
        )
        self._segments.configure()
        self._durability = Durability(
            location.disk,
            self._segments,
            loaded.snapshots,
            loaded.epochs,
            durable=loaded.durable,
            flushed_offset=loaded.recovery_point,
            end=lambda: self.end_offset,
            fail=self._sync_failed,
            refused=self.refused,
            make_room=lambda: self.make_room is not None and self.make_room(),
            sync_parent=sync_parent
            or partial(location.disk.sync_dir, parent_of(location.directory)),
        )
        self._writer = Writer(self, self._segments, loaded.snapshots, self._durability)
        self.truncation = Truncation(
            self,
            location.disk,
            location.offload,
            self._segments,
            loaded.snapshots,
            self._durability,
            self._writer,
        )
        self.compaction = Compaction(
            location.disk,
            location.offload,
            self._segments,
            loaded.snapshots,
            self._durability,
            self._limits,
        )
        self.has_files = True
        """Whether the directory and its files are there: those of a new log come with its first
        append at the latest (`make_files`)."""
        self.found_full = loaded.full
        """Why opening could not write all that it would have."""
        self.cut_tail = loaded.cut
        """Whether opening cut off a tail; `sync` must come before the next append."""
        self.lost_tail = loaded.lost
        """What recovery cut off, in words; empty where it was nothing."""
        self.cut_batches = loaded.cut_batches
        """Whether that may have been acknowledged: more than an append that was interrupted."""
        self._seen_end = -1
        """The end when it was last asked whether the log is idle."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: TopicSettings,
        now: Instant,
        *,
        recovery_point: int | None = None,
        log_start: int = 0,
        clean: bool = False,
        offload: Offload | None = None,
        producer_expiration_ms: int = DAY_MS,
        on_failure: Callable[["Log", Failure], None] | None = None,
        sync_parent: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """Opens or creates the log in `directory`. Waits for the device.

        Without a recovery point nothing counts as flushed, unless the shutdown was clean.
        `sync_parent` makes the directory's own name durable; logs side by side can share that.
        """
        location = _location_of(disk, directory, settings, now, offload, producer_expiration_ms)
        if not disk.exists(directory):
            loaded = new(location, log_start)
            log = cls(loaded, topic, partition, topic_id, settings, on_failure, sync_parent)
            log.has_files = False
            log.make_files()
            return log
        topic_id = claim(disk, directory, topic_id)
        loaded = load(location, recovery_point, log_start, clean)
        log = cls(loaded, topic, partition, topic_id, settings, on_failure, sync_parent)
        if loaded.damage:
            log.fail(loaded.damage, device=False)
        return log

    @classmethod
    def new(
        cls,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: TopicSettings,
        now: Instant,
        *,
        base_offset: int = 0,
        offload: Offload | None = None,
        sync_parent: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """A log for a directory that is not there. It has no files yet; nothing is touched."""
        location = _location_of(disk, directory, settings, now, offload)
        loaded = new(location, base_offset)
        log = cls(loaded, topic, partition, topic_id, settings, None, sync_parent)
        log.has_files = False
        return log

    def make_files(self) -> None:
        """Makes the directory and the empty files of a new log."""
        self.create_files()
        self.has_files = True
        self._segments.active.preallocate()

    def create_files(self) -> None:
        """As `make_files`, but changes nothing in memory: for a thread.

        The first append may make them on the loop meanwhile. So each step can be done twice, none
        takes anything away, and none is begun once the log has its files.
        """
        disk, directory = self._disk, self.directory
        if self.has_files:
            return
        disk.mkdir(directory)
        if self.topic_id is not None:
            write_topic_id(disk, directory, self.topic_id)
        for suffix in (INDEX, TIME_INDEX, LOG):
            if self.has_files:
                return
            disk.open(f"{directory}/{file_name(self._segments.first_offset, suffix)}", True).close()

    def renamed(self, directory: str) -> None:
        """The directory has another name now, which is not durable yet."""
        self.directory = self._snapshots.directory = directory
        self._segments.moved(directory)
        self._durability.renamed()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._segments.configure()

    @property
    def flushed_offset(self) -> int:
        """Everything before it is on the device: the recovery point."""
        return self._durability.flushed_offset

    @property
    def size(self) -> int:
        return self._segments.size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def first_segment_offset(self) -> int:
        """The start as the files alone would tell it."""
        return self._segments.first_offset

    def segment_start(self, offset: int) -> int:
        """Where the segment begins that `offset` belongs to."""
        return self._segments.from_offset(offset)[0].base_offset

    def _limits(self, base_offset: int) -> Limits:
        return limits_of(self._settings, self.directory, base_offset)

    # ---- appending ----

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now: Instant,
        by_coordinator: bool = False,
    ) -> Appended:
        """Appends the one batch in `view` as the leader; stamps its offset and epoch in place.

        `header` is the batch's, as `prepare` returned it. KafkaError says why not; the log is
        then unchanged. What a coordinator writes for a producer has no sequence of its own.
        """
        if self.failure is not None:
            raise anew(self.failure.error)
        marker: EndTxnMarker | None = None
        named = header.producer_id >= 0
        if named:
            if header.attributes & CONTROL:
                marker = read_marker(view)
                if marker is not None:
                    self.producers.check_marker(header, marker)
            elif by_coordinator:
                self.producers.check_epoch(header)
            else:
                repeat = self.producers.check(header)
                if repeat is not None:
                    return repeat.base_offset, repeat.last_offset, self.start_offset, repeat
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        size = len(view)
        _place(view, 0, base_offset, size - LOG_OVERHEAD, leader_epoch)
        segment = self._segments.active
        position = segment.size
        if (
            position + size > segment.limit
            or max_timestamp > segment.roll_after
            or last_offset > segment.max_offset
        ):
            segment = self._writer.segment_for(size, base_offset, last_offset, max_timestamp, now)
            position = segment.size
        file = segment.file
        assert file is not None, "the segment is closed"
        try:
            file.pwrite(view, position)
        except OSError as error:
            raise self._writer.not_written(segment, error) from error
        # `Segment.note`, written out: a call less for each batch of a request.
        recent = segment.recent
        recent.positions.append(position)
        offsets = recent.offsets
        offsets.append(base_offset)
        if len(offsets) > MOST_RECENT:
            recent.shorten()
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = last_offset
        segment.size = position + size
        self.end_offset = segment.next_offset = last_offset + 1
        if position > segment.index_after:
            segment.index(position, base_offset, last_offset, max_timestamp)
        epochs = self.epochs
        if epochs.begun or leader_epoch > epochs.latest:
            epochs.assign(leader_epoch, base_offset)
        if named:
            self._note_producer(segment, header, marker, base_offset, now)
        return base_offset, last_offset, self.start_offset, None

    async def ready_for(self, header: BatchHeader, now: Instant) -> None:
        """Has memory ready for a large batch, so that its append holds the loop for a copy alone.

        Nothing is promised and nobody waits: others append meanwhile. What is in the way of the
        batch, its append will tell. Room that is not used is for what comes next, and is cut off
        with the segment's end (`Segment.padded`).
        """
        size = header.size
        if size < LARGE_APPEND or self.failure is not None:
            return
        end, last = self.end_offset, self.end_offset + header.last_offset_delta
        with suppress(KafkaError):
            self._writer.segment_for(size, end, last, header.max_timestamp, now)
            await self._writer.populate(size)

    async def ready_to_follow(self, view: memoryview) -> None:
        """The same for batches as a leader sent them, where the first one is large. Nobody has
        checked it yet, so that no segment begins for it."""
        if len(view) < LARGE_APPEND or self.failure is not None:
            return
        header = read_header(view)
        if LARGE_APPEND <= header.size <= len(view) and self._writer.fits(header, 0):
            await self._writer.populate(header.size)

    def append_follower(self, view: memoryview, now: Instant) -> None:
        """Appends batches as a leader sent them, offsets and epochs included.

        A part of a batch at the end is left out. KafkaError if they do not follow this log.
        """
        if self.failure is not None:
            raise anew(self.failure.error)
        start = end = 0
        run: list[tuple[int, BatchHeader]] = []
        for position, header in check_batches(view, self.end_offset):
            if not self._writer.fits(header, position - start):
                self._write_run(view[start:position], run, now)
                start, run = position, []
                self._writer.make_room(header, self.end_offset, now)
            run.append((position - start, header))
            end = position + header.length + LOG_OVERHEAD
        if run:
            self._write_run(view[start:end], run, now)

    def _write_run(
        self, view: memoryview, run: list[tuple[int, BatchHeader]], now: Instant
    ) -> None:
        if not run:
            return
        # Before anything is written: one that cannot be read must not leave the file ahead of the
        # log's end, where the next fetch would write the rest once more.
        markers: dict[int, EndTxnMarker | None] = {}
        for position, header in run:
            if header.producer_id >= 0 and header.attributes & CONTROL:
                markers[position] = read_marker(view[position:])
        segment = self._writer.write_run(view, run)
        for position, header in run:
            self.end_offset = header.base_offset + header.last_offset_delta + 1
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & CONTROL:
                    marker = markers[position]
                self._note_producer(segment, header, marker, header.base_offset, now)

    def skip_to(self, offset: int, now: Instant) -> None:
        """Goes on at `offset`: in the log of which this is a copy, compaction left nothing before.

        A segment begins there, whose name tells it to the next start.
        """
        try:
            self._writer.roll(offset, now)
        except OSError as error:
            raise self.refused("cannot begin a segment", error) from error
        self.end_offset = offset

    def begin_epoch(self, leader_epoch: int) -> None:
        """A leader takes note of the epoch it begins, before the first record of it."""
        self.epochs.begin(leader_epoch, self.end_offset)

    def _note_producer(
        self,
        segment: Segment,
        header: BatchHeader,
        marker: EndTxnMarker | None,
        base_offset: int,
        now: Instant,
    ) -> None:
        if not header.attributes & CONTROL:
            self.producers.update(header, base_offset, now.wall_ms)
        elif marker is not None:
            aborted = self.producers.end_txn(header, marker, base_offset, now.wall_ms)
            if aborted is not None:
                segment.note_aborted(aborted)

    def roll(self, now: Instant) -> None:
        """Begins a new segment, unless the active one is still empty."""
        if self._segments.active.size:
            self._writer.roll(self.end_offset, now)

    def roll_if_due(self, now: Instant) -> bool:
        """Rolls a segment that was begun `segment.ms` ago although nobody appends any more."""
        return self.failure is None and self._writer.roll_if_due(self.end_offset, now)

    def expire_producers(
        self, now: Instant, expiration_ms: int = DAY_MS
    ) -> Generator[None, None, int]:
        return self.producers.expire(now.wall_ms, expiration_ms)

    async def newest_record_ms(self) -> int:
        """The largest timestamp of the last segment that has records, as its index tells it; -1
        where there is none, or none that can be read."""
        with suppress(KafkaError):  # the log has said so
            return await self.steadily(self._newest_record_ms)
        return -1

    async def _newest_record_ms(self) -> int:
        for segment in reversed(list(self._segments)):
            if segment.size:
                await segment.load_times()
                return segment.max_timestamp
        return -1

    # ---- reading ----

    def check_offset(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self!r} has offsets {self.start_offset} to {self.end_offset}, not {offset}",
            )

    def read(
        self, offset: int, max_bytes: int, bound: int, min_one: bool = True
    ) -> Slice | NotResident | Empty:
        """Batches from the one with `offset` on, and nothing of `bound` or after.

        At most `max_bytes`, but at least one batch if there is one and `min_one` asks for it. On
        NotResident, load and call again.
        """
        if not self.start_offset <= offset <= self.end_offset:
            self.check_offset(offset)
        if offset >= bound:
            return EMPTY
        try:
            return self._segments.read(offset, max_bytes, bound, self.end_offset, min_one)
        except (Damaged, OSError) as error:
            raise self.unreadable(error) from error

    async def steadily(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` finds that takes several steps, asked anew where the log has changed
        between them.

        A file that was deleted, cut or replaced meanwhile is no damage, and what a part of it
        said is no answer.
        """
        while True:
            before = self._segments.changes
            try:
                found = await read()
            except (Damaged, ParseError, OSError) as error:
                if self._segments.changes == before:
                    raise self.unreadable(error) from error
            else:
                if self._segments.changes == before:
                    return found

    def unreadable(self, error: Exception) -> KafkaError:
        """What a read has met, as the error to raise. Damage takes this log out of use, a device
        that fails all logs on it.

        Where the process has too many files open the device was not asked: the log stays.
        """
        if not isinstance(error, OSError):
            return self.fail(str(error), device=False)
        if error.errno in FULL:
            return self.refused("cannot be read", error)
        return self.fail(f"cannot be read: {error}", device=True)

    async def offset_for_timestamp(self, timestamp: int) -> TimedOffset | None:
        """The first record that is not older than `timestamp`."""
        return await self.steadily(
            lambda: first_after(self._segments, timestamp, self.start_offset, self._offload)
        )

    async def max_timestamp_offset(self) -> TimedOffset | None:
        """The first record with the largest timestamp."""
        return await self.steadily(lambda: latest(self._segments, self._offload))

    def epoch_of(self, offset: int) -> int:
        return self.epochs.epoch_of(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to `epoch`; (-1, -1) if unknowable."""
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Never before the start: of an open transaction that began there nothing is left."""
        stable, start = self.producers.last_stable_offset(high_watermark), self.start_offset
        return stable if stable >= start else min(start, high_watermark)

    def aborted_transactions(
        self, start_offset: int, end_offset: int, read: Slice | None = None
    ) -> list[AbortedTxn]:
        """Transactions whose records a reader of [start, end), or of a slice of it, leaves out."""
        try:
            return self._segments.aborted(start_offset, end_offset, read)
        except (Damaged, OSError) as error:
            raise self.unreadable(error) from error

    def active_producers(self) -> Iterator[ActiveProducer]:
        """In short steps, between which the log may change."""
        return self.producers.active()

    # ---- flushing ----

    @property
    def sealed_offset(self) -> int:
        """Everything before it lies in sealed segments, which it is time to flush."""
        return self._segments.active.base_offset

    async def flush(self, up_to: int | None = None) -> None:
        """Returns when everything before `up_to` (else: written so far) is on the device."""
        if self.failure is not None:
            raise anew(self.failure.error)
        try:
            self._writer.snapshot_if_due(self.end_offset)
        except OSError as error:
            raise self.refused("cannot take a snapshot of its producers", error) from error
        await self._durability.flush(self.end_offset if up_to is None else up_to)

    async def sync(self, hurried: bool = False) -> None:
        """As `flush`, even if no record waits for it: a truncation is durable after it.

        One that is `hurried` does not wait for room on a full device: NoRoom.
        """
        if self.failure is not None:
            raise anew(self.failure.error)
        self._durability.hurried = hurried
        try:
            await self._durability.sync()
        finally:
            self._durability.hurried = False

    def _sync_failed(self, error: OSError) -> KafkaError:
        """What the device has of the file nobody knows now, so there is no second try."""
        return self.in_doubt("cannot be flushed", error)

    def in_doubt(self, what: str, error: OSError) -> KafkaError:
        """Takes the log out of use of whose files nobody knows how they are; the error to raise.

        For want of room it is this log alone: others tell by themselves.
        """
        full = error.errno in FULL
        return self.fail(f"{what}: {error}", not full, ROOM_AND_START if full else "")

    def fail(self, why: str, device: bool, remedy: str = "") -> KafkaError:
        """Takes the log out of use for good, except for reading; the error to raise."""
        if not device and self.topic != METADATA_TOPIC:
            mends = f"with the node stopped, scriba log repair {self.directory} mends it"
            why = f"{why}; {remedy or mends}"
        error = storage_error(f"{self!r}: {why}")
        if self.failure is None:
            self.failure = Failure(anew(error), device)
            if self.on_failure is not None:
                self.on_failure(self, self.failure)
            else:
                logger.error("%r is offline: %s", self, why)
        return error

    def refused(self, what: str, error: OSError) -> KafkaError:
        """Tells of a write that the device did not take; the error to raise.

        The log is as it was before. NoRoom if the device is full. Where the directory is gone, so
        is the log: whatever is still open of it has no name any more.
        """
        if error.errno == ENOENT:
            return self.fail(f"{what}: {error}", device=True)
        text = f"{self!r} {what}: {error}"
        if self.on_refused is not None:
            self.on_refused(text)
        else:
            logger.warning("%s", text)
        return storage_error(text, error)

    async def close(self) -> None:
        """Makes everything durable, so that the next start after this one reads no records.

        NoRoom where that does not fit: the next start then reads what a crash would have it read.
        """
        try:
            # A log that never had a record is made anew where a crash loses it.
            complete = not self.end_offset or (
                self._durability.settled
                and self._snapshots.latest == self.end_offset
                and self._segments.active.sealed
            )
            if self.failure is None and (self._writer.has_tail or not complete):
                self._durability.closing = True
                self._writer.trim()
                self._segments.active.seal()
                if self._snapshots.pending:
                    await self.sync()  # which writes it: there is one at a time
                self._writer.take_snapshot(self.end_offset)
                await self.sync()
        except OSError as error:
            if error.errno in FULL:
                raise self.refused("cannot be closed", error) from error
            raise self.fail(f"cannot be closed: {error}", device=True) from error
        finally:
            self._segments.close()

    def close_if_idle(self, even_if_busy: bool = False) -> bool:
        """Closes files and frees memory, if nobody has read or written since this was last asked.

        It goes on where it was with the next read or write.
        """
        busy = self._segments.used or self.end_offset != self._seen_end
        self._segments.used = False
        self._seen_end = self.end_offset
        if (
            (busy and not even_if_busy)
            or self.failure is not None
            or not self._segments.has_open_files
        ):
            return False
        try:
            self._segments.close_idle()
        except OSError as error:
            raise storage_error(f"{self!r} cannot complete its indexes: {error}", error) from error
        return True

    def delete_records_to(self, offset: int) -> int:
        """Moves the start up to `offset`, which must not be past the high watermark."""
        if offset > self.start_offset:
            self.start_offset = min(offset, self.end_offset)
            self.epochs.truncate_start(self.start_offset)
        return self.start_offset

    async def take_compacted(self, rewritten: Rewritten, generation: int, now: Instant) -> None:
        """Puts a compacted segment in the place of its sources, durably. Stale if it is too late.

        The recovery point on disk must be past it before: what compaction took out, recovery
        would miss. `LogDir.take_compacted` sees to that.
        """
        deadline = now.mono_ms + self._settings.file_delete_delay_ms
        try:
            await self.compaction.sync(rewritten)
        except OSError as error:
            if error.errno in FULL:
                raise storage_error(f"{self!r} has no room for its compaction", error) from error
            raise self.fail(f"cannot take a compacted segment: {error}", device=True) from error
        try:
            if self.failure is not None:
                raise Stale
            self.compaction.swap(rewritten, generation, deadline)
            await self.compaction.sync_names()
        except OSError as error:
            if self.failure is not None:
                raise Stale from None
            # Between two names only this log is in doubt, and another start sorts it out.
            raise self.in_doubt("cannot take a compacted segment", error) from error
