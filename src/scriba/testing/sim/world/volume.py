"""What a simulated host has on its device, and what only in its page cache.

A write is visible at once and durable only after `datasync` of its file; a name (create, rename,
unlink, mkdir) only after `sync_dir` of its directory. A power cut decides, from the seed, what of
the rest reached the device:

- each unsynced write or truncation of a file on its own: kept, lost, or, for a write, torn: a
  prefix, or any subset of its sectors. A lost write below a kept one leaves zeros.
- each directory keeps a prefix of its unsynced changes of names, as a journal does. What was
  synced inside a directory whose own name is lost goes with it.

A `datasync` covers what was written before it was called, and only from the moment it returns. A
failed one leaves the file as Linux does: pages counted as clean, though some never reached the
device, so that a second try succeeds and saves nothing.

`Volume` is what survives its host's processes; `disk.SimDisk` is one process's view of it.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from scriba.runtime.rng import SeededRng

SECTOR: Final = 512
PLENTY: Final = 1 << 40


@dataclass(slots=True)
class DiskFaults:
    """What this disk does to its users; all of it drawn from the seed."""

    sync_ms: tuple[float, float] = (0.1, 4.0)
    stall: float = 0.0
    """Chance that a sync takes so many times as long."""
    stall_times: int = 100
    stall_in: str = ""
    """Part of the paths of files that this happens to."""
    fail_sync: float = 0.0
    """Chance that a `datasync` reports `fail_by`."""
    fail_in: str = ""
    """Part of the paths of files that this happens to."""
    fail_by: int = errno.EIO
    fail_dirs: bool = False
    """Whether it is a `sync_dir` that does, and no `datasync`."""
    cold: float = 0.0
    """Chance that a file's cached pages are found evicted."""
    capacity: int = PLENTY
    reserves: bool = False
    """Whether room can be reserved. Plays that are about a full device turn it on."""
    full_in: str = ""
    """Part of the paths that this holds for: with several directories, each may be a device."""


@dataclass(slots=True)
class Change:
    """One unsynced change of a file: bytes at an offset, or, without bytes, a new size."""

    turn: int
    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is not None:
            write(content, self.offset, self.data)
        elif self.offset < len(content):
            del content[self.offset :]
        else:
            content.extend(bytes(self.offset - len(content)))


def write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(slots=True, eq=False)
class Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    asked: bytes | None = None
    """What syncs have asked for, where a power cut has left more by luck."""
    cold: bool = False
    warm_until: float = 0
    """Up to when it stays in memory, whatever the chance that it leaves it."""
    marked: bool = False
    """Whether it counts as written since the host got its power."""

    def stays_warm(self) -> bool:
        return bool(self.warm_until) and asyncio.get_running_loop().time() < self.warm_until

    def sync(self, turn: int) -> None:
        self.settle(turn, lambda change: (change,))
        self.asked = None

    def settle(self, turn: int, survives: Callable[[Change], Iterable[Change]]) -> None:
        """Decides all changes up to `turn`: what `survives` returns of each is durable."""
        later = []
        for change in self.pending:
            if change.turn > turn:
                later.append(change)
            else:
                for kept in survives(change):
                    kept.apply(self.durable)
        self.pending = later

    def power_cut(self, rng: SeededRng) -> None:
        if self.pending:
            if self.asked is None:
                self.asked = bytes(self.durable)
            self.settle(self.pending[-1].turn, Fate(rng).of)
        self.content = bytearray(self.durable)
        self.cold = True
        self.marked = False


class Fate:
    """What the device had written when the power went, file by file of its own mood.

    Some files keep almost all, some almost nothing, some a mix: a coin alone would make the long
    losses and the single holes equally unlikely.
    """

    def __init__(self, rng: SeededRng) -> None:
        self._rng = rng
        self._keep = (0.05, 0.5, 0.95)[rng.below(3)]

    def of(self, change: Change) -> list[Change]:
        if self._rng.chance(self._keep):
            return [change]
        if change.data is None or self._rng.chance(0.5):
            return []
        return self._torn(change, change.data)

    def _torn(self, change: Change, data: bytes) -> list[Change]:
        turn, offset, rng = change.turn, change.offset, self._rng
        if rng.chance(0.5):
            return [Change(turn, offset, data[: rng.below(len(data) + 1)])]
        kept = []
        for start in range(-(offset % SECTOR), len(data), SECTOR):
            if rng.chance(0.5):
                sector = data[max(start, 0) : start + SECTOR]
                kept.append(Change(turn, offset + max(start, 0), sector))
        if rng.chance(0.5):  # the size reached the device though its data did not
            kept.append(Change(turn, offset + len(data), b""))
        return kept


@dataclass(slots=True, eq=False)
class Dir:
    entries: "dict[str, Inode | Dir]" = field(default_factory=dict)
    durable: "dict[str, Inode | Dir]" = field(default_factory=dict)
    pending: "list[tuple[int, dict[str, Inode | Dir | None]]]" = field(default_factory=list)
    asked: "dict[str, Inode | Dir] | None" = None
    """As with files."""

    def change(self, turn: int, names: "dict[str, Inode | Dir | None]") -> None:
        """Sets or, with None, removes names: all of one change or nothing."""
        _rename(self.entries, names)
        self.pending.append((turn, names))

    def sync(self, turn: int) -> None:
        while self.pending and self.pending[0][0] <= turn:
            _rename(self.durable, self.pending.pop(0)[1])
        self.asked = None

    def power_cut(self, rng: SeededRng) -> None:
        if self.pending:
            if self.asked is None:
                self.asked = dict(self.durable)
            kept = rng.below(len(self.pending) + 1)
            for _, names in self.pending[:kept]:
                _rename(self.durable, names)
            self.pending = []
        self.entries = dict(self.durable)
        for name in sorted(self.entries):
            self.entries[name].power_cut(rng)


def _rename(entries: "dict[str, Inode | Dir]", names: "dict[str, Inode | Dir | None]") -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Volume:
    """The storage of one host."""

    def __init__(self, rng: SeededRng, faults: DiskFaults, note: Callable[..., None]) -> None:
        self.rng = rng
        self.faults = faults
        self.note = note
        self.turn = 0
        self.used = 0
        self.root = Dir()
        self.locks: dict[str, object] = {}
        """Directory -> the process's disk that holds its lock."""

    def power_cut(self) -> None:
        self.root.power_cut(self.rng)
        self.used = sum(len(content) for content in self.files().values())

    def room(self, path: str) -> int:
        """Bytes that still fit where `path` is."""
        limited = self.faults.full_in in path
        capacity = self.faults.capacity if limited else PLENTY
        return max(0, capacity - self.used)

    def files(self) -> dict[str, bytes]:
        """What a process would read: all files by their paths."""
        return {path: bytes(node.content) for path, node in _walk("", self.root, synced=False)}

    def synced(self) -> dict[str, bytes]:
        """What no power cut can take because it was asked for: synced content, synced names."""
        return {
            path: bytes(node.durable) if node.asked is None else node.asked
            for path, node in _walk("", self.root, synced=True)
        }

    def flip_bit(self, path: str, low: int = 0, high: int | None = None) -> int:
        """Damages one bit of a file, on the device and in the cache; returns the byte's offset."""
        node = self.find(path)
        assert isinstance(node, Inode)
        offset = low + self.rng.below((len(node.content) if high is None else high) - low)
        mask = 1 << self.rng.below(8)
        for content in (node.content, node.durable):
            if offset < len(content):
                content[offset] ^= mask
        self.note("flip", path, offset)
        return offset

    def find(self, path: str) -> "Inode | Dir | None":
        node: Inode | Dir | None = self.root
        for part in parts(path):
            if not isinstance(node, Dir):
                return None
            node = node.entries.get(part)
        return node

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn


def _walk(path: str, directory: Dir, synced: bool) -> Iterator[tuple[str, Inode]]:
    names = directory.entries
    if synced:
        names = directory.durable if directory.asked is None else directory.asked
    for name, node in sorted(names.items()):
        if isinstance(node, Dir):
            yield from _walk(f"{path}/{name}", node, synced)
        else:
            yield f"{path}/{name}", node


def parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
