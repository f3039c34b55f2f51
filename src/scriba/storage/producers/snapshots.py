"""The producer snapshots of a partition: files named by the offset whose state they hold.

One is taken at every roll, at close, and now and then in between, so that recovery reads little.
Those at the base of a segment stay as long as the segment; of the others the latest is enough.
"""

import logging
from bisect import bisect_right, insort
from collections.abc import Container, Iterable
from contextlib import suppress

from scriba.errors import ParseError
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import SNAPSHOT, file_name
from scriba.storage.producers.state import Producers
from scriba.storage.room import WithRoom, opened

logger = logging.getLogger(__name__)


class Snapshots:
    __slots__ = ("_disk", "_unsynced", "directory", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)
        self._unsynced: list[int] = []

    @property
    def latest(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    def path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT)}"

    def take(self, producers: Producers, offset: int, bases: Container[int]) -> None:
        """Writes the state at `offset`; earlier snapshots that no segment begins at go."""
        if offset in self.offsets:
            return
        self.replace(producers, offset)
        for stale in [each for each in self.offsets if each not in bases and each < offset]:
            self.delete(stale)

    def replace(self, producers: Producers, offset: int) -> None:
        """Writes the state at `offset`, whatever is there.

        A crash may leave it torn: the checksum inside tells, and it is then left aside.
        """
        data = producers.encode()
        try:
            file = self._disk.open(self.path(offset), create=True)
            try:
                file.pwrite(data, 0)
                if file.size() > len(data):
                    file.truncate(len(data))
            finally:
                file.close()
        except OSError:
            self.forget(offset)
            with suppress(OSError):  # what was written of it is worth nothing, and takes room
                self._disk.unlink(self.path(offset))
            raise
        if offset not in self.offsets:
            insort(self.offsets, offset)
        self._unsynced.append(offset)

    async def sync(self, with_room: WithRoom) -> None:
        """Makes durable what was taken: without it, producers of deleted segments are forgotten."""
        unsynced, self._unsynced = self._unsynced, []
        try:
            while unsynced:
                if unsynced[0] in self.offsets:
                    await self._sync(unsynced[0], with_room)
                del unsynced[0]
        finally:
            self._unsynced = unsynced + self._unsynced

    async def _sync(self, offset: int, with_room: WithRoom) -> None:
        try:
            file = await opened(with_room, self._disk, self.path(offset))
        except FileNotFoundError:  # only an operator removes one, and it may be missing
            self.forget(offset)
            return
        try:
            await file.datasync()
        finally:
            file.close()

    def load(self, up_to: int, now_ms: int, expiration_ms: int) -> tuple[Producers, int] | None:
        """The latest state at or before `up_to` that can be read."""
        while True:
            found = bisect_right(self.offsets, up_to)
            if not found:
                return None
            offset = self.offsets[found - 1]
            try:
                data = self._disk.read(self.path(offset))
                return Producers.decode(data, now_ms, expiration_ms), offset
            except (ParseError, FileNotFoundError) as error:
                logger.warning("%s is left aside: %s", self.path(offset), error)
                self.delete(offset)

    def forget(self, offset: int) -> None:
        """The file at `offset`, if there was one, is someone else's now."""
        if offset in self.offsets:
            self.offsets.remove(offset)

    def delete(self, offset: int) -> None:
        self.offsets.remove(offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(self.path(offset))

    def delete_above(self, offset: int) -> None:
        for each in [each for each in self.offsets if each > offset]:
            self.delete(each)
