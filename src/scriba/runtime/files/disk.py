"""Files on a POSIX file system.

What may wait for the device is either async, and then runs in the offload, or says so in the port
(start-up and offloaded work only). A descriptor stays open while an offloaded call uses it, also
when the awaiting task has been cancelled or the file closed: otherwise its number could already
name another file.
"""

import asyncio
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Concatenate, Final, ParamSpec

from scriba.runtime.files import marks
from scriba.runtime.files.limits import files_of_logs
from scriba.runtime.files.populate import populate
from scriba.runtime.files.residency import RWF_NOWAIT, Residency
from scriba.runtime.loop.tasks import seen
from scriba.runtime.ports import WOULD_BLOCK, Buffer, Offload

P = ParamSpec("P")

_LOAD_BYTES: Final = 1 << 18
_scratch = threading.local()


def _sync_data(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    elif hasattr(fcntl, "F_FULLFSYNC"):  # macOS: a plain fsync stops at the drive's own cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _load(fd: int, offset: int, n: int) -> None:
    """Has the window read into the page cache.

    Sent to the null device it is copied nowhere, and the kernel reads ahead as for any reader.
    """
    end = offset + n
    try:
        while sys.platform == "linux" and offset < end:
            got = os.sendfile(_null_device(), fd, offset, end - offset)
            if got == 0:
                return
            offset += got
    except OSError as failure:
        if failure.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
    _load_by_copying(fd, offset, end)


@cache
def _null_device() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _load_by_copying(fd: int, offset: int, end: int) -> None:
    """For systems and file systems that cannot do without a buffer of this thread."""
    buffer: memoryview | None = getattr(_scratch, "buffer", None)
    if buffer is None:
        buffer = _scratch.buffer = memoryview(bytearray(_LOAD_BYTES))
    while offset < end:
        got = os.preadv(fd, [buffer[: end - offset]], offset)
        if got == 0:
            return
        offset += got


def _write_all(fd: int, data: Buffer, offset: int) -> int:
    """Completes short writes: they happen at signals, at limits and when the disk fills up."""
    rest = memoryview(data).cast("B")
    while rest:
        done = os.pwrite(fd, rest, offset)
        offset += done
        rest = rest[done:]
    return len(data)


def _replace(path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    _sync_dir(os.path.dirname(path) or ".")


class PosixFile:
    __slots__ = ("_away", "_closed", "_held", "_offload", "_residency", "fd", "path")

    def __init__(
        self, path: str, fd: int, offload: Offload, residency: Residency, held: set[int]
    ) -> None:
        self.path = path
        self.fd = fd
        self._offload = offload
        self._residency = residency
        self._held = held
        self._away = 0
        self._closed = False
        held.add(fd)

    def __del__(self) -> None:
        # Dropped: whoever was sending from it, or had work on it away, is done.
        self.close()

    def pread_into(self, view: memoryview, offset: int) -> int:
        done = os.preadv(self.fd, [view], offset)
        while 0 < done < view.nbytes:
            got = os.preadv(self.fd, [view[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def try_pread_into(self, view: memoryview, offset: int) -> int:
        try:
            return os.preadv(self.fd, [view], offset, RWF_NOWAIT)
        except BlockingIOError:
            return WOULD_BLOCK
        except OSError as failure:
            if failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return self.pread_into(view, offset)  # a file system without RWF_NOWAIT

    def pwrite(self, data: Buffer, offset: int) -> int:
        done = os.pwrite(self.fd, data, offset)
        if done != len(data):
            done += _write_all(self.fd, memoryview(data).cast("B")[done:], offset + done)
        return done

    def resident(self, offset: int, n: int) -> bool:
        return self._residency.covers(self.fd, offset, n)

    async def load(self, offset: int, n: int) -> None:
        await self._lend(_load, offset, n)

    async def populate(self, offset: int, n: int) -> None:
        await self._lend(populate, offset, n)

    async def datasync(self) -> None:
        await self._lend(_sync_data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    async def _lend(
        self, work: Callable[Concatenate[int, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        self._away += 1
        task = asyncio.ensure_future(self._offload.run(work, self.fd, *args, **kwargs))
        task.add_done_callback(self._returned)
        await asyncio.shield(task)

    def _returned(self, work: "asyncio.Future[None]") -> None:
        seen(work)
        self._away -= 1
        if self._closed:
            self._release()

    def _release(self) -> None:
        if not self._away and self.fd >= 0:
            fd, self.fd = self.fd, -1  # any later use fails with EBADF
            self._held.discard(fd)
            os.close(fd)


class PosixLock:
    """Held as long as its descriptor is open, so the kernel frees it when the process dies."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _take_lock(fd: int) -> None:
    if sys.platform == "linux":
        # An open-file-description lock: it also meets the record lock that a JVM broker takes on
        # the same file, and two nodes in one process exclude each other.
        whole_file = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole_file)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: str) -> bool:
    """Whether a process has a directory's `.lock` file, as far as that can be told."""
    try:
        fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _take_lock(fd)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _allocate(path: str, size: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        raise OSError(errno.ENOTSUP, "room cannot be reserved on this system", path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        before = os.fstat(fd).st_size
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


class PosixDisk:
    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._residency = Residency()
        self._replacing: dict[str, asyncio.Task[None]] = {}
        self._held: set[int] = set()
        self._tell: Callable[[], object] | None = None
        self.most_files = files_of_logs()
        """Half of what the process may have: connections need descriptors, too."""

    @property
    def open_files(self) -> int:
        return len(self._held)

    def when_crowded(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def open(self, path: str, create: bool = False) -> PosixFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, 0o644)
        if len(self._held) >= self.most_files and self._tell is not None:
            self._tell()
        return self._file(path, fd)

    def _file(self, path: str, fd: int) -> PosixFile:
        return PosixFile(path, fd, self._offload, self._residency, self._held)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Replacements of one path happen in the order of the calls, each to its end."""
        task = asyncio.ensure_future(self._replace_after(self._replacing.get(path), path, data))
        self._replacing[path] = task
        task.add_done_callback(seen)
        await asyncio.shield(task)

    async def allocate(self, path: str, size: int) -> None:
        await self._offload.run(_allocate, path, size)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def mkdir(self, path: str, parents: bool = False) -> None:
        if parents:
            os.makedirs(path, exist_ok=True)
            return
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    async def sync_dir(self, path: str) -> None:
        await self._offload.run(_sync_dir, path)

    def lock(self, path: str) -> PosixLock:
        fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take_lock(fd)
        except BaseException:
            os.close(fd)
            raise
        return PosixLock(fd)

    def mark(self, path: str, data: bytes) -> marks.PosixMark:
        return marks.mark(path, data)

    def marked(self, path: str) -> bytes | None:
        return marks.marked(path)

    def space(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    async def _replace_after(
        self, earlier: "asyncio.Task[None] | None", path: str, data: bytes
    ) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            await self._offload.run(_replace, path, data)
        finally:
            if self._replacing.get(path) is asyncio.current_task():
                del self._replacing[path]
