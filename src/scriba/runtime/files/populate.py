"""Has the page cache hold memory for a write to come, so that the write itself is a copy alone.

Most of a large write is the kernel finding pages: of the 40 ms that 20 MB may take, 5 are the copy.
The window is mapped, and its pages are faulted in for writing (MADV_POPULATE_WRITE). That
changes no byte of the file, also not of what others write there meanwhile. Where it cannot be
done, for lack of room, of the file's end, or of Linux 5.14, the write finds its pages itself.
"""

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Final

_POPULATE_WRITE: Final = 23
_AT_ONCE: Final = 1 << 20
_FAILED: Final = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    """Called through it, the interpreter goes on meanwhile; `mmap.madvise` would hold it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def populate(fd: int, offset: int, n: int) -> None:
    """The file must reach as far as the window."""
    if sys.platform != "linux" or n <= 0:
        return
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    size = min(offset + n, os.fstat(fd).st_size) - begin
    if size <= 0:
        return
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, begin)
    if address in (None, _FAILED):
        return
    try:
        for at in range(0, size, _AT_ONCE):
            if libc.madvise(address + at, min(_AT_ONCE, size - at), _POPULATE_WRITE) != 0:
                return
    finally:
        libc.munmap(address, size)
