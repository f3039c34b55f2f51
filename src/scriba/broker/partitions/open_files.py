"""Files of logs that are closed while nobody uses them: a process may have so many open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from scriba.broker.ports import BackgroundTasks, EventLog, WorldAccess
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition


class OpenFilesHost(BackgroundTasks, EventLog, WorldAccess, Protocol):
    """What closing files takes."""


class OpenFiles:
    """Has logs close their files when the disk says that too many are open."""

    def __init__(self, node: OpenFilesHost, partitions: Iterable[Partition]) -> None:
        self._node = node
        self._partitions = partitions
        self._closing: asyncio.Task[None] | None = None
        self._hand = 0
        loop = asyncio.get_running_loop()
        node.world.disk.when_crowded(lambda: loop.call_soon_threadsafe(self.crowded))

    def crowded(self) -> None:
        if self._closing is None or self._closing.done():
            self._closing = self._node.tasks.spawn(self._close_idle(), name="open files")

    async def _close_idle(self) -> None:
        """Has logs close their files until enough are closed.

        A hand goes round the partitions and asks each; one that was in use since it was last asked
        may keep its files, unless two rounds were not enough.
        """
        disk = self._node.world.disk
        pace = Pace(self._node.world.clock)
        everyone = tuple(self._partitions)
        start = self._hand
        for turn in range(3 * len(everyone)):
            if disk.open_files <= disk.most_files - disk.most_files // 4:
                return
            self._hand = (start + turn) % len(everyone)
            partition = everyone[self._hand]
            try:
                partition.log.close_if_idle(even_if_busy=turn >= 2 * len(everyone))
            except KafkaError as error:
                self._node.note(EventKind.FILES_NOT_CLOSED, repr(partition), str(error))
            await pace()
