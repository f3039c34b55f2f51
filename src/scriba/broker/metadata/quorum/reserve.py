"""Room on the device that is kept for the metadata log.

Records of clients fill a device to its last byte. From then on a controller could not write that a
topic is deleted, which is what would make room, nor a voter its vote. So a file beside the metadata
log (`scriba.metadata.reserve.bytes`) holds room for it from the start. When the device refuses a
write of the metadata log or of `quorum-state`, the file shrinks by as much as the write needs, and
the write is tried again at once. A batch of the log is appended in the same turn of the event loop,
so nobody else of this process can take its room. What a thread writes beside it (`quorum-state`,
the epochs) may find that a client was quicker, and is tried again for as long as something is left.
A write that is larger than all there is gets nothing: smaller ones can still be served, and one of
them may delete a topic. Snapshots get nothing either. They can wait.

What was given is taken back once the device has room for it twice.
"""

from __future__ import annotations

from typing import Final

from scriba.broker.observe.events import Note
from scriba.events import EventKind
from scriba.runtime.ports import Disk

NAME: Final = "reserve"
STEP: Final = 8 << 10
"""What is given beyond the need, for the file system's own blocks. Whatever is left of it clients
may take, so it is small."""
FULL_BELOW: Final = 1 << 20
"""A device with more than this, and than the need, has refused for another reason than room."""


class MetadataReserve:
    def __init__(self, disk: Disk, directory: str, size: int, note: Note) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._note = note
        self.size = size
        self.left = 0
        self._used = False

    @property
    def whole(self) -> bool:
        return self.left >= self.size

    async def take(self) -> bool:
        """Takes what is missing if there is room for it twice; whether to try again later."""
        disk = self._disk
        try:
            self.left = disk.size(self._path) if disk.exists(self._path) else 0
            if self.left > self.size:
                self._shrink(self.size)
            missing = self.size - self.left
            if missing and disk.space(self._directory)[1] < 2 * missing:
                return True
            if self.size:
                await disk.allocate(self._path, self.size)
                # Not what was asked for: some may have been given away meanwhile.
                self.left = disk.size(self._path) if disk.exists(self._path) else 0
        except OSError:
            return self._may_come()
        if not self.whole:
            return True
        if self._used:
            self._used = False
            text = f"{self.size} bytes are kept for the metadata log again"
            self._note(EventKind.METADATA_RESERVE_RESTORED, self._directory, text)
        return False

    def _may_come(self) -> bool:
        """Whether the device lacks the room; else the reserve cannot be had there at all."""
        try:
            return self._disk.space(self._directory)[1] < 2 * self.size
        except OSError:
            return False

    def give(self, need: int = 0) -> bool:
        """Gives room for a write that the device did not take; False where that cannot help."""
        if not self.left:
            return False
        try:
            free = self._disk.space(self._directory)[1]
            if free > max(need, FULL_BELOW) or free + self.left < need:
                return False
            # Never nothing: whoever asks again must come to an end.
            self._shrink(max(self.left - max(need + STEP - free, STEP), 0))
        except FileNotFoundError:
            self.left = 0
            return False
        except OSError:
            return False
        if not self._used:
            self._used = True
            text = f"the device is full: the metadata log lives on what was kept, {self.left} bytes"
            self._note(EventKind.METADATA_RESERVE_USED, self._directory, text)
        return True

    def _shrink(self, size: int) -> None:
        """To nothing means that the file goes, too."""
        if not size:
            self._disk.unlink(self._path)
        else:
            file = self._disk.open(self._path)
            try:
                file.truncate(size)
            finally:
                file.close()
        self.left = size
