"""Compaction of one log: the work, given paths and bounds, done away from the loop.

Two readings. The first goes over the dirty part and remembers, for each key, where it was written
last, in a map of fixed size. If that fills up, the dirty part ends there for this time. The second
goes over the log from its first segment on and writes what stays into new segments, group by group:

- a record stays if no later one of its key is known, and all beyond what the map covers do;
- a tombstone stays at least `delete.retention.ms` after the pass that first meets it. That pass
  writes the time when it may go, the delete horizon, into its batch's header (attribute bit 6, the
  base timestamp; the timestamps of its records then count from there);
- records of aborted transactions go, markers when nothing of their transaction is left;
- a batch of which nothing stays goes, unless it is the last of a producer that is still known,
  whose sequence would be forgotten, or the last of its group, so that a segment reaches as far
  as those it replaces. Then its header stays.

A batch that loses nothing is copied byte for byte. All others keep base and last offset, sequence,
codec and leader epoch. So offsets, order and timestamps of what stays are as they were.

`clean` is a generator: it yields what it has done, and whoever drives it decides how fast it goes
and whether it goes on. None, after each stretch that it has read, is only a place to give way. It
changes nothing but files of its own; the log's owner swaps them in.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from scriba.errors import KafkaError, ParseError
from scriba.native import implementation
from scriba.native.fallback import OffsetMap, Walk, rebase
from scriba.records.batch import (
    ANY_TIME,
    EndTxnMarker,
    assemble,
    read_end_txn_marker,
    records_bytes,
    seal,
)
from scriba.records.compression import MAX_DECOMPRESSED_BYTES, compress
from scriba.records.header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)
from scriba.runtime.ports import Disk
from scriba.storage.compaction.choice import GroupLimits, SealedSegment, groups
from scriba.storage.compaction.output import Output
from scriba.storage.compaction.source import LEAST_WINDOW, Damage, Source, Window
from scriba.storage.compaction.txn import Fates, Verdict
from scriba.storage.producers.state import AbortedTxn, LastOf

_EMPTY_KEEPS: Final = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
"""Attributes of a batch without records."""

_NATIVE_KEY_BYTES: Final = 24
_PURE_KEY_BYTES: Final = 232
_ROOMY: Final = 2
"""How much larger a map is than its keys if there is memory: a fuller one is searched longer."""


class Means(NamedTuple):
    """What a cleaner may use."""

    map_bytes: int
    map_load: float
    buffer_bytes: int
    """For reading, and as much for writing."""
    step_bytes: int
    """After how much reading and writing to report."""


class Work(NamedTuple):
    directory: str
    segments: tuple[SealedSegment, ...]
    """From the log's first on; the last one ends at `end_offset`."""
    first_dirty: int
    end_offset: int
    aborted: tuple[AbortedTxn, ...]
    producers: Mapping[int, LastOf]
    limits: GroupLimits
    index_interval: int
    delete_retention_ms: int
    now_ms: int
    map_seed: bytes
    means: Means


class Progress(NamedTuple):
    """Bytes read and written since the last one."""

    read: int
    written: int


class Rewritten(NamedTuple):
    """A new segment, complete in its files but not synced, and those it is to replace."""

    base_offset: int
    replaced: tuple[int, ...]
    size: int
    index_bytes: int
    time_index_bytes: int
    aborted: bytes
    end_offset: int


class Finished(NamedTuple):
    end_offset: int
    """How far the log is compacted now."""
    keys: int
    map_use: float
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int


Step = Progress | Rewritten | Finished


def clean(disk: Disk, work: Work) -> Iterator[Step | None]:
    """Compacts; Damage when the log is not sound."""
    cleaner = _Cleaner(disk, work)
    try:
        yield from cleaner.build_map()
        yield from cleaner.rewrite()
    except (ParseError, KafkaError) as error:
        raise Damage(f"{cleaner.place}: {error}") from None
    yield cleaner.finished()


class _Cleaner:
    def __init__(self, disk: Disk, work: Work) -> None:
        self._disk = disk
        self._work = work
        self._source = Source(disk, work.directory, work.means.buffer_bytes)
        self._map: OffsetMap = implementation.chosen.OffsetMap(
            _map_bytes(work), work.map_seed, work.means.map_load
        )
        self._latest = work.first_dirty - 1
        """The last offset that the map covers."""
        self._fates = Fates(work.aborted)
        self._output: Output
        self._changed = False
        self._buffer = bytearray(max(work.means.buffer_bytes, LEAST_WINDOW))
        self._needed = array("q", sorted(last.offset for last in work.producers.values()))
        """Last offsets of batches that stay even without records."""
        self._read = self._written = self._records_read = self._records_kept = 0
        self._reported = (0, 0)
        self.place = work.directory
        """Where it is reading, for the message when that fails."""

    # ---- the first reading ----

    def build_map(self) -> Iterator[Step | None]:
        work = self._work
        fates = Fates(work.aborted)
        for number, segment in enumerate(work.segments):
            end = self._end_of(number)
            if end <= work.first_dirty:
                continue
            for window in self._source.windows(segment.base_offset, segment.size):
                full = self._map_window(segment, window, fates)
                self._read += window.at
                if full:
                    return
                yield self._report()
            self._latest = max(self._latest, end - 1)

    def _map_window(self, segment: SealedSegment, window: Window, fates: Fates) -> bool:
        """Whether the map is full."""
        put_plain, first_dirty = self._map.put_plain, self._work.first_dirty
        while True:
            window.at, window.next_offset = put_plain(
                window.view, window.at, window.next_offset, first_dirty
            )
            self._latest = max(self._latest, window.next_offset - 1)
            self.place = f"segment {segment.base_offset} at {window.position + window.at}"
            taken = window.take()
            if taken is None:
                return False
            if not self._map_batch(*taken, fates):
                return True

    def _end_of(self, number: int) -> int:
        """Where a segment ends: at its successor."""
        segments = self._work.segments
        following = number + 1
        return (
            segments[following].base_offset if following < len(segments) else self._work.end_offset
        )

    def _map_batch(self, batch: memoryview, header: BatchHeader, fates: Fates) -> bool:
        """False when the map is full."""
        last_offset, first_dirty = header.last_offset, self._work.first_dirty
        if header.attributes & CONTROL:
            fates.of_marker(header, _marker(batch, header))
        elif not fates.of_batch(header) and header.count and last_offset >= first_dirty:
            records = records_bytes(batch, header, MAX_DECOMPRESSED_BYTES)
            taken = self._map.put_records(records, header.count, header.base_offset, first_dirty)
            if taken < header.count:
                if self._latest < first_dirty:
                    # Not even one batch fits: some of its records are progress, too.
                    self._latest = self._first_left_out(records, header, taken) - 1
                return False
        self._latest = max(self._latest, last_offset)
        return True

    @staticmethod
    def _first_left_out(records: Buffer, header: BatchHeader, taken: int) -> int:
        """The offset of the record at index `taken`, which the map had no room for."""
        found = implementation.chosen.find_record((records,), header.count, 0, taken, 0, *ANY_TIME)
        assert found is not None, "the map has gone over it"
        return header.base_offset + found[0]

    # ---- the second reading ----

    def rewrite(self) -> Iterator[Step | None]:
        work = self._work
        end = self._latest + 1
        touched = [segment for segment in work.segments if segment.base_offset < end]
        for group in groups(touched, self._end_of(len(touched) - 1), work.limits):
            yield from self._rewrite_group(group)

    def _rewrite_group(self, group: Sequence[SealedSegment]) -> Iterator[Step | None]:
        work = self._work
        output = self._output = Output(
            self._disk, work.directory, group[0].base_offset, work.index_interval, self._buffer
        )
        self._changed = len(group) > 1
        last = max((at for at, segment in enumerate(group) if segment.size), default=0)
        end_offset, written = group[0].base_offset, self._written
        try:
            for number, segment in enumerate(group):
                for window in self._source.windows(segment.base_offset, segment.size):
                    self.place = f"segment {segment.base_offset} at {window.position}"
                    self._rewrite_window(window, window.end if number == last else -1)
                    self._read += window.at
                    self._written = written + output.size
                    yield self._report()
                    end_offset = window.next_offset
            if not self._changed:
                output.abandon()
                return
            index_bytes, time_index_bytes = output.finish()
        except BaseException:
            with suppress(OSError):  # what remains is removed at the next start
                output.abandon()
            raise
        yield Rewritten(
            group[0].base_offset,
            tuple(segment.base_offset for segment in group),
            output.size,
            index_bytes,
            time_index_bytes,
            output.aborted.encode(),
            end_offset,
        )

    def _rewrite_window(self, window: Window, last_end: int) -> None:
        """`last_end` is where the group ends, or -1 if it does not end in this segment."""
        while True:
            self._rewrite_plain(window, last_end)
            taken = window.take()
            if taken is None:
                return
            self._rewrite_batch(*taken, window.at == last_end)

    def _rewrite_plain(self, window: Window, last_end: int) -> None:
        """Works off batches that need no second look, as far as there are such."""
        work, output = self._work, self._output
        full = True
        while full:
            walk = Walk._make(
                self._map.retain_plain(
                    window.view,
                    window.at,
                    window.next_offset,
                    last_end,
                    output.buffer,
                    output.used,
                    self._latest,
                    work.now_ms,
                    work.now_ms + work.delete_retention_ms,
                    output.interval,
                    self._needed,
                    output.since_index,
                    *output.latest,
                )
            )
            window.at, window.next_offset = walk.at, walk.next_offset
            output.added(walk)
            self._records_read += walk.read
            self._records_kept += walk.kept
            self._changed = self._changed or walk.changed
            full = walk.full
            if full:
                if not output.used:
                    return  # larger than the buffer: it is written by itself
                output.flush()

    def _rewrite_batch(self, batch: memoryview, header: BatchHeader, is_last: bool) -> None:
        self._records_read += header.count
        keep = is_last or self._is_last_of_producer(header)
        if header.attributes & CONTROL:
            self._rewrite_marker(batch, header, keep)
        elif self._fates.of_batch(header) or not header.count:
            self._leave_out(batch, header, keep)
        elif header.base_offset > self._latest:
            self._copy(batch, header)
        else:
            self._filter(batch, header, keep)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        last = self._work.producers.get(header.producer_id)
        if last is None:
            return False
        if last.offset >= 0:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch

    def _rewrite_marker(self, batch: memoryview, header: BatchHeader, keep: bool) -> None:
        if not header.count:
            self._leave_out(batch, header, keep)
            return
        verdict: Verdict = self._fates.of_marker(header, _marker(batch, header))
        if verdict.aborted is not None:
            self._output.note_aborted(verdict.aborted)
        if not verdict.spent:
            self._copy(batch, header)
        elif not header.attributes & DELETE_HORIZON:
            horizon = self._work.now_ms + self._work.delete_retention_ms
            records = records_bytes(batch, header, MAX_DECOMPRESSED_BYTES)
            rebased = rebase(records, header.count, header.base_timestamp, horizon)
            self._write(header, rebased, header.count, header.max_timestamp, horizon)
        elif header.base_timestamp > self._work.now_ms:
            self._copy(batch, header)
        else:
            self._leave_out(batch, header, keep)

    def _filter(self, batch: memoryview, header: BatchHeader, keep: bool) -> None:
        now_ms, drop, horizon = self._work.now_ms, False, NO_TIMESTAMP
        if header.attributes & DELETE_HORIZON:
            drop = header.base_timestamp <= now_ms
        else:
            horizon = now_ms + self._work.delete_retention_ms
        records, kept, max_timestamp, rebased = self._map.retain(
            records_bytes(batch, header, MAX_DECOMPRESSED_BYTES),
            header.count,
            header.base_offset,
            self._latest,
            header.base_timestamp,
            drop,
            horizon,
        )
        if records is None:
            self._copy(batch, header)
        elif not kept:
            self._leave_out(batch, header, keep)
        else:
            if header.attributes & LOG_APPEND_TIME:
                max_timestamp = header.max_timestamp
            self._write(header, records, kept, max_timestamp, horizon if rebased else NO_TIMESTAMP)

    # ---- what becomes of a batch ----

    def _copy(self, batch: Buffer, header: BatchHeader) -> None:
        self._records_kept += header.count
        self._output.add(batch, header.base_offset, header.last_offset, header.max_timestamp)

    def _leave_out(self, batch: Buffer, header: BatchHeader, keep: bool) -> None:
        """All of it, or its records only."""
        if not keep:
            self._changed = True
        elif not header.count:
            self._copy(batch, header)
        else:
            self._changed = True
            empty = header._replace(
                attributes=header.attributes & _EMPTY_KEEPS, base_timestamp=NO_TIMESTAMP, count=0
            )
            self._copy(assemble(empty, b""), empty)

    def _write(
        self, header: BatchHeader, made: bytearray, count: int, max_timestamp: int, horizon: int
    ) -> None:
        """Some of the records, behind room for their header."""
        self._changed = True
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if horizon >= 0:
            attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
        header = header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            count=count,
        )
        if attributes & CODEC_MASK:
            made = assemble(header, compress(header.codec, memoryview(made)[HEADER_SIZE:]))
        else:
            seal(made, header._replace(length=len(made) - LOG_OVERHEAD))
        self._copy(made, header)

    # ---- what to tell ----

    def _report(self) -> Progress | None:
        """What was done since the last report, if it is enough for one."""
        read, written = self._read - self._reported[0], self._written - self._reported[1]
        if read + written < self._work.means.step_bytes:
            return None
        self._reported = (self._read, self._written)
        return Progress(read, written)

    def finished(self) -> Finished:
        return Finished(
            end_offset=self._latest + 1,
            keys=len(self._map),
            map_use=len(self._map) / self._map.capacity,
            records_read=self._records_read,
            records_kept=self._records_kept,
            bytes_read=self._read,
            bytes_written=self._written,
        )


def _map_bytes(work: Work) -> int:
    """No more memory than keys can be there: a small map is a fast one."""
    per_key = _NATIVE_KEY_BYTES if implementation.chosen.native else _PURE_KEY_BYTES
    most_keys = work.end_offset - work.first_dirty + 1
    return min(work.means.map_bytes, _ROOMY * per_key * most_keys)


def _marker(batch: memoryview, header: BatchHeader) -> EndTxnMarker | None:
    return read_end_txn_marker(batch) if header.count else None
