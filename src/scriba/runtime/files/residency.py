"""Which parts of a file are in the page cache, asked without waiting for the device.

Linux 6.5 answers with one call, cachestat(2). It counts pages, also those that read-ahead has only
begun to read: whoever sent them would wait for the device. So the last byte of the window is read
as well, without waiting; what was asked for before it has come by then. Older kernels are asked by
reading alone: a `preadv(RWF_NOWAIT)` of the whole window stops short at the first page that is
missing. Where neither exists (macOS) every window counts as resident, and a cold read may hold the
loop.
"""

import ctypes
import os
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CACHESTAT = 451  # the same number on every architecture that Linux and CPython share
_PROBE_BYTES = 1 << 20

RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    ]


class Residency:
    """Asks for one disk. Its structs are reused, so it belongs to one loop."""

    def __init__(self, cachestat: int = _CACHESTAT) -> None:
        self._number = cachestat
        self._range = _Range()
        self._stat = _Stat()
        self._one_byte = (bytearray(1),)
        self._scratch: memoryview | None = None
        self._cachestat = sys.platform == "linux"
        if self._cachestat:
            # PyDLL keeps the interpreter lock: the call takes about a microsecond.
            self._syscall = ctypes.PyDLL(None).syscall
            self._arguments = (ctypes.byref(self._range), ctypes.byref(self._stat), 0)

    def covers(self, fd: int, offset: int, n: int) -> bool:
        """Whether all of [offset, offset + n) is cached; what lies past the end counts as so."""
        if n <= 0:
            return True
        if self._cachestat:
            cached = self._count(fd, offset, n)
            if cached >= _pages(offset, n):
                return self._arrived(fd, offset + n - 1)
            if cached >= 0:
                there = min(n, os.fstat(fd).st_size - offset)
                if there == n:
                    return False
                return there <= 0 or (
                    cached >= _pages(offset, there) and self._arrived(fd, offset + there - 1)
                )
        return self._probe(fd, offset, n) if RWF_NOWAIT else True

    def _arrived(self, fd: int, position: int) -> bool:
        try:
            os.preadv(fd, self._one_byte, position, RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without the flag
        return True

    def _count(self, fd: int, offset: int, n: int) -> int:
        """Cached pages in the window, or -1, then and for good, when the kernel cannot tell."""
        self._range.offset = offset
        self._range.length = n
        if self._syscall(self._number, fd, *self._arguments) != 0:
            self._cachestat = False
            return -1
        return int(self._stat.cached)

    def _probe(self, fd: int, offset: int, n: int) -> bool:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_PROBE_BYTES))
        end = offset + n
        while offset < end:
            try:
                got = os.preadv(fd, [self._scratch[: end - offset]], offset, RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True  # a file system without the flag, such as old tmpfs, is memory anyway
            if got == 0:
                return True
            offset += got
        return True


def _pages(offset: int, n: int) -> int:
    return int((offset + n - 1) // _PAGE - offset // _PAGE + 1)
