"""`scriba log dump`: what is in segment files, and whether they and their indexes are sound.

It reads files and asks nobody, so it works on a stopped node, a copy, and on files of Kafka. On the
last segment of a running node the end of the file may be a batch that is just being written.
"""

import argparse
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, NamedTuple

from scriba.cli.output import counted, size
from scriba.cli.problems import CommandError
from scriba.cli.records.envelope import to_json
from scriba.errors import KafkaError, ParseError
from scriba.records.batch import control_type, decode_records
from scriba.records.header import (
    CODEC_MASK,
    HEADER_SIZE,
    MIN_LENGTH,
    NO_PRODUCER_ID,
    BatchHeader,
    check_crc,
    read_header,
    sane_header,
)
from scriba.records.record import Record
from scriba.storage.directory.names import INDEX, LOG, TIME_INDEX, parse_file
from scriba.text import json_text, printable

_CHUNK: Final = 1 << 20
_OFFSET_ENTRY: Final = struct.Struct(">II")
_TIME_ENTRY: Final = struct.Struct(">qI")
_MOST_PROBLEMS: Final = 20
"""Of one segment; where there are more, the first ones say enough."""

_HEADING: Final = (
    f"  {'OFFSETS':<25} {'COUNT':>7} {'POSITION':>11} {'BYTES':>9}  {'CODEC':<6} "
    f"{'LARGEST TIMESTAMP':<24} {'EPOCH':>5}  {'PRODUCER':<20} FLAGS"
)


class Batch(NamedTuple):
    position: int
    header: BatchHeader
    sound: bool
    """Whether its checksum is right."""
    records: list[Record] | None
    """None when nobody asked for them, or they cannot be read."""


@dataclass(slots=True)
class Segment:
    """One file, and what was found in it so far."""

    path: str
    base_offset: int | None
    batches: int = 0
    records: int = 0
    size: int = 0
    first_offset: int | None = None
    next_offset: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    """Last offset of the batch at each position."""
    last_offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """Last offset and largest timestamp of each batch."""
    entries: dict[str, int] = field(default_factory=dict)
    """Entries of each index that there is."""
    problems: list[str] = field(default_factory=list)

    def complain(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def run(options: argparse.Namespace) -> int:
    files = [file for path in options.paths for file in segment_files(path)]
    show = _show_json if options.json else _show_text
    healthy = True
    for path in files:
        healthy &= show(path, options)
    return 0 if healthy else 1


def segment_files(path: str) -> list[str]:
    """The file itself, or the segments of a directory in their order."""
    os.stat(path)  # what is not there is told before anything is shown
    if not os.path.isdir(path):
        root, suffix = os.path.splitext(path)
        return [root + LOG if suffix in (INDEX, TIME_INDEX) else path]
    names = [name for name in os.listdir(path) if _base_offset(name) is not None]
    if not names:
        raise CommandError(f"{path} has no segment files", "name a partition's directory")
    return [os.path.join(path, name) for name in sorted(names)]


def _base_offset(name: str) -> int | None:
    found = parse_file(name)
    return found[0] if found and found[1] == LOG else None


# -- reading and checking ------------------------------------------------------------------------


def examine(path: str, with_records: bool) -> tuple[Segment, Iterator[Batch]]:
    """The batches of a file; the segment is complete when they have all been taken."""
    segment = Segment(path, _base_offset(os.path.basename(path)))

    def batches() -> Iterator[Batch]:
        with open(path, "rb") as file:
            yield from _walk(file, segment, with_records)
        if segment.base_offset is not None:
            _check_offset_index(segment, segment.base_offset)
            _check_time_index(segment, segment.base_offset)

    return segment, batches()


def _walk(file: BinaryIO, segment: Segment, with_records: bool) -> Iterator[Batch]:
    segment.size = os.fstat(file.fileno()).st_size
    segment.next_offset = segment.base_offset or 0
    position = 0
    while position < segment.size:
        left = segment.size - position
        data = file.read(HEADER_SIZE)
        if not any(data) and _only_zeros(file):
            return  # room that `preallocate` has reserved
        if len(data) < HEADER_SIZE:
            segment.complain(f"position {position}: {counted(left, 'byte')} that are no batch")
            return
        header = read_header(data)
        if not sane_header(header):
            segment.complain(f"position {position}: no batch begins here; {size(left)} not read")
            return
        if header.size > left:
            segment.complain(
                f"position {position}: a batch of {header.size} bytes is cut short, {left} are left"
            )
            return
        data += file.read(header.length - MIN_LENGTH)
        yield _note(segment, position, header, data, with_records)
        position += header.size


def _only_zeros(file: BinaryIO) -> bool:
    """Whether nothing else follows; if something does, reading goes on from where it was."""
    here = file.tell()
    while data := file.read(_CHUNK):
        if any(data):
            file.seek(here)
            return False
    return True


def _note(
    segment: Segment, position: int, header: BatchHeader, data: bytes, with_records: bool
) -> Batch:
    sound = check_crc(data, 0, header)
    if not sound:
        segment.complain(f"position {position}: the checksum of the batch is wrong")
    if header.base_offset < segment.next_offset:
        segment.complain(
            f"position {position}: offset {header.base_offset} where {segment.next_offset} or a "
            "later one was due"
        )
    records = None
    if with_records and sound:
        try:
            records = decode_records(data)
        except (ParseError, KafkaError) as error:
            segment.complain(f"position {position}: records cannot be read: {error}")
    if segment.first_offset is None:
        segment.first_offset = header.base_offset
    segment.next_offset = max(segment.next_offset, header.next_offset)
    segment.batches += 1
    segment.records += header.count
    segment.positions[position] = header.last_offset
    segment.last_offsets.append(header.last_offset)
    segment.timestamps.append(header.max_timestamp)
    return Batch(position, header, sound, records)


def _check_offset_index(segment: Segment, base_offset: int) -> None:
    """Each entry is the last offset of the batch at its position, in rising order."""
    before = -1
    for offset, position in _entries(segment, INDEX, _OFFSET_ENTRY):
        told = f"index: offset {base_offset + offset} at position {position}"
        if position not in segment.positions:
            segment.complain(f"{told}: no batch begins there")
        elif segment.positions[position] != base_offset + offset:
            segment.complain(f"{told}: the batch there ends with {segment.positions[position]}")
        if offset <= before:
            segment.complain(f"{told}: not after the entry before it")
        before = offset


def _check_time_index(segment: Segment, base_offset: int) -> None:
    """Each entry is the largest timestamp of the batch with its offset, in rising order."""
    before = -1
    for timestamp, offset in _entries(segment, TIME_INDEX, _TIME_ENTRY):
        told = f"time index: timestamp {timestamp} at offset {base_offset + offset}"
        at = bisect_left(segment.last_offsets, base_offset + offset)
        if at == len(segment.last_offsets):
            segment.complain(f"{told}: the log ends before")
        elif segment.timestamps[at] != timestamp:
            segment.complain(f"{told}: the largest of the batch there is {segment.timestamps[at]}")
        if timestamp <= before:
            segment.complain(f"{told}: not after the entry before it")
        before = timestamp


def _entries(segment: Segment, suffix: str, form: struct.Struct) -> Iterator[tuple[int, int]]:
    """The entries of an index file; zeros at its end are room that was never used."""
    try:
        with open(segment.path.removesuffix(LOG) + suffix, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return
    if len(data) % form.size:
        name = "index" if suffix == INDEX else "time index"
        whole = f"not whole entries of {form.size}"
        segment.complain(f"{name}: {counted(len(data), 'byte')} are {whole}")
    data = data.rstrip(b"\0")
    count = -(-len(data) // form.size)
    segment.entries[suffix] = count
    for entry in form.iter_unpack(data.ljust(count * form.size, b"\0")):
        yield entry[0], entry[1]


# -- showing -------------------------------------------------------------------------------------


def _show_text(path: str, options: argparse.Namespace) -> bool:
    segment, batches = examine(path, options.records)
    print(path)
    if not options.quiet:
        print(_HEADING)
    for batch in batches:
        if not options.quiet:
            print(_line(batch))
            for record in batch.records or ():
                print(f"    {_record_line(record, batch.header.is_control)}")
    for line in _summary(segment):
        print(f"  {line}")
    return not segment.problems


def _line(batch: Batch) -> str:
    header = batch.header
    flags = [
        word
        for word, holds in (
            ("append-time", header.log_append_time),
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("BAD-CRC", not batch.sound),
        )
        if holds
    ]
    producer = "-"
    if header.producer_id != NO_PRODUCER_ID:
        producer = f"{header.producer_id}:{header.producer_epoch} @{header.base_sequence}"
    return (
        f"  {f'{header.base_offset}..{header.last_offset}':<25} {header.count:>7} "
        f"{batch.position:>11} {header.size:>9}  {_codec(header):<6} "
        f"{_time(header.max_timestamp):<24} {header.leader_epoch:>5}  {producer:<20} "
        f"{' '.join(flags)}"
    ).rstrip()


def _record_line(record: Record, control: bool) -> str:
    start = f"{record.offset} {_time(record.timestamp)}"
    if control:
        return f"{start} {_control(record)}"
    headers = "".join(f" {printable(name)}={_shown(content)}" for name, content in record.headers)
    return f"{start} key={_shown(record.key)} value={_shown(record.value)}{headers}"


def _summary(segment: Segment) -> list[str]:
    indexes = [
        counted(segment.entries[suffix], f"{name} index entry", f"{name} index entries")
        for suffix, name in ((INDEX, "offset"), (TIME_INDEX, "time"))
        if suffix in segment.entries
    ]
    batches = counted(segment.batches, "batch", "batches")
    offsets = ""
    if segment.first_offset is not None:
        offsets = f", offsets {segment.first_offset}..{segment.next_offset - 1}"
    return [
        f"{counted(segment.records, 'record')} in {batches}{offsets}, "
        f"{size(segment.size)}; {', '.join(indexes) or 'no index'}",
        *(f"PROBLEM {problem}" for problem in segment.problems),
    ]


def _show_json(path: str, options: argparse.Namespace) -> bool:
    segment, batches = examine(path, options.records)
    for batch in batches:
        if not options.quiet:
            print(json_text(_batch_document(path, batch)))
    print(
        json_text(
            {
                "type": "segment",
                "file": path,
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "batches": segment.batches,
                "records": segment.records,
                "bytes": segment.size,
                "index_entries": segment.entries.get(INDEX),
                "time_index_entries": segment.entries.get(TIME_INDEX),
                "problems": segment.problems,
            }
        )
    )
    return not segment.problems


def _batch_document(path: str, batch: Batch) -> dict[str, Any]:
    header = batch.header
    document = {
        "type": "batch",
        "file": path,
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "bytes": header.size,
        "codec": _codec(header),
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "log_append" if header.log_append_time else "create",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc_ok": batch.sound,
    }
    if batch.records is not None:
        document["records"] = [_record_document(r, header.is_control) for r in batch.records]
    return document


def _record_document(record: Record, control: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    if control:
        document["control"] = _control(record)
    return document | {
        "headers": [[name, to_json(content)] for name, content in record.headers],
        "key": to_json(record.key),
        "value": to_json(record.value),
    }


def _codec(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except ParseError:
        return f"#{header.attributes & CODEC_MASK}"


def _control(record: Record) -> str:
    try:
        kind = control_type(record.key)
    except ParseError:
        return "UNREADABLE"
    return kind.name if kind is not None else "UNKNOWN"


def _shown(data: bytes | None) -> str:
    return json_text(to_json(data))


def _time(milliseconds: int) -> str:
    """In UTC; numbers that no calendar holds stay as they are."""
    if milliseconds < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
