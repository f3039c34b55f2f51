"""Log directories whose volume is nearly full: they take no more records of clients.

At `scriba.log.dirs.write.watermark` a directory is closed to clients. A Produce to a partition in
it is refused as on a full device (`NoRoom`), with the reason; leaderships go to other in-sync
replicas, and no new partition is put there. All else goes on: reads, retention, deletion,
replication, coordinators, markers of transactions and the metadata log, for which the room above
the mark is the reserve. A device that is full to the last byte can do none of this.

Below the mark it opens by itself, with some distance, so that one deleted segment does not open it
for a second.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.partitions.replication.handover import HandoverHost, Orders, hand_over, put_back
from scriba.broker.ports import BackgroundTasks, Configuration, EventLog, WorldAccess
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.runtime.loop.pace import Pace
from scriba.storage.results import NoRoom

if TYPE_CHECKING:
    from scriba.broker.partitions.replicas import Replicas
    from scriba.storage.directory.logdir import LogDir

DISTANCE_SHARE: Final = 0.02
DISTANCE_BYTES: Final = 1 << 30
"""How far below the mark a directory opens again: a fiftieth of the volume, or this if that is
less."""


class WatermarkHost(BackgroundTasks, Configuration, EventLog, HandoverHost, WorldAccess, Protocol):
    @property
    def replicas(self) -> Replicas: ...


def is_closed(before: bool, total: int, usable: int, watermark: float) -> bool:
    """Whether a volume is too full for clients; `before`, whether it was."""
    if not watermark or total <= 0:
        return False
    mark = total * watermark
    if before:
        mark -= min(total * DISTANCE_SHARE, DISTANCE_BYTES)
    return total - usable >= mark


class WriteWatermarks:
    def __init__(self, node: WatermarkHost) -> None:
        self._node = node
        self._handed: dict[LogDir, Orders] = {}
        """By directory what was handed over, with the orders of replicas before."""

    async def look(self) -> None:
        """Closes and opens directories as their volumes are now."""
        node = self._node
        watermark = node.settings.scriba_log_dirs_write_watermark
        for directory in node.replicas.dirs:
            if directory.failure is not None or not (watermark or directory.closed):
                continue
            total, usable = node.world.disk.space(directory.path)
            before = directory.closed is not None
            closed = is_closed(before, total, usable, watermark)
            if closed and not before:
                await self._close(directory, total, usable)
            elif before and not closed:
                await self._open(directory, total, usable)

    async def _close(self, directory: LogDir, total: int, usable: int) -> None:
        node = self._node
        share = f"{(total - usable) / total:.1%} of its volume in use"
        directory.closed = NoRoom(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"log directory {directory.path} of broker {node.id} takes no records of clients: "
            f"{share}, scriba.log.dirs.write.watermark is "
            f"{node.settings.scriba_log_dirs_write_watermark:g}; make room, and it goes on",
        )
        text = f"takes no more records of clients: {share}"
        node.note(EventKind.WRITE_WATERMARK_REACHED, directory.path, text)
        await self._tell(directory)
        try:
            handed = await hand_over(node, list(node.replicas.in_dir(directory)))
        except KafkaError:
            return  # clients try again, and whoever leads refuses them
        self._handed.setdefault(directory, {}).update(handed)

    async def _open(self, directory: LogDir, total: int, usable: int) -> None:
        node = self._node
        directory.closed = None
        text = f"takes records again: {(total - usable) / total:.1%} of its volume in use"
        node.note(EventKind.WRITE_WATERMARK_LEFT, directory.path, text)
        await self._tell(directory)
        with suppress(KafkaError):  # else the others lead on, and are the first of the replicas
            await put_back(node, self._handed.pop(directory, {}))

    async def _tell(self, directory: LogDir) -> None:
        pace = Pace(self._node.world.clock)
        for partition in tuple(self._node.replicas.in_dir(directory)):
            partition.closed = directory.closed
            await pace()
