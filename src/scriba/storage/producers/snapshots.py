"""The producer snapshots of a partition: files named by the offset whose state they hold.

One is taken at every roll, at close, and now and then in between, so that recovery reads little.
Those at the base of a segment stay as long as the segment; of the others the latest is enough.

Few producers are written down in the step that asks for it. Of many a capture is taken, which is
written by the next sync, in slices; until then it is as if there were no snapshot.
"""

import asyncio
import logging
from bisect import bisect_right, insort
from collections.abc import Container, Iterable
from contextlib import suppress
from typing import Final

from scriba.errors import ParseError
from scriba.runtime.loop.pace import next_turn
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import SNAPSHOT, file_name
from scriba.storage.producers.state import Capture, Producers
from scriba.storage.room import WithRoom, opened

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""Producers that are written down in the step that asks for it."""
SLICE: Final = 1_000
"""Producers in each slice of more."""


class _Captured:
    """A snapshot that is to be written."""

    __slots__ = ("bases", "offset", "producers", "writing")

    def __init__(self, offset: int, producers: Capture, bases: Container[int]) -> None:
        self.offset = offset
        self.producers = producers
        self.bases = bases
        self.writing = asyncio.Lock()


class Snapshots:
    __slots__ = ("_captured", "_disk", "_unsynced", "directory", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)
        self._unsynced: list[int] = []
        self._captured: _Captured | None = None

    @property
    def latest(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    @property
    def pending(self) -> bool:
        """Whether one is taken, and not written yet."""
        return self._captured is not None and self._stands(self._captured)

    def path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT)}"

    def take(self, producers: Producers, offset: int, bases: Container[int]) -> bool:
        """Has the state at `offset` written; earlier snapshots that no segment begins at go.

        False: not before an earlier one is written.
        """
        if offset in self.offsets:
            return True
        if self._captured is not None and self._stands(self._captured):
            return self._captured.offset == offset
        if len(producers) > AT_ONCE:
            self._captured = _Captured(offset, producers.capture(), bases)
        else:
            self.replace(producers, offset)
            self._delete_stale(offset, bases)
        return True

    def _delete_stale(self, before: int, bases: Container[int]) -> None:
        for stale in [each for each in self.offsets if each not in bases and each < before]:
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
            self._discard(offset)
            raise
        self._written(offset)

    def _discard(self, offset: int) -> None:
        """What was written of it is worth nothing, and takes room."""
        if offset in self.offsets:
            self.offsets.remove(offset)
        with suppress(OSError):
            self._disk.unlink(self.path(offset))

    def _written(self, offset: int) -> None:
        if offset not in self.offsets:
            insort(self.offsets, offset)
        self._unsynced.append(offset)

    async def write_captured(self) -> None:
        """Writes, in slices, what was taken of many producers. OSError: the next call tries again.

        The head, which has the checksum, is written last: what a crash leaves is left aside.
        """
        captured = self._captured
        if captured is None:
            return
        async with captured.writing:
            if not self._stands(captured):
                return
            try:
                complete = await self._write(captured)
            except OSError:
                if self._stands(captured):
                    self._discard(captured.offset)
                raise
            if complete:
                self._drop_captured()
                self._written(captured.offset)
                self._delete_stale(captured.offset, captured.bases)

    async def _write(self, captured: _Captured) -> bool:
        """False where nobody wants it any more: the file may be another one's."""
        end = 0
        file = self._disk.open(self.path(captured.offset), create=True)
        try:
            for position, piece in captured.producers.encode(SLICE):
                if piece:
                    file.pwrite(piece, position)
                end = max(end, position + len(piece))
                await next_turn()
                if not self._stands(captured):
                    return False
            if file.size() > end:
                file.truncate(end)
        finally:
            file.close()
        return True

    def _stands(self, captured: _Captured) -> bool:
        return self._captured is captured and not captured.producers.ended

    def _drop_captured(self) -> None:
        captured, self._captured = self._captured, None
        if captured is not None:
            captured.producers.end()

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
        if self._captured is not None and self._captured.offset == offset:
            self._drop_captured()
        if offset in self.offsets:
            self.offsets.remove(offset)

    def delete(self, offset: int) -> None:
        self.offsets.remove(offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(self.path(offset))

    def delete_above(self, offset: int) -> None:
        if self._captured is not None and self._captured.offset > offset:
            self._drop_captured()
        for each in [each for each in self.offsets if each > offset]:
            self.delete(each)
