"""A disk with a page cache that a power cut takes away.

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

`Volume` is what survives its host's processes; `SimDisk` is one process's view of it and turns
dead with the process.
"""

import asyncio
import errno
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from scriba.runtime.ports import WOULD_BLOCK, Buffer
from scriba.runtime.rng import SeededRng

SECTOR: Final = 512


@dataclass(slots=True)
class DiskFaults:
    """What this disk does to its users; all of it drawn from the seed."""

    sync_ms: tuple[float, float] = (0.1, 4.0)
    stall: float = 0.0
    """Chance that a sync takes a hundred times as long."""
    fail_sync: float = 0.0
    """Chance that a `datasync` reports EIO."""
    cold: float = 0.0
    """Chance that a file's cached pages are found evicted."""
    capacity: int = 1 << 40


@dataclass(slots=True)
class _Change:
    """One unsynced change of a file: bytes at an offset, or, without bytes, a new size."""

    turn: int
    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is not None:
            _write(content, self.offset, self.data)
        elif self.offset < len(content):
            del content[self.offset :]
        else:
            content.extend(bytes(self.offset - len(content)))


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)
    asked: bytes | None = None
    """What syncs have asked for, where a power cut has left more by luck."""
    cold: bool = False

    def sync(self, turn: int) -> None:
        self.settle(turn, lambda change: (change,))
        self.asked = None

    def settle(self, turn: int, survives: Callable[[_Change], Iterable[_Change]]) -> None:
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
            self.settle(self.pending[-1].turn, _Fate(rng).of)
        self.content = bytearray(self.durable)
        self.cold = True


class _Fate:
    """What the device had written when the power went, file by file of its own mood.

    Some files keep almost all, some almost nothing, some a mix: a coin alone would make the long
    losses and the single holes equally unlikely.
    """

    def __init__(self, rng: SeededRng) -> None:
        self._rng = rng
        self._keep = (0.05, 0.5, 0.95)[rng.below(3)]

    def of(self, change: _Change) -> list[_Change]:
        if self._rng.chance(self._keep):
            return [change]
        if change.data is None or self._rng.chance(0.5):
            return []
        return self._torn(change, change.data)

    def _torn(self, change: _Change, data: bytes) -> list[_Change]:
        turn, offset, rng = change.turn, change.offset, self._rng
        if rng.chance(0.5):
            return [_Change(turn, offset, data[: rng.below(len(data) + 1)])]
        kept = []
        for start in range(-(offset % SECTOR), len(data), SECTOR):
            if rng.chance(0.5):
                sector = data[max(start, 0) : start + SECTOR]
                kept.append(_Change(turn, offset + max(start, 0), sector))
        if rng.chance(0.5):  # the size reached the device though its data did not
            kept.append(_Change(turn, offset + len(data), b""))
        return kept


@dataclass(slots=True, eq=False)
class _Dir:
    entries: "dict[str, _Inode | _Dir]" = field(default_factory=dict)
    durable: "dict[str, _Inode | _Dir]" = field(default_factory=dict)
    pending: "list[tuple[int, dict[str, _Inode | _Dir | None]]]" = field(default_factory=list)
    asked: "dict[str, _Inode | _Dir] | None" = None
    """As with files."""

    def change(self, turn: int, names: "dict[str, _Inode | _Dir | None]") -> None:
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


def _rename(entries: "dict[str, _Inode | _Dir]", names: "dict[str, _Inode | _Dir | None]") -> None:
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
        self.root = _Dir()
        self.locks: dict[str, SimDisk] = {}

    def power_cut(self) -> None:
        self.root.power_cut(self.rng)
        self.used = sum(len(content) for content in self.files().values())

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
        assert isinstance(node, _Inode)
        offset = low + self.rng.below((len(node.content) if high is None else high) - low)
        mask = 1 << self.rng.below(8)
        for content in (node.content, node.durable):
            if offset < len(content):
                content[offset] ^= mask
        self.note("flip", path, offset)
        return offset

    def find(self, path: str) -> "_Inode | _Dir | None":
        node: _Inode | _Dir | None = self.root
        for part in _parts(path):
            if not isinstance(node, _Dir):
                return None
            node = node.entries.get(part)
        return node

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn


def _walk(path: str, directory: _Dir, synced: bool) -> Iterator[tuple[str, _Inode]]:
    names = directory.entries
    if synced:
        names = directory.durable if directory.asked is None else directory.asked
    for name, node in sorted(names.items()):
        if isinstance(node, _Dir):
            yield from _walk(f"{path}/{name}", node, synced)
        else:
            yield f"{path}/{name}", node


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _fail(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimFile:
    __slots__ = ("_disk", "_node", "_open", "path")

    def __init__(self, disk: "SimDisk", path: str, node: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._open = True

    def pread_into(self, view: memoryview, offset: int) -> int:
        self._check()
        data = self._node.content[offset : offset + view.nbytes]
        view.cast("B")[: len(data)] = data
        return len(data)

    def try_pread_into(self, view: memoryview, offset: int) -> int:
        return self.pread_into(view, offset) if self._warm() else WOULD_BLOCK

    def pwritev(self, views: Sequence[Buffer], offset: int) -> int:
        self._check()
        volume = self._disk.volume
        data = b"".join(views)
        content = self._node.content
        growth = max(0, offset + len(data) - len(content))
        room = max(0, volume.faults.capacity - volume.used)
        written = data[: len(data) - (growth - room)] if growth > room else data
        before = len(content)
        if written:
            _write(content, offset, written)
            volume.used += len(content) - before
            self._node.pending.append(_Change(volume.next_turn(), offset, written))
        volume.note("write", self.path, offset, len(written), zlib.crc32(written))
        if len(written) < len(data):
            raise _fail(errno.ENOSPC, self.path)
        return len(data)

    def resident(self, offset: int, n: int) -> bool:
        return self._warm()

    async def load(self, offset: int, n: int) -> None:
        await self._disk.pause()
        self._check()
        self._node.cold = False

    async def datasync(self) -> None:
        self._check()
        await self._disk.sync(self._node, self.path)

    def truncate(self, size: int) -> None:
        self._check()
        volume = self._disk.volume
        change = _Change(volume.next_turn(), size, None)
        volume.used += size - len(self._node.content)
        change.apply(self._node.content)
        self._node.pending.append(change)
        volume.note("truncate", self.path, size)

    def size(self) -> int:
        self._check()
        return len(self._node.content)

    def close(self) -> None:
        self._open = False

    def _warm(self) -> bool:
        self._check()
        volume = self._disk.volume
        if volume.rng.chance(volume.faults.cold):
            self._node.cold = True
        return not self._node.cold

    def _check(self) -> None:
        if not self._open:
            raise _fail(errno.EBADF, self.path)
        self._disk.check(self.path)


class SimLock:
    def __init__(self, volume: Volume, path: str) -> None:
        self._volume = volume
        self._path = path

    def release(self) -> None:
        self._volume.locks.pop(self._path, None)


class SimDisk:
    """One process's view of a volume."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self._alive = True
        self._replacing: dict[str, asyncio.Task[None]] = {}

    def die(self) -> None:
        """The process is gone: its locks are free and its calls reach nothing."""
        self._alive = False
        for path in [path for path, owner in self.volume.locks.items() if owner is self]:
            del self.volume.locks[path]

    def check(self, path: str) -> None:
        if not self._alive:
            raise _fail(errno.EIO, path)

    def open(self, path: str, create: bool = False) -> SimFile:
        directory, name = self._place(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise _fail(errno.ENOENT, path)
            node = _Inode()
            directory.change(self.volume.next_turn(), {name: node})
            self.volume.note("create", path)
        if isinstance(node, _Dir):
            raise _fail(errno.EISDIR, path)
        return SimFile(self, path, node)

    def read(self, path: str) -> bytes:
        node = self._get(path)
        if isinstance(node, _Dir):
            raise _fail(errno.EISDIR, path)
        return bytes(node.content)

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Step by step, so that the power can go between any two of them."""
        self.check(path)
        task = asyncio.ensure_future(self._replace_after(self._replacing.get(path), path, data))
        self._replacing[path] = task
        await asyncio.shield(task)

    def exists(self, path: str) -> bool:
        self.check(path)
        return self.volume.find(path) is not None

    def list(self, path: str) -> list[str]:
        node = self._get(path)
        if not isinstance(node, _Dir):
            raise _fail(errno.ENOTDIR, path)
        return sorted(node.entries)

    def is_dir(self, path: str) -> bool:
        self.check(path)
        return isinstance(self.volume.find(path), _Dir)

    def mkdir(self, path: str) -> None:
        self.check(path)
        node = self.volume.root
        for part in _parts(path):
            below = node.entries.get(part)
            if below is None:
                below = _Dir()
                node.change(self.volume.next_turn(), {part: below})
                self.volume.note("mkdir", path)
            if not isinstance(below, _Dir):
                raise _fail(errno.EEXIST, path)
            node = below

    def rename(self, old: str, new: str) -> None:
        directory, old_name = self._place(old)
        target, new_name = self._place(new)
        if old_name not in directory.entries:
            raise _fail(errno.ENOENT, old)
        if target is not directory:
            raise _fail(errno.EXDEV, new)
        node, replaced = directory.entries[old_name], directory.entries.get(new_name)
        if isinstance(replaced, _Dir) and (replaced.entries or not isinstance(node, _Dir)):
            raise _fail(errno.ENOTEMPTY, new)
        if old_name != new_name:
            if isinstance(replaced, _Inode):
                self.volume.used -= len(replaced.content)
            directory.change(self.volume.next_turn(), {old_name: None, new_name: node})
        self.volume.note("rename", old, new)

    def unlink(self, path: str) -> None:
        node = self._get(path)
        if isinstance(node, _Dir):
            raise _fail(errno.EISDIR, path)
        self.volume.used -= len(node.content)
        self._remove(path)

    def rmdir(self, path: str) -> None:
        node = self._get(path)
        if not isinstance(node, _Dir):
            raise _fail(errno.ENOTDIR, path)
        if node.entries:
            raise _fail(errno.ENOTEMPTY, path)
        self._remove(path)

    def size(self, path: str) -> int:
        node = self._get(path)
        return 4096 if isinstance(node, _Dir) else len(node.content)

    async def sync_dir(self, path: str) -> None:
        node = self._get(path)
        if not isinstance(node, _Dir):
            raise _fail(errno.ENOTDIR, path)
        turn = self.volume.turn
        await self.pause()
        node.sync(turn)
        self.volume.note("sync_dir", path)

    def lock(self, path: str) -> SimLock:
        self.open(f"{path}/.lock", create=True)
        if path in self.volume.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.volume.locks[path] = self
        return SimLock(self.volume, path)

    def space(self, path: str) -> tuple[int, int]:
        self.check(path)
        capacity = self.volume.faults.capacity
        return capacity, max(0, capacity - self.volume.used)

    async def sync(self, node: _Inode, path: str) -> None:
        """Makes durable what was written to the file before this call."""
        volume = self.volume
        turn = volume.turn
        await self.pause()
        if volume.rng.chance(volume.faults.fail_sync):
            node.settle(turn, _Fate(volume.rng).of)
            volume.note("sync failed", path)
            raise _fail(errno.EIO, path)
        node.sync(turn)
        volume.note("sync", path)

    async def pause(self) -> None:
        """The time the device takes."""
        rng, faults = self.volume.rng, self.volume.faults
        ms = rng.between(*faults.sync_ms) * (100 if rng.chance(faults.stall) else 1)
        await asyncio.sleep(ms / 1000)

    async def _replace_after(
        self, earlier: "asyncio.Task[None] | None", path: str, data: bytes
    ) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            temporary = path + ".tmp"
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.pwritev([data], 0)
            await file.datasync()
            file.close()
            self.rename(temporary, path)
            await self.sync_dir(path.rpartition("/")[0])
        finally:
            if self._replacing.get(path) is asyncio.current_task():
                del self._replacing[path]

    def _remove(self, path: str) -> None:
        directory, name = self._place(path)
        directory.change(self.volume.next_turn(), {name: None})
        self.volume.note("remove", path)

    def _get(self, path: str) -> "_Inode | _Dir":
        self.check(path)
        node = self.volume.find(path)
        if node is None:
            raise _fail(errno.ENOENT, path)
        return node

    def _place(self, path: str) -> tuple[_Dir, str]:
        self.check(path)
        *above, name = _parts(path)
        directory = self.volume.find("/".join(above))
        if not isinstance(directory, _Dir):
            raise _fail(errno.ENOENT, path)
        return directory, name
