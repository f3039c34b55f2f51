"""`scriba log repair`: keeps of damaged partitions what can be kept, and lists what it drops.

It works on the files of a stopped node. Without `--yes` it changes nothing and tells what it would
do. With it, a damaged segment is written anew beside the old one, which stays as `.log.damaged`,
and takes its name in one step; its indexes go, and the next start builds them from the log.
"""

import argparse
import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from scriba.cli.output import counted, print_json, size
from scriba.cli.problems import CommandError
from scriba.records.header import HEADER
from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.work.offload import ThreadOffload
from scriba.storage.directory.checkpoints import RECOVERY_POINTS, read_offsets
from scriba.storage.directory.last_run import FILE_NAME as LAST_RUN
from scriba.storage.directory.names import (
    INDEX,
    LOG,
    TIME_INDEX,
    file_name,
    parse_file,
    parse_partition_dir,
)
from scriba.storage.recovery.repair import Dropped, Kept, Plan, plan

METADATA: Final = "__cluster_metadata"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
BACKUP: Final = ".damaged"
_PART: Final = ".repaired"


class Segment(NamedTuple):
    base_offset: int
    plan: Plan


class Partition(NamedTuple):
    path: str
    segments: list[Segment]
    ends_early: int | None
    """Where the log has to go on, if it lost its end: offsets are not given out twice."""

    @property
    def damaged(self) -> list[Segment]:
        return [each for each in self.segments if not each.plan.sound]


def run(options: argparse.Namespace) -> int:
    paths = [path for given in options.paths for path in partitions(given)]
    with _Locks(paths):
        found = [examine(path) for path in paths]
        for partition in found:
            if options.yes:
                if partition.damaged or partition.ends_early is not None:
                    distrust(os.path.dirname(partition.path))
                for segment in partition.damaged:
                    rewrite(partition, segment)
                if partition.ends_early is not None:
                    begin_segment(partition.path, partition.ends_early)
    damaged = [each for each in found if each.damaged]
    if options.json:
        print_json([_document(each, options.yes) for each in found])
    else:
        for partition in damaged:
            print("\n".join(_lines(partition, options.yes)))
        _conclude(found, damaged, options.yes)
    return 0 if options.yes or not damaged else 1


# -- which ---------------------------------------------------------------------------------------


def partitions(path: str) -> list[str]:
    """The partition's directory itself, or all of a log directory."""
    path = os.path.abspath(path)
    os.stat(path)
    if os.path.exists(os.path.join(path, META_PROPERTIES)):
        names = sorted(name for name in os.listdir(path) if parse_partition_dir(name) is not None)
        return [os.path.join(path, name) for name in names if not name.startswith(METADATA)]
    name = parse_partition_dir(os.path.basename(path))
    if name is None or not os.path.isdir(path):
        raise CommandError(
            f"{path} is no partition's directory and no log directory",
            "name one such as scriba-data/orders-0, or scriba-data",
        )
    if name.topic == METADATA:
        raise CommandError(
            f"{path} holds the cluster's metadata, which cannot lose a record and still be right",
            "restore it from a copy",
        )
    return [path]


class _Locks:
    """The log directories of all partitions, taken so that no node starts meanwhile."""

    def __init__(self, paths: list[str]) -> None:
        parents = sorted({os.path.dirname(path) for path in paths})
        self._homes = [p for p in parents if os.path.exists(os.path.join(p, META_PROPERTIES))]
        self._held: list[Any] = []

    def __enter__(self) -> "_Locks":
        disk = PosixDisk(ThreadOffload(1))
        for home in self._homes:
            try:
                self._held.append(disk.lock(home))
            except BlockingIOError:
                raise CommandError(f"{home} is in use by a running node", "stop it first") from None
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._held:
            lock.release()


# -- looking -------------------------------------------------------------------------------------


def examine(path: str) -> Partition:
    files = (parse_file(name) for name in os.listdir(path))
    bases = sorted(found[0] for found in files if found is not None and found[1] == LOG)
    segments: list[Segment] = []
    flushed = _recovery_point(path)
    stopped = os.path.exists(os.path.join(os.path.dirname(path), CLEAN_SHUTDOWN))
    end_of_all = flushed if stopped else None
    for base, following in zip(bases, [*bases[1:], end_of_all], strict=True):
        with _content(os.path.join(path, file_name(base, LOG))) as data:
            segments.append(Segment(base, plan(data, base, following)))
    if not segments or segments[-1].plan.sound:
        return Partition(path, segments, None)
    last = segments[-1]
    end = last.plan.end_offset(last.base_offset)
    if flushed is None or end >= flushed:
        # What is torn here was never promised: the next start cuts it off by itself.
        tail = last.plan.pieces[-1]
        if isinstance(tail, Dropped) and len(last.plan.dropped) == 1 and not _mends(last.plan):
            segments[-1] = last._replace(plan=Plan([*last.plan.kept], tail.size))
        return Partition(path, segments, None)
    return Partition(path, segments, flushed)


def _mends(found: Plan) -> bool:
    return any(each.mended for each in found.kept)


class _content:
    """A file's bytes, mapped."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")

    def __enter__(self) -> memoryview:
        if os.fstat(self._file.fileno()).st_size:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._view = memoryview(self._map)
        return self._view

    def __exit__(self, *_: object) -> None:
        self._view.release()
        if self._map is not None:
            self._map.close()
        self._file.close()


def _recovery_point(path: str) -> int | None:
    """How far the partition is promised to be on disk; None for a copy without checkpoints."""
    name = parse_partition_dir(os.path.basename(path))
    assert name is not None
    disk = PosixDisk(ThreadOffload(1))
    return read_offsets(disk, os.path.join(os.path.dirname(path), RECOVERY_POINTS)).get(name)


# -- changing ------------------------------------------------------------------------------------


def rewrite(partition: Partition, segment: Segment) -> None:
    """Puts what is kept in the place of a segment; the segment as it was stays beside it."""
    stem = os.path.join(partition.path, file_name(segment.base_offset, ""))
    last = segment is partition.segments[-1] and partition.ends_early is None
    if not segment.plan.kept and not last:
        os.rename(stem + LOG, _backup_name(stem + LOG))
        _drop_indexes(stem)
        _sync(partition.path)
        return
    with _content(stem + LOG) as data, open(stem + LOG + _PART, "wb") as file:
        for piece in segment.plan.kept:
            batch = data[piece.position : piece.position + piece.size]
            if piece.mended:
                file.write(HEADER.pack(*piece.header))
                file.write(batch[HEADER.size :])
            else:
                file.write(batch)
            batch.release()
        file.flush()
        os.fsync(file.fileno())
    _back_up(stem + LOG)
    os.replace(stem + LOG + _PART, stem + LOG)
    _drop_indexes(stem)
    _sync(partition.path)


def distrust(home: str) -> None:
    """Takes back what the directory says of its broker's epoch: that nothing was lost since.

    A repaired replica may lack records that were acknowledged, so it must not lead by that word.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(home, LAST_RUN))
    marker = os.path.join(home, CLEAN_SHUTDOWN)
    if os.path.exists(marker):
        with open(marker + _PART, "w") as file:
            file.write(json.dumps({"version": 0, "brokerEpoch": -1}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(marker + _PART, marker)
    _sync(home)


def _back_up(path: str) -> None:
    """A second name for the file, or a copy where a file has only one."""
    backup = _backup_name(path)
    try:
        os.link(path, backup)
    except OSError:
        shutil.copy2(path, backup)
        with open(backup, "rb") as file:
            os.fsync(file.fileno())


def _drop_indexes(stem: str) -> None:
    """Those of offsets and times, which the next start builds anew. Aborted transactions stay."""
    for suffix in (INDEX, TIME_INDEX):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stem + suffix)


def _backup_name(path: str) -> str:
    name, number = path + BACKUP, 1
    while os.path.exists(name):
        number += 1
        name = f"{path}{BACKUP}.{number}"
    return name


def begin_segment(path: str, offset: int) -> None:
    """An empty segment, where the log goes on."""
    for suffix in (LOG, INDEX, TIME_INDEX):
        with open(os.path.join(path, file_name(offset, suffix)), "ab"):
            pass
    _sync(path)


def _sync(path: str) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# -- telling -------------------------------------------------------------------------------------


def _lines(partition: Partition, done: bool) -> Iterator[str]:
    yield partition.path
    for segment in partition.damaged:
        yield f"  {file_name(segment.base_offset, LOG)}"
        for piece in segment.plan.pieces:
            if isinstance(piece, Dropped):
                verb = "dropped" if done else "would drop"
                where = f"{size(piece.size)} at {piece.position}"
                yield f"    {verb} {_offsets(piece)}: {where}, {piece.why}"
            elif piece.mended:
                verb = "mended" if done else "would mend"
                yield f"    {verb} the batch at {piece.position}: {piece.mended}"
        yield f"    {'kept' if done else 'would keep'} {_sum(segment.plan.kept)}"


def _offsets(piece: Dropped) -> str:
    if piece.end_offset <= piece.first_offset:
        return "no offset that is known"
    if piece.end_offset == piece.first_offset + 1:
        return f"offset {piece.first_offset}"
    return f"offsets {piece.first_offset}..{piece.end_offset - 1}"


def _sum(kept: list[Kept]) -> str:
    records = sum(each.header.count for each in kept)
    return f"{counted(records, 'record')} in {counted(len(kept), 'batch', 'batches')}"


def _conclude(found: list[Partition], damaged: list[Partition], done: bool) -> None:
    looked = counted(len(found), "partition")
    if not damaged:
        print(f"{looked}: no damage")
    elif done:
        print(f"{counted(len(damaged), 'partition')} of {looked} repaired; the old segments are")
        print("beside the new ones as .log.damaged, to be removed when nobody wants them")
    else:
        print(f"{counted(len(damaged), 'partition')} of {looked} damaged; nothing was changed:")
        print("`--yes` does what is told above, and keeps the old segments beside the new ones")


def _document(partition: Partition, done: bool) -> dict[str, Any]:
    return {
        "partition": os.path.basename(partition.path),
        "path": partition.path,
        "repaired": done and bool(partition.damaged),
        "segments": [
            {
                "base_offset": segment.base_offset,
                "kept_batches": len(segment.plan.kept),
                "mended": [
                    {"position": each.position, "what": each.mended}
                    for each in segment.plan.kept
                    if each.mended
                ],
                "dropped": [each._asdict() for each in segment.plan.dropped],
            }
            for segment in partition.damaged
        ],
    }
