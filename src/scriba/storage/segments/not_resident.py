"""What is not in the page cache: the loop never waits for the device, it is told to come back."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from scriba.runtime.ports import Disk

T = TypeVar("T")


class Loadable(Protocol):
    async def load(self, offset: int, n: int) -> None: ...


class NotResident(NamedTuple):
    """Bytes that are not in the page cache: `await it.file.load(it.position, it.size)` first."""

    file: Loadable
    position: int
    size: int


class Window:
    """A file to bring into the page cache by its name: its owner may have closed it meanwhile."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    async def load(self, offset: int, n: int) -> None:
        with suppress(FileNotFoundError):  # deleted meanwhile: trying again will say so
            file = self._disk.open(self._path)
            try:
                await file.load(offset, n)
            finally:
                file.close()


async def settled(attempt: Callable[[], T | NotResident]) -> T:
    """What `attempt` finds once everything it needs is in memory."""
    while isinstance(found := attempt(), NotResident):
        await found.file.load(found.position, found.size)
    return found
