"""Opening a partition's directory: what is there, how far it can be trusted, and what it says.

After a clean shutdown everything is as it was left: the recovery point is the end, the snapshot of
that name holds the producers, and no record is read.

After a crash everything below the recovery point is on the device and is believed; from there on
each batch must prove itself by its checksum. The first that cannot ends the log: the rest is a
tail that was never flushed, and is cut off. Damage *below* the recovery point is another matter:
records that were promised are gone. Then nothing is changed, and the log is opened as damaged, so
that it neither leads nor silently loses them.

Producers and epochs are rebuilt by reading headers from the last snapshot on. Every index,
checkpoint and snapshot may be missing: it only costs more reading.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from scriba.errors import ParseError
from scriba.records.batch import EndTxnMarker, read_end_txn_marker
from scriba.records.header import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from scriba.runtime.ports import Disk, File, Offload
from scriba.storage.compaction.log import finish_swaps
from scriba.storage.directory.names import (
    CLEANED,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_file,
)
from scriba.storage.epochs import Epochs
from scriba.storage.limits import Limits
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.producers.state import Producers
from scriba.storage.results import FULL
from scriba.storage.segments.aborted import AbortedTxns
from scriba.storage.segments.indexes import UNSURE_ENTRIES
from scriba.storage.segments.padding import trim_sealed
from scriba.storage.segments.scan import read_batch, scan
from scriba.storage.segments.segment import UNKNOWN, Segment

logger = logging.getLogger(__name__)

_NEVER: Final = 2**63 - 1
_ROOM: Final = 1 << 20
"""So much of the room at a segment's end is looked at in one piece."""
_PAGE: Final = 4096
"""The pages of every system end where such a one does."""
_INTERRUPTED: Final = (TEMPORARY, DELETED, CLEANED, SWAP)


@dataclass(slots=True, frozen=True)
class LogLocation:
    """Where a log lives and what opening it needs to know."""

    disk: Disk
    offload: Offload
    directory: str
    limits: Limits
    producer_expiration_ms: int
    compacted: bool
    """Whether cleaning may have left gaps between segments."""
    now_ms: int


@dataclass(slots=True)
class Loaded:
    """A log as it was found."""

    location: LogLocation
    segments: list[Segment]
    snapshots: Snapshots
    epochs: Epochs
    producers: Producers = field(default_factory=Producers)
    start_offset: int = 0
    end_offset: int = 0
    recovery_point: int = 0
    damage: str = ""
    cut: bool = False
    """Whether a tail was cut off, which is not durable yet."""
    lost: str = ""
    """What was cut off because it did not pass its check, in words."""
    cut_batches: bool = False
    """Whether that may have been whole batches once, not just an append that was interrupted."""
    durable: bool = False
    """Whether all is known to be on the device, names included: so after a clean shutdown."""
    full: str = ""
    """What a full device did not take: it costs the next start some reading, and no more."""
    unsound: frozenset[int] = frozenset()
    """Segments whose transaction index is damaged and comes from their markers instead."""

    def floor(self, offset: int) -> int:
        """The index of the segment that `offset` belongs to."""
        bases = [segment.base_offset for segment in self.segments]
        return max(bisect_right(bases, offset) - 1, 0)


def new(location: LogLocation, base_offset: int) -> Loaded:
    """A log that is about to begin: without records, and without a file or a directory yet."""
    loaded = Loaded(location, [], Snapshots(location.disk, location.directory, []), Epochs())
    _start_at(loaded, base_offset)
    return loaded


def load(location: LogLocation, recovery_point: int | None, log_start: int, clean: bool) -> Loaded:
    """What is in the directory."""
    files = _tidy(location)
    loaded = Loaded(
        location,
        _find_segments(location, files),
        Snapshots(
            location.disk,
            location.directory,
            [offset for offset, suffix in files if suffix == SNAPSHOT],
        ),
        Epochs(),
    )
    if not loaded.segments:
        _begin(loaded, log_start)
        return loaded
    first = loaded.segments[0].base_offset
    loaded.start_offset = max(log_start, first)
    loaded.unsound = _drop_unsound_aborted(loaded.segments)
    sound_epochs = _read_epochs(loaded)
    loaded.durable = clean and _trust(loaded, recovery_point)
    if not loaded.durable:
        _recover(loaded, first if recovery_point is None else max(recovery_point, first))
    if not sound_epochs and loaded.recovery_point > first:
        _rebuild_epochs(loaded)
    if not loaded.damage:
        _complete_indexes(loaded, files)
    if loaded.end_offset < log_start and not loaded.damage:
        # The start was moved and checkpointed, but the records before it were never flushed.
        _remove(loaded, 0)
        _begin(loaded, log_start)
    loaded.epochs.truncate_end(loaded.end_offset)
    loaded.epochs.truncate_start(loaded.start_offset)
    if not loaded.end_offset:
        loaded.durable = False  # a log that never had a record is closed without a sync
    return loaded


# ---- what is there ----


def _tidy(location: LogLocation) -> set[tuple[int, str]]:
    """Ends what a crash interrupted: removals go on, and a finished cleaning takes its place."""
    disk, directory = location.disk, location.directory
    names = disk.list(directory)
    if not any(name.endswith(_INTERRUPTED) for name in names):
        return {found for name in names if (found := parse_file(name)) is not None}
    for name in names:
        if name.endswith((TEMPORARY, DELETED)):
            disk.unlink(f"{directory}/{name}")

    def end_of(path: str, base: int) -> int:
        file = disk.open(path)
        try:
            end = base + 1
            for _, header in scan(file, 0, file.size(), base, check_from=None):
                end = header.next_offset
            return end
        finally:
            file.close()

    finish_swaps(disk, directory, end_of)
    return {found for name in disk.list(directory) if (found := parse_file(name)) is not None}


def _find_segments(location: LogLocation, files: set[tuple[int, str]]) -> list[Segment]:
    disk, directory = location.disk, location.directory
    bases = sorted(offset for offset, suffix in files if suffix == LOG)
    for offset, suffix in sorted(files):
        if suffix in SEGMENT_SUFFIXES and (offset, LOG) not in files:
            logger.warning("%s: %s has no log file", directory, file_name(offset, suffix))
            disk.unlink(f"{directory}/{file_name(offset, suffix)}")
    segments = []
    for base in bases:

        def size(suffix: str, base: int = base) -> int:
            path = f"{directory}/{file_name(base, suffix)}"
            return disk.size(path) if (base, suffix) in files else 0

        aborted = None
        if (base, TXN_INDEX) in files:
            aborted = AbortedTxns(disk.read(f"{directory}/{file_name(base, TXN_INDEX)}"))
        segment = Segment(
            disk,
            location.offload,
            directory,
            base,
            size=size(LOG),
            index_bytes=size(INDEX),
            time_index_bytes=size(TIME_INDEX),
            aborted=aborted,
            created_ms=location.now_ms,
            limits=location.limits,
        )
        segment.indexes.offsets.shrunk = (base, INDEX) not in files
        segment.indexes.times.shrunk = (base, TIME_INDEX) not in files
        segments.append(segment)
    return segments


def _complete_indexes(loaded: Loaded, files: set[tuple[int, str]]) -> None:
    """Builds the indexes that are missing; a segment with records has an entry in its time index.

    Those of segments that recovery read are complete.
    """
    for segment in loaded.segments:
        base = segment.base_offset
        there = (
            (base, INDEX) in files and (base, TIME_INDEX) in files and len(segment.indexes.times)
        )
        if segment.size and not there and segment.max_timestamp == UNKNOWN:
            logger.warning(
                "%s: building the indexes of segment %d", loaded.location.directory, base
            )
            segment.rebuild()
            _if_room(loaded, segment.indexes.write)
            _close(segment)


def _drop_unsound_aborted(segments: list[Segment]) -> frozenset[int]:
    unsound = [each for each in segments if not each.aborted.sound(each.base_offset)]
    for segment in unsound:
        logger.warning("%s is damaged: reading markers", segment.path(TXN_INDEX))
        segment.aborted = AbortedTxns()
        segment.aborted_dirty = True
    return frozenset(each.base_offset for each in unsound)


def _read_epochs(loaded: Loaded) -> bool:
    """Whether the file was there and whole."""
    path = f"{loaded.location.directory}/{LEADER_EPOCHS}"
    try:
        loaded.epochs = Epochs.decode(loaded.location.disk.read(path))
    except FileNotFoundError:
        return False
    except (ValueError, IndexError) as error:
        logger.warning("%s is damaged and will be written anew: %s", path, error)
        return False
    return True


def _begin(loaded: Loaded, offset: int) -> None:
    """A log without records that goes on, or starts, at `offset`."""
    _start_at(loaded, offset).create()
    _close(loaded.segments[0])
    for stale in list(loaded.snapshots.offsets):
        loaded.snapshots.delete(stale)


def _start_at(loaded: Loaded, offset: int) -> Segment:
    """Nothing but one empty segment, whose files are yet to be made."""
    location = loaded.location
    segment = Segment(
        location.disk,
        location.offload,
        location.directory,
        offset,
        created_ms=location.now_ms,
        limits=location.limits,
    )
    loaded.segments = [segment]
    loaded.producers = Producers()
    loaded.epochs.clear()
    loaded.start_offset = loaded.end_offset = loaded.recovery_point = offset
    loaded.durable = False
    return segment


# ---- after a clean shutdown ----


def _trust(loaded: Loaded, recovery_point: int | None) -> bool:
    """Takes the log as it was left; False if that is not how a clean shutdown leaves it."""
    last = loaded.segments[-1]
    end = recovery_point
    if end is None or end != loaded.snapshots.latest or (end > last.base_offset) != (last.size > 0):
        end = _end_of(last)
        if end is None or end != (end if recovery_point is None else recovery_point):
            logger.warning("%s was not left as its checkpoint says", loaded.location.directory)
            return False
    last.next_offset = loaded.end_offset = loaded.recovery_point = end
    location = loaded.location
    loaded.producers = producers_at(
        location.disk,
        loaded.segments,
        loaded.snapshots,
        end,
        location.now_ms,
        location.producer_expiration_ms,
        loaded.unsound,
    )
    return True


def producers_at(
    disk: Disk,
    segments: Sequence[Segment],
    snapshots: Snapshots,
    offset: int,
    now_ms: int,
    expiration_ms: int = _NEVER,
    unsound: frozenset[int] = frozenset(),
) -> Producers:
    """The producers as of `offset`, the end of the log: a snapshot and what came after it.

    The log may yet go on behind it, where it is about to be truncated.
    """
    found = snapshots.load(min([offset, *unsound]), now_ms, expiration_ms)
    producers, start = found or (Producers(), segments[0].base_offset)
    if start >= offset and not unsound:
        return producers
    ends = [*(segment.base_offset for segment in segments[1:]), offset]
    for segment, end in zip(segments, ends, strict=True):
        if end <= start:
            continue
        file = disk.open(segment.path(LOG))
        try:
            for at, header in scan(file, 0, segment.size, segment.base_offset, check_from=None):
                if header.base_offset >= offset:
                    break  # what is about to be truncated
                if header.producer_id >= 0 and header.base_offset >= start:
                    marker = _marker(file, at, header) if header.attributes & CONTROL else None
                    aborted = producers.replay(header, marker, now_ms)
                    if aborted and segment.base_offset in unsound:
                        segment.aborted.append(aborted)
        finally:
            file.close()
    return producers


def _end_of(segment: Segment) -> int | None:
    """The end offset by the headers after the last index entry; None if they do not fill it."""
    if not segment.size:
        return segment.base_offset
    segment.load_indexes()
    position, end = segment.indexes.offsets.last()[1], segment.base_offset
    file = segment.open_file()
    for at, header in scan(file, position, segment.size, end, check_from=None):
        position = at + header.size
        end = header.next_offset
    _close(segment)
    return end if position == segment.size else None


# ---- after a crash ----


def _recover(loaded: Loaded, recovery_point: int) -> None:
    loaded.cut = trim_sealed(loaded.segments[loaded.floor(recovery_point - 1) :])
    snapshot = _load_producers(loaded, recovery_point)
    _replay(loaded, snapshot, check_from=recovery_point)
    if loaded.end_offset < recovery_point and not loaded.damage:
        loaded.damage = (
            f"the log ends at offset {loaded.end_offset}, but was flushed up to {recovery_point}"
        )
    loaded.recovery_point = min(recovery_point, loaded.end_offset)
    if not loaded.damage:
        bases = {segment.base_offset for segment in loaded.segments}
        for offset in list(loaded.snapshots.offsets):
            if offset > recovery_point and offset not in bases:
                loaded.snapshots.delete(offset)


def _load_producers(loaded: Loaded, up_to: int) -> int:
    """The offset up to which the producers are known; the log must be read from there."""
    location = loaded.location
    up_to = min([up_to, *loaded.unsound])
    found = loaded.snapshots.load(up_to, location.now_ms, location.producer_expiration_ms)
    first = loaded.segments[0].base_offset
    if found is None:
        return first
    loaded.producers, snapshot = found
    return max(snapshot, first)


def _replay(loaded: Loaded, snapshot: int, check_from: int) -> None:
    """Reads on from where the producers are known, and from `check_from` with checksums."""
    begin = min(snapshot, check_from)
    for at in range(loaded.floor(begin), len(loaded.segments)):
        segment = loaded.segments[at]
        last = at + 1 == len(loaded.segments)
        following = _NEVER if last else loaded.segments[at + 1].base_offset
        suspect = following > check_from
        if segment.base_offset >= check_from:
            # The one that was there may be torn, which would be found out only when it is needed.
            base = segment.base_offset
            _if_room(loaded, partial(loaded.snapshots.replace, loaded.producers, base))
        position, size = _replay_segment(loaded, segment, begin, snapshot, check_from, following)
        flushed = loaded.end_offset < check_from
        if position < size and (flushed or not suspect):
            loaded.damage = f"{segment.path(LOG)} is damaged at position {position}"
            return
        # Segments follow each other without a gap when they are written: one that ends early has
        # lost its last batches, and what comes after them is worth nothing.
        gap = loaded.end_offset < following and not loaded.location.compacted
        ends_here = suspect and not flushed and (position < size or gap)
        if ends_here:
            _cut(loaded, at, position, size)
        if suspect:
            done = at + 1 == len(loaded.segments)
            _if_room(loaded, segment.indexes.write if done else segment.seal)
        _close(segment)
        if ends_here:
            return


def _replay_segment(
    loaded: Loaded,
    segment: Segment,
    begin: int,
    snapshot: int,
    check_from: int,
    following: int,
) -> tuple[int, int]:
    """Where the valid batches end, and where the file does."""
    size = note_from = segment.size
    position = 0
    unsound = segment.base_offset in loaded.unsound
    file = segment.open_file()
    if begin > segment.base_offset:
        segment.load_indexes()
        position = segment.indexes.offsets.locate(begin)[0]
    if following > check_from:
        segment.load_indexes()
        note_from = segment.rewind(check_from, margin=UNSURE_ENTRIES)
        position = min(position, note_from)
        segment.aborted_dirty = segment.aborted.truncate(check_from) or segment.aborted_dirty
    end_offset = max(loaded.end_offset, segment.base_offset)
    epochs, producers = loaded.epochs, loaded.producers
    for at, header in scan(file, position, size, segment.base_offset, check_from):
        base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        if last_offset >= following:
            break
        length = header.length + LOG_OVERHEAD
        if at >= note_from:
            segment.note(at, length, base_offset, last_offset, header.max_timestamp)
        position = at + length
        end_offset = last_offset + 1
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, base_offset)
        if header.producer_id >= 0 and base_offset >= snapshot:
            marker = _marker(file, at, header) if header.attributes & CONTROL else None
            aborted = producers.replay(header, marker, loaded.location.now_ms)
            if aborted and (unsound or base_offset >= check_from):
                segment.note_aborted(aborted)
    loaded.end_offset = segment.next_offset = end_offset
    return position, size


def _marker(file: File, position: int, header: BatchHeader) -> EndTxnMarker | None:
    batch = read_batch(file, position, header.length + LOG_OVERHEAD)
    try:
        return read_end_txn_marker(batch)
    except ParseError as error:
        logger.warning("%s: marker at %d: %s", file.path, position, error)
        return None


def _cut(loaded: Loaded, at: int, position: int, size: int) -> None:
    """Ends the log at `position` of a segment; nothing after it was ever flushed."""
    segment = loaded.segments[at]
    later = len(loaded.segments) - at - 1
    if position < size or later:
        loaded.cut = True
        if later or not _is_room(segment.open_file(), position, size):
            loaded.lost = (
                f"{segment.path(LOG)}: cut {size - position} bytes and {later} segments that were "
                f"not flushed; the log ends at offset {loaded.end_offset}"
            )
            loaded.cut_batches = bool(later) or not _is_interrupted(segment, position, size)
    if position < size:
        segment.open_file().truncate(position)
    _remove(loaded, at + 1)


def _is_interrupted(segment: Segment, position: int, size: int) -> bool:
    """Whether what lies behind the last valid batch is what a process leaves that is killed: the
    beginning of a batch, perhaps with room behind it. Nobody was told that it is written."""
    file, rest = segment.open_file(), size - position
    head = read_batch(file, position, min(rest, HEADER_SIZE))
    if not any(head):
        return False
    if len(head) < HEADER_SIZE:
        return True
    header = BatchHeader._make(HEADER.unpack(head))
    told = header.magic == MAGIC
    if told and header.size > rest:
        return True
    # A write is interrupted between two pages, and what it did not reach is room still.
    last_page = (position + (header.size if told else HEADER_SIZE) - 1) // _PAGE * _PAGE
    return last_page > position and _is_room(file, last_page, size)


def _is_room(file: File, position: int, size: int) -> bool:
    """Whether there is nothing but room that was set aside."""
    return all(
        not bytes(read_batch(file, at, min(_ROOM, size - at))).strip(b"\0")
        for at in range(position, size, _ROOM)
    )


def _remove(loaded: Loaded, at: int) -> None:
    disk = loaded.location.disk
    for segment in loaded.segments[at:]:
        _close(segment)
        for suffix in SEGMENT_SUFFIXES:
            with suppress(FileNotFoundError):
                disk.unlink(segment.path(suffix))
    del loaded.segments[at:]


def _if_room(loaded: Loaded, write: Callable[[], None]) -> None:
    """Writes what the log can do without; indexes then stay in memory until they fit."""
    try:
        write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        loaded.full = str(error)


def _close(segment: Segment) -> None:
    file = segment.release_file()
    if file is not None:
        file.close()


def _rebuild_epochs(loaded: Loaded) -> None:
    logger.warning("%s: reading leader epochs from the log", loaded.location.directory)
    loaded.epochs = Epochs()
    for segment in loaded.segments:
        for _, header in scan(
            segment.open_file(), 0, segment.size, segment.base_offset, check_from=None
        ):
            if header.leader_epoch > loaded.epochs.latest:
                loaded.epochs.assign(header.leader_epoch, header.base_offset)
        _close(segment)
