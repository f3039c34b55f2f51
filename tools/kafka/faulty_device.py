"""A node whose device can be made full or slow while it runs, started in place of `scriba`.

    FAULTY_DEVICE=/tmp/node-1.device python -m tools.kafka.faulty_device up --config FILE

All that a node asks of its device goes through `scriba.runtime.files.disk`. What stands in the file
that FAULTY_DEVICE names is what happens there: `full` (nothing more fits, ENOSPC), or `slow` (a
sync takes up to a second, a write now and then a tenth). Without the file all is well.
(tests/faults/test_full_device.py has a real device that is full, under one node.)
"""

import errno
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SYNC_S: Final = 1.0
WRITE_S: Final = 0.1
SLOW_WRITES: Final = 0.05


class FaultyOs(ModuleType):
    """The module `os` as a device with these faults has it."""

    def __init__(self, state: Path) -> None:
        super().__init__("os")
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _is(self, fault: str) -> bool:
        try:
            return self._state.read_text() == fault
        except FileNotFoundError:
            return False

    def _write(self) -> None:
        if self._is("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is("slow") and random.random() < SLOW_WRITES:
            time.sleep(random.uniform(0, WRITE_S))

    def _sync(self) -> None:
        if self._is("slow"):
            time.sleep(random.uniform(0, SYNC_S))

    # ---- what is asked of a device ----

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        self._write()
        return os.pwrite(fd, data, offset)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._write()
        return os.open(path, flags, mode)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if not os.path.isdir(path):
            self._write()
        os.mkdir(path, mode)

    def fdatasync(self, fd: int) -> None:
        self._sync()
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._sync()
        os.fsync(fd)


def main() -> int:
    from scriba.cli.main import main as scriba
    from scriba.runtime.files import disk

    vars(disk)["os"] = FaultyOs(Path(os.environ["FAULTY_DEVICE"]))
    return scriba()


if __name__ == "__main__":
    sys.exit(main())
