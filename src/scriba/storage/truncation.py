"""Truncation of a log: at its start by retention, at its end by its leader, whole by deletion.

The start moves up by retention and by DeleteRecords, always to a place where a segment begins
or into one; files go when nobody can be sending from them any more. The end moves back by
truncation, always to the end of a batch. Either way the log's own numbers change first in memory,
in one step, and what is left of it is a log as any other.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.runtime.ports import Disk, Offload
from scriba.storage.directory.names import deleted_dir, parent_of
from scriba.storage.directory.removal import remove_tree, unused_dir
from scriba.storage.durability import Durability
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.producers.state import Producers
from scriba.storage.recovery.load import producers_at
from scriba.storage.results import FULL, Failure, NoRoom, storage_error
from scriba.storage.retention import Reason, SegmentFacts, before_start, over_size
from scriba.storage.segments.cut import Cut, cut_files
from scriba.storage.segments.not_resident import settled
from scriba.storage.segments.segment import Damaged, Segment
from scriba.storage.segments.segments import Segments
from scriba.storage.writer import Writer

if TYPE_CHECKING:
    from scriba.storage.log import Log

logger = logging.getLogger(__name__)


class Truncation:
    __slots__ = (
        "_disk",
        "_durability",
        "_log",
        "_offload",
        "_segments",
        "_snapshots",
        "_writer",
    )

    def __init__(
        self,
        log: "Log",
        disk: Disk,
        offload: Offload,
        segments: Segments,
        snapshots: Snapshots,
        durability: Durability,
        writer: Writer,
    ) -> None:
        self._log = log
        self._disk = disk
        self._offload = offload
        self._segments = segments
        self._snapshots = snapshots
        self._durability = durability
        self._writer = writer

    # ---- at the start ----

    async def retention(
        self, now: Instant, high_watermark: int, by_age: bool = True
    ) -> list[tuple[int, Reason]]:
        """One pass: deletes segments that may go; their base offsets and why.

        Also removes files whose delay is over. `by_age` is off while the clock is in doubt.
        """
        try:
            await self._segments.removal.sweep(now.mono_ms)
        except OSError as error:
            what = "cannot remove its old segments"
            full = error.errno in FULL
            raise (self._log.refused if full else self._log.in_doubt)(what, error) from error
        if self._log.failure is not None:
            return []
        await self._durability.sync_snapshots()
        gone = self._delete(before_start(self._facts(), self._log.start_offset), Reason.START, now)
        if "delete" in self._log.settings.cleanup_policy:
            limit = self._log.settings.retention_bytes
            gone += self._delete(over_size(self._facts(), limit, high_watermark), Reason.SIZE, now)
            if by_age and (limit := self._log.settings.retention_ms) >= 0:
                count = await self._log.steadily(
                    lambda: self._segments.count_expired(
                        limit, high_watermark, self._log.end_offset, now
                    )
                )
                if self._log.failure is None:
                    gone += self._delete(count, Reason.AGE, now)
        return gone

    def _facts(self) -> list[SegmentFacts]:
        return self._segments.facts(self._log.end_offset)

    def _delete(self, count: int, why: Reason, now: Instant) -> list[tuple[int, Reason]]:
        """Deletes the oldest segments; if that is all of them, a new one begins first."""
        if not count:
            return []
        try:
            if count == len(self._segments) and not self._begin_anew(now):
                count -= 1
            gone = self._segments.drop_first(count)
            self._log.delete_records_to(self._segments.first_offset)
            self._schedule_deletion(gone, now)
        except OSError as error:
            raise storage_error(
                f"{self._log!r} cannot be truncated at its start: {error}", error
            ) from error
        logger.info("%r: deleted %d segments %s", self._log, count, why)
        return [(segment.base_offset, why) for segment in gone]

    def _begin_anew(self, now: Instant) -> bool:
        """A new segment, so that all others may go; False if the device has no room for one.

        Then the active one stays: what else goes makes the room, and the next pass tries again.
        """
        try:
            self._writer.roll(self._log.end_offset, now)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._log.refused("cannot begin a segment", error)
            return False
        return True

    def _schedule_deletion(self, gone: list[Segment], now: Instant) -> None:
        deadline = now.mono_ms + self._log.settings.file_delete_delay_ms
        for segment in gone:
            self._segments.removal.schedule_deletion(
                segment, self._snapshots.path(segment.base_offset), deadline
            )
            self._snapshots.forget(segment.base_offset)
            self._durability.dropped(segment)

    # ---- at the end ----

    async def producers_at(self, offset: int, now: Instant) -> Producers | None:
        """The producers as a truncation to `offset` leaves them, found off the loop.

        That may take reading a good part of a segment. None where there is nothing to be read, or
        what was to be read went away meanwhile: then the truncation finds them itself. What else
        the truncation reads is in the page cache after this.
        """
        if not self._segments.first_offset <= offset < self._log.end_offset:
            return None
        try:
            end = self._log.end_offset
            await settled(lambda: self._segments.read(offset, 0, end, end, True))
            segment = self._segments.from_offset(offset)[0]
            _, end = segment.seek(offset)
            return await self._offload.run(self._producers_before(end, now))
        except (OSError, Damaged):
            return None

    def _producers_before(self, end_offset: int, now: Instant) -> Callable[[], Producers]:
        """What finds the producers as of `end_offset`; it changes nothing in memory."""
        kept = [each for each in self._segments if each.base_offset <= end_offset]
        known = [each for each in self._snapshots.offsets if each <= end_offset]
        snapshots = Snapshots(self._disk, self._snapshots.directory, known)
        return partial(producers_at, self._disk, kept, snapshots, end_offset, now.wall_ms)

    def truncate_to(self, offset: int, now: Instant, producers: Producers | None = None) -> bool:
        """As `shorten`, and cuts the files at once: waits for the device.

        Nobody comes again: for want of room, too, the log is out of use then.
        """
        before = self._log.end_offset
        try:
            cut_files(self._disk, self.shorten(offset, now, producers))
        except NoRoom as refused:
            raise self._given_up(refused) from refused
        except OSError as error:
            raise self.not_cut(error) from error
        return offset < before

    def shorten(
        self, offset: int, now: Instant, producers: Producers | None = None
    ) -> Sequence[Cut]:
        """Takes everything from `offset` on out of the log; the files that are to be cut.

        `producers` are those of `producers_at`, if the log has not changed since.

        Only whole batches go or stay: a batch that `offset` lies in goes. The recovery point on
        disk must be below the new end before; the cuts and then `sync` must come between this and
        the next append, or a power cut could mix old and new: `LogDir.truncate` sees to all that.
        NoRoom: nothing has changed.
        """
        if offset >= self._log.end_offset:
            # A leader may have begun an epoch here without writing a record of it.
            self._log.epochs.truncate_end(self._log.end_offset)
            return ()
        if offset < self._segments.first_offset:
            self.begin_anew(offset, now)
            return ()
        segment = self._segments.from_offset(offset)[0]
        with self._unchanged():
            position, end = segment.seek(offset)
            if producers is None:
                producers = self._producers_before(end, now)()
        try:
            self._schedule_deletion(self._segments.drop_after(offset), now)
            cuts = segment.truncate(position, end)
            self._end_at(end, producers)
        except OSError as error:
            raise self.not_cut(error) from error
        except Damaged as damage:
            raise self._log.unreadable(damage) from damage
        return cuts

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """For what a truncation does before it changes anything: for want of room it is refused,
        and whoever asked may ask again."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise self._log.refused("cannot be truncated", error) from error
            raise self.not_cut(error) from error
        except Damaged as damage:
            raise self._log.unreadable(damage) from damage

    def not_cut(self, error: OSError) -> KafkaError:
        """Nobody knows how long the files are: the log is of no use any more."""
        return self._log.in_doubt("cannot be truncated", error)

    def _given_up(self, refused: NoRoom) -> KafkaError:
        assert isinstance(refused.__cause__, OSError)
        return self.not_cut(refused.__cause__)

    def truncate_fully(self, offset: int, now: Instant) -> None:
        """As `begin_anew`; nobody comes again, as in `truncate_to`."""
        try:
            self.begin_anew(offset, now)
        except NoRoom as refused:
            raise self._given_up(refused) from refused

    def begin_anew(self, offset: int, now: Instant) -> None:
        """Removes everything; the log goes on at `offset`, empty. NoRoom: nothing has changed."""
        segment = self._segments.new(offset, now.wall_ms)
        named_alike = offset in self._segments
        with self._unchanged():
            if not named_alike:
                segment.create()
        try:
            self._schedule_deletion(self._segments.begin_anew(segment), now)
            if named_alike:
                segment.create()
            self._log.start_offset = offset
            self._log.epochs.clear()
            # What is known of producers is of records that are gone, open transactions included.
            self._snapshots.delete_above(-1)
            self._end_at(offset, Producers())
        except OSError as error:
            raise self.not_cut(error) from error

    def _end_at(self, end_offset: int, producers: Producers) -> None:
        log = self._log
        self._writer.truncated()
        log.end_offset = end_offset
        log.start_offset = min(log.start_offset, end_offset)
        self._durability.truncated(end_offset)
        log.epochs.truncate_end(end_offset)
        self._snapshots.delete_above(end_offset)
        log.producers = producers

    # ---- all of it ----

    def begin_delete(self, unique: bytes | None = None) -> None:
        """Takes the partition away: its directory gets a name that no start takes for a partition.

        Whoever is sending from its files may finish. `unique` tells apart deletions of one name;
        without it the topic's id does, or the next that is free: a replica can come and go twice.
        """
        log = self._log
        first = unique or log.topic_id or bytes(16)
        gone = unused_dir(
            self._disk,
            parent_of(log.directory),
            lambda each: deleted_dir(log.topic, log.partition, each),
            first,
        )
        try:
            self._disk.rename(log.directory, gone)
        except FileNotFoundError:
            if log.has_files:
                raise
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._remove_now()
        log.renamed(gone)
        log.failure = Failure(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), device=False)

    def _remove_now(self) -> None:
        """Not even another name fits: the files go at once, and make room."""
        directory = self._log.directory
        for name in self._disk.list(directory):
            with suppress(FileNotFoundError):
                self._disk.unlink(f"{directory}/{name}")
        self._disk.rmdir(directory)

    async def remove_files(self) -> None:
        """Removes what `begin_delete` took away."""
        self._segments.close()
        await self._disk.sync_dir(parent_of(self._log.directory))
        await remove_tree(self._disk, self._offload, self._log.directory)
