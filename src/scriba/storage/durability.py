"""How much of a log is on the device: files, their names, and what goes with them.

`flushed_offset` moves only after a sync that covers everything before it: the sealed segments with
their indexes, the active one if someone waits for it, leader epochs, producer snapshots, and the
directories that name all these files. A sync that fails is the last one: what the device has of the
file nobody knows then. Where it failed for want of room that costs this log, else its directory.

A write that finds no room is another matter: what indexes and checkpoints say is in memory as well,
so they are written when there is room again, and what waits for the sync waits until then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from functools import partial
from typing import Final

from scriba.errors import KafkaError, anew
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import LEADER_EPOCHS, PARTITION_METADATA
from scriba.storage.epochs import Epochs
from scriba.storage.group_commit import GroupCommit
from scriba.storage.producers.snapshots import Snapshots
from scriba.storage.results import FULL, NO_FILE
from scriba.storage.room import Write, opened
from scriba.storage.segments.segment import Segment
from scriba.storage.segments.segments import Segments

_NOBODY: Final = -1
_UNTIL_ROOM_S: Final = 0.2


class Durability:
    __slots__ = (
        "_commit",
        "_created",
        "_disk",
        "_end",
        "_epochs",
        "_fail",
        "_failed",
        "_files_new",
        "_generation",
        "_make_room",
        "_refused",
        "_segments",
        "_snapshots",
        "_sync_parent",
        "_unsynced",
        "_wanted",
        "closing",
        "flushed_offset",
        "hurried",
    )

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        snapshots: Snapshots,
        epochs: Epochs,
        *,
        durable: bool,
        flushed_offset: int,
        end: Callable[[], int],
        fail: Callable[[OSError], KafkaError],
        refused: Callable[[str, OSError], KafkaError],
        make_room: Callable[[], bool],
        sync_parent: Callable[[], Awaitable[None]],
    ) -> None:
        """`durable` says that the files are just as a clean shutdown left them."""
        self.flushed_offset = flushed_offset
        self.closing = False
        """Whether this is the last sync, which leaves nothing to rebuild."""
        self.hurried = False
        """Whether a sync that finds no room gives up, instead of waiting for it."""
        self._disk = disk
        self._segments = segments
        self._snapshots = snapshots
        self._epochs = epochs
        self._end = end
        self._fail = fail
        self._refused = refused
        self._make_room = make_room
        self._failed: KafkaError | None = None
        self._sync_parent = sync_parent
        self._commit = GroupCommit(self._sync)
        self._files_new = not durable
        """Whether a name in the directory may not be on the device."""
        self._created = not durable
        """Whether the directory itself may not be."""
        # With the one that ends there: that it was trimmed may not be on the device.
        behind = [] if durable else segments.from_offset(flushed_offset - 1)
        self._unsynced = [
            each
            for each in segments
            if each is not segments.active and (each in behind or each.aborted_dirty)
        ]
        """Sealed segments that may not be on the device."""
        self._wanted = _NOBODY
        """How far those want to flush who wait for the next sync."""
        self._generation = 0
        """Counts truncations: a sync that began before one proves nothing about what came after."""

    @property
    def settled(self) -> bool:
        """Whether a sync would find nothing to do, as far as this knows."""
        return (
            self.flushed_offset == self._end()
            and not (self._files_new or self._unsynced or self._epochs.dirty)
            and not self._segments.active.aborted_dirty
        )

    @property
    def generation(self) -> int:
        return self._generation

    def rolled(self, sealed: Segment) -> None:
        self._unsynced.append(sealed)
        self._files_new = True

    def dropped(self, segment: Segment) -> None:
        if segment in self._unsynced:
            self._unsynced.remove(segment)

    def truncated(self, end_offset: int) -> None:
        self._generation += 1
        self._files_new = True
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def renamed(self) -> None:
        self._files_new = self._created = True

    async def flush(self, target: int) -> None:
        """Returns when everything before `target`, as far as it still exists, is durable."""
        while self.flushed_offset < min(target, self._end()):
            self._wanted = max(self._wanted, target)
            await self._commit.join()

    async def sync(self) -> None:
        """One sync of everything, whether or not a record waits for it."""
        self._wanted = self._end() + 1
        await self._commit.join()

    async def sync_snapshots(self) -> None:
        """Without waiting for room: NoRoom where one of them cannot be looked at now."""
        await self._write_snapshot()
        try:
            await self._snapshots.sync(partial(self._with_room, patient=False))
        except _Full as full:
            raise self._refused("cannot be flushed", full.cause) from full.cause
        except OSError as error:
            self._failed = self._fail(error)
            raise anew(self._failed) from error

    def _take_back(self, sealed: list[Segment], files_new: bool, created: bool) -> None:
        """What a sync did not get to is left to the next one."""
        self._unsynced = sealed + self._unsynced
        self._files_new = self._files_new or files_new
        self._created = self._created or created

    async def _sync(self) -> None:
        if self._failed is not None:
            raise anew(self._failed)
        await self._write_snapshot()
        active, generation = self._segments.active, self._generation
        wanted, self._wanted = self._wanted > active.base_offset, _NOBODY
        end = self._end() if wanted else active.base_offset
        sealed, files_new, created = self._unsynced, self._files_new, self._created
        self._unsynced, self._files_new, self._created = [], False, False
        try:
            await self._write_epochs()
            for segment in sealed:
                await self._sync_segment(segment, True)
            if wanted:
                await self._sync_segment(active, self.closing)
            await self._snapshots.sync(self._with_room)
            if files_new:
                await self._sync_names(partial(self._disk.sync_dir, self._segments.directory))
            if created:
                await self._sync_creation()
        except _Full as full:
            self._take_back(sealed, files_new, created)
            raise self._refused("cannot be flushed", full.cause) from full.cause
        except OSError as error:
            self._failed = self._fail(error)
            raise anew(self._failed) from error
        except asyncio.CancelledError:
            self._take_back(sealed, True, created)
            raise
        if generation == self._generation:
            self.flushed_offset = max(self.flushed_offset, end)

    async def _write_snapshot(self) -> None:
        """That of many producers. A full device costs the next start more reading; the next sync
        tries again."""
        try:
            await self._snapshots.write_captured()
        except OSError as error:
            refused = self._refused("cannot take a snapshot of its producers", error)
            if error.errno not in FULL:
                raise refused from error

    async def _sync_segment(self, segment: Segment, complete: bool) -> None:
        """One that has left the log meanwhile, by its age or by compaction, needs none."""
        if not self._stands(segment):
            return
        self._segments.touch(segment)
        try:
            await segment.sync(complete, self._with_room)
        except FileNotFoundError:
            if self._stands(segment):
                raise

    def _stands(self, segment: Segment) -> bool:
        return any(each is segment for each in self._segments)

    async def _sync_creation(self) -> None:
        """The directory's own name, and the file that says whose it is."""
        with suppress(FileNotFoundError):
            path = f"{self._segments.directory}/{PARTITION_METADATA}"
            file = await opened(self._with_room, self._disk, path)
            try:
                await file.datasync()
            finally:
                file.close()
        await self._sync_names(self._sync_parent)

    async def _sync_names(self, sync: Callable[[], Awaitable[None]]) -> None:
        """Waits only for a file to open the directory by; a sync that failed is not repeated."""
        await self._with_room(sync, NO_FILE)

    async def _write_epochs(self) -> None:
        if self._epochs.dirty:
            self._epochs.dirty = False
            try:
                await self._with_room(
                    lambda: self._disk.write_atomic(
                        f"{self._segments.directory}/{LEADER_EPOCHS}", self._epochs.encode()
                    )
                )
            except BaseException:
                self._epochs.dirty = True
                raise

    async def _with_room(
        self, write: Write, full: Container[int] = FULL, patient: bool = True
    ) -> None:
        """Writes what memory has, too, as soon as it fits; a log that closes does not wait."""
        while True:
            try:
                if (writing := write()) is not None:
                    await writing
                return
            except OSError as error:
                if error.errno not in full:
                    raise
                if self._make_room():
                    continue
                if self.closing or self.hurried or not patient:
                    raise _Full(error) from error
                self._refused("waits to be flushed", error)
            await asyncio.sleep(_UNTIL_ROOM_S)


class _Full(Exception):
    """What belongs beside the batches does not fit, and nobody waits until it does."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause
