"""A simulated disk: one process's view of its host's volume.

The ports' calls, with the time they take and the errors they give. It turns dead with its process:
what is called after that reaches nothing.
"""

import asyncio
import errno
import os
import zlib
from collections.abc import Callable
from contextlib import suppress

from scriba.runtime.loop.tasks import seen
from scriba.runtime.ports import WOULD_BLOCK, Buffer
from scriba.testing.sim.world.volume import (
    Change,
    Dir,
    DiskFaults,
    Fate,
    Inode,
    Volume,
    parts,
    write,
)

__all__ = ["DiskFaults", "SimDisk", "SimFile", "SimLock", "Volume"]


_STAYS_S = 1
"""What was loaded does not leave memory before whoever needs it has had time to look."""


def _fail(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimFile:
    __slots__ = ("_disk", "_node", "_open", "path")

    fd = -1

    def __init__(self, disk: "SimDisk", path: str, node: Inode) -> None:
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

    def pwrite(self, data: Buffer, offset: int) -> int:
        self._check()
        volume = self._disk.volume
        data = bytes(data)
        content = self._node.content
        growth = max(0, offset + len(data) - len(content))
        room = volume.room(self.path)
        written = data[: len(data) - (growth - room)] if growth > room else data
        before = len(content)
        if written:
            write(content, offset, written)
            volume.used += len(content) - before
            self._node.pending.append(Change(volume.next_turn(), offset, written))
        volume.note("write", self.path, offset, len(written), zlib.crc32(written))
        if len(written) < len(data):
            raise _fail(errno.ENOSPC, self.path)
        return len(data)

    def resident(self, offset: int, n: int) -> bool:
        return self._warm()

    async def load(self, offset: int, n: int) -> None:
        await self._disk.pause(self.path)
        self._check()
        self._node.cold = False
        self._node.warm_until = asyncio.get_running_loop().time() + _STAYS_S

    async def populate(self, offset: int, n: int) -> None:
        await self._disk.pause(self.path)
        self._check()

    async def datasync(self) -> None:
        self._check()
        await self._disk.sync(self._node, self.path)

    def truncate(self, size: int) -> None:
        self._check()
        volume = self._disk.volume
        change = Change(volume.next_turn(), size, None)
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
        node, volume = self._node, self._disk.volume
        if volume.rng.chance(volume.faults.cold) and not node.stays_warm():
            node.cold = True
        return not node.cold

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


class SimMark:
    def __init__(self, node: Inode) -> None:
        self._node = node

    def revoke(self) -> None:
        self._node.marked = False

    def close(self) -> None:
        """Nothing is held open."""


class SimDisk:
    open_files = 0
    most_files = 1
    """A simulated file needs no descriptor: however many are open, there is room."""

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

    def when_crowded(self, tell: Callable[[], object]) -> None:
        """Never."""

    def open(self, path: str, create: bool = False) -> SimFile:
        directory, name = self._place(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise _fail(errno.ENOENT, path)
            self._check_room(path)
            node = Inode()
            directory.change(self.volume.next_turn(), {name: node})
            self.volume.note("create", path)
        if isinstance(node, Dir):
            raise _fail(errno.EISDIR, path)
        return SimFile(self, path, node)

    def read(self, path: str) -> bytes:
        node = self._get(path)
        if isinstance(node, Dir):
            raise _fail(errno.EISDIR, path)
        return bytes(node.content)

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Step by step, so that the power can go between any two of them."""
        self.check(path)
        task = asyncio.ensure_future(self._replace_after(self._replacing.get(path), path, data))
        self._replacing[path] = task
        task.add_done_callback(seen)
        await asyncio.shield(task)

    def exists(self, path: str) -> bool:
        self.check(path)
        return self.volume.find(path) is not None

    def list(self, path: str) -> list[str]:
        node = self._get(path)
        if not isinstance(node, Dir):
            raise _fail(errno.ENOTDIR, path)
        return sorted(node.entries)

    def is_dir(self, path: str) -> bool:
        self.check(path)
        return isinstance(self.volume.find(path), Dir)

    def mkdir(self, path: str, parents: bool = False) -> None:
        self.check(path)
        node = self.volume.root
        above = len(parts(path)) - 1
        for depth, part in enumerate(parts(path)):
            below = node.entries.get(part)
            if below is None:
                if depth < above and not parents:
                    raise _fail(errno.ENOENT, path)
                self._check_room(path)
                below = Dir()
                node.change(self.volume.next_turn(), {part: below})
                self.volume.note("mkdir", path)
            if not isinstance(below, Dir):
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
        if isinstance(replaced, Dir) and (replaced.entries or not isinstance(node, Dir)):
            raise _fail(errno.ENOTEMPTY, new)
        if old_name != new_name:
            if isinstance(replaced, Inode):
                self.volume.used -= len(replaced.content)
            directory.change(self.volume.next_turn(), {old_name: None, new_name: node})
        self.volume.note("rename", old, new)

    def unlink(self, path: str) -> None:
        node = self._get(path)
        if isinstance(node, Dir):
            raise _fail(errno.EISDIR, path)
        self.volume.used -= len(node.content)
        self._remove(path)

    def rmdir(self, path: str) -> None:
        node = self._get(path)
        if not isinstance(node, Dir):
            raise _fail(errno.ENOTDIR, path)
        if node.entries:
            raise _fail(errno.ENOTEMPTY, path)
        self._remove(path)

    def size(self, path: str) -> int:
        node = self._get(path)
        return 4096 if isinstance(node, Dir) else len(node.content)

    async def sync_dir(self, path: str) -> None:
        node = self._get(path)
        if not isinstance(node, Dir):
            raise _fail(errno.ENOTDIR, path)
        turn = self.volume.turn
        await self.pause(path)
        faults = self.volume.faults
        if faults.fail_dirs and faults.fail_in in path and self.volume.rng.chance(faults.fail_sync):
            self.volume.note("sync failed", path)
            raise _fail(faults.fail_by, path)
        node.sync(turn)
        self.volume.note("sync_dir", path)

    def lock(self, path: str) -> SimLock:
        self.open(f"{path}/.lock", create=True)
        if path in self.volume.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.volume.locks[path] = self
        return SimLock(self.volume, path)

    def mark(self, path: str, data: bytes) -> SimMark:
        """Nothing of it need be on the device: with the power goes the mark."""
        with suppress(FileNotFoundError):
            self.unlink(path)
        file = self.open(path, create=True)
        try:
            file.pwrite(data, 0)
        except OSError:
            self.unlink(path)
            raise
        node = self._get(path)
        assert isinstance(node, Inode)
        node.marked = True
        return SimMark(node)

    def marked(self, path: str) -> bytes | None:
        self.check(path)
        node = self.volume.find(path)
        return bytes(node.content) if isinstance(node, Inode) and node.marked else None

    async def allocate(self, path: str, size: int) -> None:
        if not self.volume.faults.reserves:
            raise _fail(errno.ENOTSUP, path)
        file = self.open(path, create=True)
        growth = size - file.size()
        if growth > self.volume.room(path):
            raise _fail(errno.ENOSPC, path)
        if growth > 0:
            file.truncate(size)
        file.close()

    def space(self, path: str) -> tuple[int, int]:
        self.check(path)
        return self.volume.faults.capacity, self.volume.room(path)

    async def sync(self, node: Inode, path: str) -> None:
        """Makes durable what was written to the file before this call."""
        volume, faults = self.volume, self.volume.faults
        turn = volume.turn
        await self.pause(path)
        fails = volume.rng.chance(faults.fail_sync) and not faults.fail_dirs
        if fails and faults.fail_in in path:
            node.settle(turn, Fate(volume.rng).of)
            volume.note("sync failed", path)
            raise _fail(faults.fail_by, path)
        node.sync(turn)
        volume.note("sync", path)

    async def pause(self, path: str) -> None:
        """The time the device takes."""
        rng, faults = self.volume.rng, self.volume.faults
        stalls = rng.chance(faults.stall) and faults.stall_in in path
        ms = rng.between(*faults.sync_ms) * (faults.stall_times if stalls else 1)
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
            file.pwrite(data, 0)
            await file.datasync()
            file.close()
            self.rename(temporary, path)
            await self.sync_dir(path.rpartition("/")[0])
        finally:
            if self._replacing.get(path) is asyncio.current_task():
                del self._replacing[path]

    def _check_room(self, path: str) -> None:
        """A name takes room, too: where there is none at all, it does not fit."""
        if not self.volume.room(path):
            raise _fail(errno.ENOSPC, path)

    def _remove(self, path: str) -> None:
        directory, name = self._place(path)
        directory.change(self.volume.next_turn(), {name: None})
        self.volume.note("remove", path)

    def _get(self, path: str) -> "Inode | Dir":
        self.check(path)
        node = self.volume.find(path)
        if node is None:
            raise _fail(errno.ENOENT, path)
        return node

    def _place(self, path: str) -> tuple[Dir, str]:
        self.check(path)
        *above, name = parts(path)
        directory = self.volume.find("/".join(above))
        if not isinstance(directory, Dir):
            raise _fail(errno.ENOENT, path)
        return directory, name
