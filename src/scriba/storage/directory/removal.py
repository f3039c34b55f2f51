"""Files that have left the log but not yet the disk.

Readers may still be sending from them, and an operator may want them back: they are renamed at
once, so that no restart takes them for segments, and removed after `file.delete.delay.ms`.
"""

from collections.abc import Callable
from contextlib import suppress

from scriba.runtime.ports import Disk, File, Offload
from scriba.storage.directory.names import DELETED, SEGMENT_SUFFIXES
from scriba.storage.results import FULL
from scriba.storage.segments.segment import Segment


class Removal:
    __slots__ = ("_disk", "_offload", "_scheduled_deletions")

    def __init__(self, disk: Disk, offload: Offload) -> None:
        self._disk = disk
        self._offload = offload
        self._scheduled_deletions: list[tuple[int, list[str], File | None]] = []

    def schedule_deletion(self, segment: Segment, snapshot: str | None, deadline_ms: int) -> None:
        """Takes a segment out of the log's sight, with the producer snapshot at its base."""
        paths = []
        for path in (*map(segment.path, SEGMENT_SUFFIXES), *((snapshot,) if snapshot else ())):
            with suppress(FileNotFoundError):
                try:
                    self._disk.rename(path, path + DELETED)
                    paths.append(path + DELETED)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    # Not even the longer name fits: the file goes now, and makes room.
                    self._disk.unlink(path)
        self._scheduled_deletions.append((deadline_ms, paths, segment.release_file()))

    def moved(self, old: str, new: str) -> None:
        """The files are in a directory of another name now."""
        self._scheduled_deletions = [
            (deadline, [new + path.removeprefix(old) for path in paths], file)
            for deadline, paths, file in self._scheduled_deletions
        ]

    async def sweep(self, now_ms: int) -> int:
        """One pass: removes what is due."""
        removed = 0
        while self._scheduled_deletions and self._scheduled_deletions[0][0] <= now_ms:
            _, paths, doomed = self._scheduled_deletions.pop(0)
            if doomed is not None:
                doomed.close()
            for path in paths:
                with suppress(FileNotFoundError):
                    await self._offload.run(self._disk.unlink, path)
            removed += 1
        return removed

    def close(self) -> None:
        """Closes everything; what is not removed yet goes at the next start."""
        for _, _, file in self._scheduled_deletions:
            if file is not None:
                file.close()
        self._scheduled_deletions.clear()


async def remove_tree(disk: Disk, offload: Offload, directory: str) -> None:
    """Removes a partition's directory with its files, if it is still there."""
    if not disk.exists(directory):
        return
    for name in disk.list(directory):
        with suppress(FileNotFoundError):
            await offload.run(disk.unlink, f"{directory}/{name}")
    with suppress(FileNotFoundError):
        await offload.run(disk.rmdir, directory)


def unused_dir(disk: Disk, parent: str, named: Callable[[bytes], str], unique: bytes) -> str:
    """The path of a directory that is not there yet, by this id or the next that is free."""
    while disk.exists(path := f"{parent}/{named(unique)}"):
        unique = bytes([*unique[:15], (unique[15] + 1) % 256])
    return path
