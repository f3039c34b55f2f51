"""Files that prove that nothing was lost from the page cache since they were written.

What a process has written outlives it: the page cache belongs to the machine. So after a `kill -9`
all is there, after a power cut it is not, and the next process has to know which of the two it was.
A marked file tells, by two signs that only memory holds:

- it names the boot of the machine, which the kernel draws anew with each start;
- its inode bears a write-lifetime hint (F_SET_RW_HINT), which no file system stores. The kernel
  forgets it when the file system is unmounted, and no copy has it. So a device that was pulled out
  and put back, a volume that was rolled back to a snapshot, and a directory that was copied (within
  the machine, too: containers share its boot id) do not pass for what they were.

Under memory pressure the kernel may forget an inode that nobody uses, and with it the hint. Then
the mark is gone though nothing was lost: it errs on the safe side alone. File systems whose data
is kept by another machine or another process are not trusted at all, for these may restart on
their own.
"""

import errno
import fcntl
import os
import struct
from contextlib import suppress
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
MOUNTS: Final = "/proc/self/mountinfo"
LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems whose unsynced data is in this machine's memory and nowhere else."""

_GET_HINT: Final = 1035
_SET_HINT: Final = 1036
"""fcntl's F_GET_RW_HINT and F_SET_RW_HINT, which Python does not name."""
_NOT_SET: Final = 0
_MARKED: Final = 5
"""RWH_WRITE_LIFE_EXTREME: data that lives long. Nobody else gives it to so small a file."""
_HINT: Final = struct.Struct("=Q")


class PosixMark:
    """A marked file that is in use: open, so that the kernel keeps its inode."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        self.close()

    def revoke(self) -> None:
        if self._fd >= 0:
            _set_hint(self._fd, _NOT_SET)  # touches memory alone, so a dead device cannot fail it
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def mark(path: str, data: bytes) -> PosixMark:
    """Replaces a small file by a marked one. OSError where that cannot be; then there is none."""
    boot = boot_id()
    if not boot or file_system(os.path.dirname(path)) not in LOCAL:
        raise OSError(errno.ENOTSUP, "nobody can tell what a crash would leave here", path)
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        content = boot + b"\n" + data
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        _set_hint(fd, _MARKED)
        os.replace(temporary, path)
    except BaseException:
        os.close(fd)
        for each in (temporary, path):
            with suppress(OSError):
                os.unlink(each)
        raise
    return PosixMark(fd)


def marked(path: str) -> bytes | None:
    """What such a file says; None where it is not there, or something may have been lost since."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _hint(fd) != _MARKED:
            return None
        boot, _, data = os.read(fd, 1 << 16).partition(b"\n")
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if boot and boot == boot_id() else None


def boot_id() -> bytes:
    """Which start of the machine this is; empty where it does not say."""
    try:
        with open(BOOT_ID, "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def file_system(directory: str) -> str:
    """The kind of file system that a directory is on; empty where nobody says."""
    place = os.path.realpath(directory)
    kind, longest = "", -1
    with suppress(OSError), open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ")
            point = _unescaped(fields[4])
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= longest:  # of two mounts on one point the later one counts
                kind, longest = fields[fields.index("-") + 1], len(point)
    return kind


def _unescaped(field: str) -> str:
    for code in ("\\040", "\\011", "\\012", "\\134"):
        field = field.replace(code, chr(int(code[1:], 8)))
    return field


def _hint(fd: int) -> int:
    return int(_HINT.unpack(fcntl.fcntl(fd, _GET_HINT, _HINT.pack(_NOT_SET)))[0])


def _set_hint(fd: int, hint: int) -> None:
    fcntl.fcntl(fd, _SET_HINT, _HINT.pack(hint))
