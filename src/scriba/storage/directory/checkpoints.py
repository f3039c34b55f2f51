"""Kafka's checkpoint files: text of a version, a count, and as many lines.

Those of a log directory map partitions to offsets. Every one of them may be missing or damaged:
what it said is then found out anew, so reading gives an empty map and says so in the log.
"""

import asyncio
import logging
from collections.abc import Container, Iterable, Iterator
from typing import Final, overload

from scriba.runtime.loop.pace import next_turn
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import PartitionName

logger = logging.getLogger(__name__)

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

_VERSION: Final = "0"
LINES_AT_ONCE: Final = 500
"""Lines of a checkpoint that are made in one slice of the loop."""


def format_lines(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "\n".join((_VERSION, str(len(rows)), *rows, "")).encode()


def parse_lines(data: bytes) -> list[list[str]]:
    """The fields of each line; ValueError when the file is not whole."""
    rows = data.decode().split("\n")
    if rows[0].strip() != _VERSION:
        raise ValueError(f"unknown version {rows[0]!r}")
    count = int(rows[1])
    lines = [row.split() for row in rows[2:] if row.strip()]
    if len(lines) != count:
        raise ValueError(f"{len(lines)} lines instead of {count}")
    return lines


def parse_offsets(data: bytes) -> dict[PartitionName, int]:
    offsets: dict[PartitionName, int] = {}
    for fields in parse_lines(data):
        topic, partition, offset = fields
        offsets[PartitionName(topic, int(partition))] = int(offset)
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[PartitionName, int]:
    """What the checkpoint says; nothing when it is missing, damaged or, as Apache Kafka makes
    them before it has anything to say, empty."""
    try:
        data = disk.read(path)
        return parse_offsets(data) if data else {}
    except FileNotFoundError:
        return {}
    except (ValueError, IndexError) as error:
        logger.warning("%s is damaged and will be written anew: %s", path, error)
        return {}


class Checkpoint:
    """One of these files, and what it is to say: an offset for each partition, changed in memory.

    A file is made in slices, so its lines may be of different moments. Each was right at its own,
    and one whose offset changes while the file is made is made anew: what was lowered or dropped
    before `save` was called stands in no file that is written from then on.
    """

    def __init__(self, disk: Disk, directory: str, file: str, *, readable: bool = True) -> None:
        self.file = file
        self._disk = disk
        self._path = f"{directory}/{file}"
        self._offsets = read_offsets(disk, self._path) if readable else {}
        self._changes = 0
        self._saved = 0
        """The changes that the file on disk is known to tell."""
        self._changed: set[PartitionName] | None = None
        """Whose line has to be made anew, while a file is made."""
        self._turn = asyncio.Lock()

    @overload
    def get(self, name: PartitionName) -> int | None: ...

    @overload
    def get(self, name: PartitionName, unknown: int) -> int: ...

    def get(self, name: PartitionName, unknown: int | None = None) -> int | None:
        return self._offsets.get(name, unknown)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[PartitionName]:
        return iter(tuple(self._offsets))

    def set(self, name: PartitionName, offset: int) -> None:
        if self._offsets.get(name) != offset:
            self._offsets[name] = offset
            self._note(name)

    def drop(self, name: PartitionName) -> None:
        if self._offsets.pop(name, None) is not None:
            self._note(name)

    def keep(self, names: Container[PartitionName]) -> None:
        """Drops all others."""
        for name in self:
            if name not in names:
                self.drop(name)

    def _note(self, name: PartitionName) -> None:
        self._changes += 1
        if self._changed is not None:
            self._changed.add(name)

    async def save(self) -> None:
        """Returns when the file on disk says what is known now, or what has become of it since.

        Those who come while it is written share the next one. OSError: what stands there is older.
        """
        wanted = self._changes
        async with self._turn:
            if self._saved < wanted:
                content = await self._content()
                saved = self._changes
                await self._disk.write_atomic(self._path, content)
                self._saved = saved

    async def _content(self) -> bytes:
        lines: dict[PartitionName, str] = {}
        missing = tuple(self._offsets)
        try:
            while missing:
                self._changed = set()
                for start in range(0, len(missing), LINES_AT_ONCE):
                    if start:
                        await next_turn()
                    for name in missing[start : start + LINES_AT_ONCE]:
                        if (offset := self._offsets.get(name)) is None:
                            lines.pop(name, None)
                        else:
                            lines[name] = f"{name.topic} {name.partition} {offset}"
                missing = tuple(self._changed)
        finally:
            self._changed = None
        return format_lines(lines.values())
