"""Snapshots of the metadata log, in Kafka's format: `<end offset>-<epoch>.checkpoint`.

A snapshot holds the records that fold into the image at its end offset: a control batch with the
header, the quorum's version and its voters, then batches of metadata records, then a control batch
with the footer. The footer tells a whole file from a cut one. It is written under another name,
flushed and renamed, so a file with the right name was once complete; one that no longer reads is
passed over, and the log before it, or an earlier snapshot, takes its place.

One that was fetched from the leader is `<end offset>-<epoch>.checkpoint.fetched` until the log
begins with it on the device, too. One without that ending says that the log before its end was
flushed or is no longer needed, and the log's recovery point rests on that. Nobody serves one that
was only fetched, nor is it cleaned with the others; Kafka passes over files of such a name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from scriba.broker.observe.events import Note
from scriba.controller import levels
from scriba.controller.image import ClusterImage, ImageError
from scriba.controller.loading import Loading
from scriba.errors import ParseError
from scriba.events import EventKind
from scriba.raft.messages import Position
from scriba.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    ControlType,
    Record,
    check_crc,
    control_batch,
    control_type,
    decode_records,
    encode_batch,
    read_header,
    sane_header,
)
from scriba.runtime.ports import Buffer, Disk
from scriba.wire.messages.stored import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

SUFFIX: Final = ".checkpoint"
FETCHED: Final = ".checkpoint.fetched"
PART: Final = ".checkpoint.part"
RECORDS_PER_BATCH: Final = 256
RECORDS_PER_LOOK: Final = 64
"""Of a snapshot that is loaded, between two looks at the clock: half a millisecond."""

_NAME: Final = re.compile(r"(\d{20})-(\d{10})(\..+)")


class QuorumFacts(NamedTuple):
    """What the quorum says of itself, beside the metadata: its version and its voters."""

    kraft_version: int
    voters: VotersRecord | None


class Snapshot(NamedTuple):
    position: Position
    quorum: QuorumFacts
    image: ClusterImage
    """Of all its records, for whoever begins with it."""
    last_timestamp: int


def file_name(position: Position, suffix: str = SUFFIX) -> str:
    return f"{position.offset:020d}-{position.epoch:010d}{suffix}"


def find(disk: Disk, directory: str, suffix: str = SUFFIX) -> list[Position]:
    """The snapshots in a directory, the newest first; with FETCHED, those that were only that."""
    names = (_NAME.fullmatch(name) for name in disk.list(directory))
    found = [Position(int(it[2]), int(it[1])) for it in names if it and it[3] == suffix]
    return sorted(found, key=lambda position: position.offset, reverse=True)


def remove_fetched(disk: Disk, directory: str) -> None:
    """Clears away what the log went on without."""
    for position in find(disk, directory, FETCHED):
        disk.unlink(f"{directory}/{file_name(position, FETCHED)}")


def rename(disk: Disk, directory: str, position: Position, old: str, new: str) -> None:
    """Gives a snapshot another suffix; `sync_dir` is for the caller."""
    before, after = (f"{directory}/{file_name(position, suffix)}" for suffix in (old, new))
    disk.rename(before, after)


def remove_parts(disk: Disk, directory: str) -> None:
    """Clears away what a crash left half written."""
    for name in disk.list(directory):
        if name.endswith(PART):
            disk.unlink(f"{directory}/{name}")


def encoded(
    position: Position, quorum: QuorumFacts, image: ClusterImage | None, last_timestamp: int
) -> Iterator[bytearray]:
    """The batches of a snapshot, one at a time; `last_timestamp` is that of the last record. A new
    cluster has no image yet."""
    head = [
        (
            ControlType.SNAPSHOT_HEADER,
            SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp).encode(0),
        )
    ]
    if quorum.kraft_version > 0 and quorum.voters is not None:
        version = KRaftVersionRecord(kraft_version=quorum.kraft_version)
        head.append((ControlType.KRAFT_VERSION, version.encode(0)))
        head.append((ControlType.KRAFT_VOTERS, quorum.voters.encode(0)))
    offset = len(head)
    batch = control_batch(head, last_timestamp, position.epoch)
    yield batch
    waiting: list[Record] = []
    level = (image.metadata_version if image else 0) or levels.NEWEST
    for record in image.records() if image else ():
        waiting.append(Record(0, last_timestamp, None, levels.encode(record, level)))
        if len(waiting) == RECORDS_PER_BATCH:
            yield encode_batch(waiting, base_offset=offset, leader_epoch=position.epoch)
            offset += len(waiting)
            waiting = []
    if waiting:
        yield encode_batch(waiting, base_offset=offset, leader_epoch=position.epoch)
        offset += len(waiting)
    footer = [(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord().encode(0))]
    batch = control_batch(footer, last_timestamp, position.epoch)
    batch[:8] = offset.to_bytes(8, "big")
    yield batch


async def write(
    disk: Disk,
    directory: str,
    position: Position,
    batches: AsyncIterator[Buffer],
    suffix: str = SUFFIX,
) -> int:
    """Writes a snapshot and returns its size; nothing bears its name before it is safe."""
    path = f"{directory}/{file_name(position, suffix)}"
    part = f"{directory}/{file_name(position, PART)}"
    file = disk.open(part, create=True)
    try:
        file.truncate(0)
        size = 0
        async for batch in batches:
            size += file.pwrite(batch, size)
        await file.datasync()
    except Exception:
        with suppress(OSError):
            disk.unlink(part)  # a full device has the room again
        raise
    finally:
        file.close()
    disk.rename(part, path)
    await disk.sync_dir(directory)
    return size


async def read(
    disk: Disk,
    directory: str,
    position: Position,
    pace: Callable[[], Awaitable[None]],
    suffix: str = SUFFIX,
) -> Snapshot:
    """Reads a snapshot; others have their turn after every few hundred records, as `pace` says.

    ParseError when it is not what was once written.
    """
    reading = _read(disk, f"{directory}/{file_name(position, suffix)}", position)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await pace()


def _read(disk: Disk, path: str, position: Position) -> Generator[None, None, Snapshot]:
    quorum, loading = QuorumFacts(0, None), Loading(*reversed(position))
    timestamp, complete = -1, False
    for at, header, data in _batches(disk, path):
        if complete:
            raise ParseError("more follows the footer")
        if not check_crc(data, 0, header):
            raise ParseError(f"the batch at byte {at} fails its checksum")
        records = decode_records(data)
        if not header.is_control:
            if not at:
                raise ParseError("no header")
            yield
            yield from _load(loading, records)
            continue
        for record in records:
            kind = control_type(record.key)
            if (at == 0 and record is records[0]) != (kind is ControlType.SNAPSHOT_HEADER):
                raise ParseError("the header is not at the beginning, or not alone")
            if kind is ControlType.SNAPSHOT_HEADER:
                head = SnapshotHeaderRecord.decode(_value(record), 0)
                timestamp = head.last_contained_log_timestamp
            elif kind is ControlType.SNAPSHOT_FOOTER:
                complete = True
            else:
                quorum = learn(quorum, record)
    if not complete:
        raise ParseError("it ends before its footer")
    return Snapshot(position, quorum, loading.done(quorum.kraft_version), timestamp)


def _batches(disk: Disk, path: str) -> Iterator[tuple[int, BatchHeader, bytearray]]:
    """Each batch of a file that begins, goes on and ends with whole ones, one at a time."""
    file, at, size = disk.open(path), 0, disk.size(path)
    head = bytearray(HEADER_SIZE)
    try:
        while at < size:
            header = None
            if file.pread_into(memoryview(head), at) == HEADER_SIZE:
                header = read_header(head)
            if header is None or not sane_header(header) or header.size > size - at:
                raise ParseError(f"no whole batch at byte {at}: it ends before its footer")
            data = bytearray(header.size)
            file.pread_into(memoryview(data), at)
            yield at, header, data
            at += header.size
    finally:
        file.close()


def _load(loading: Loading, records: list[Record]) -> Generator[None, None, None]:
    for number, record in enumerate(records, 1):
        try:
            loading.add(_value(record))
        except ImageError as error:
            raise ParseError(f"it contradicts itself: {error}") from error
        if number % RECORDS_PER_LOOK == 0:
            yield


def learn(quorum: QuorumFacts, record: Record) -> QuorumFacts:
    """Takes in a control record about the quorum itself; others leave it as it is."""
    kind = control_type(record.key)
    if kind is ControlType.KRAFT_VERSION:
        version = KRaftVersionRecord.decode(_value(record), 0)
        return quorum._replace(kraft_version=version.kraft_version)
    if kind is ControlType.KRAFT_VOTERS:
        return quorum._replace(voters=VotersRecord.decode(_value(record), 0))
    return quorum


def _value(record: Record) -> bytes:
    if record.value is None:
        raise ParseError(f"the record at {record.offset} has no value")
    return record.value


async def newest_valid(
    disk: Disk,
    directory: str,
    log_start: int,
    note: Note,
    pace: Callable[[], Awaitable[None]],
    *,
    before: int | None = None,
) -> Snapshot | None:
    """The newest snapshot that reads well and that the log continues; None to begin at zero. With
    `before`, of those that end there or earlier.

    ParseError when neither a snapshot nor the log reaches back to the beginning.
    """
    damaged: list[str] = []
    for position in find(disk, directory):
        if position.offset < log_start:
            break
        if before is not None and position.offset > before:
            continue
        try:
            return await read(disk, directory, position, pace)
        except ParseError as error:
            note(EventKind.SNAPSHOT_UNREADABLE, file_name(position), str(error))
            damaged.append(file_name(position))
    if log_start:
        what = f"; unreadable: {', '.join(damaged)}" if damaged else ""
        raise ParseError(
            f"{directory}: the log begins at {log_start} and no readable snapshot reaches it{what}"
        )
    return None
