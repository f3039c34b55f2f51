"""Files that nobody syncs: for a node whose data need not outlive the machine.

What was written is in the page cache, so it outlives a killed process; a power cut may take it.
"""

import os
import weakref

from scriba.runtime.files.disk import PosixDisk, PosixFile
from scriba.runtime.ports import Offload


def _replace(path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


class UnsyncedFile(PosixFile):
    __slots__ = ("__weakref__",)

    async def datasync(self) -> None:
        os.fstat(self.fd)  # a closed file is an error here, too


class UnsyncedDisk(PosixDisk):
    def __init__(self, offload: Offload) -> None:
        super().__init__(offload)
        self._open: weakref.WeakSet[UnsyncedFile] = weakref.WeakSet()

    def open(self, path: str, create: bool = False) -> UnsyncedFile:
        file = super().open(path, create)
        assert isinstance(file, UnsyncedFile)
        self._open.add(file)
        return file

    def close(self) -> None:
        """Closes every file that is still open."""
        for file in tuple(self._open):
            file.close()

    def _file(self, path: str, fd: int) -> UnsyncedFile:
        return UnsyncedFile(path, fd, self._offload, self._residency, self._held)

    async def write_atomic(self, path: str, data: bytes) -> None:
        _replace(path, data)

    async def sync_dir(self, path: str) -> None:
        os.stat(path)
