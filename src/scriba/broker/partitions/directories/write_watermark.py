"""Log directories whose volume is nearly full: they take no more records of clients.

At `scriba.log.dirs.write.watermark` a directory is closed to clients. A Produce to a partition in
it is refused as on a full device (`NoRoom`), with the reason; leaderships go to other in-sync
replicas, and no new partition is put there. All else goes on: reads, retention, deletion,
replication, coordinators, markers of transactions and the metadata log, for which the room above
the mark is the reserve. A device that is full to the last byte can do none of this.

What cannot be handed over at once (the controller is away, the partition moves, nobody else is in
sync or has room), and what this broker comes to lead while a directory is closed, is handed over as
soon as it can be. Below the mark a directory opens by itself, with some distance, so that one
deleted segment does not open it for a second. The orders of replicas from before are put back then;
they are kept in the directory (`handed_over`), so that a restart does not lose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.partitions.directories import handed_over
from scriba.broker.partitions.replication.handover import (
    HandoverHost,
    Orders,
    carry_out,
    plan,
    put_back,
)
from scriba.broker.ports import BrokerIdentity, Configuration, EventLog, WorldAccess
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.runtime.loop.pace import Pace
from scriba.storage.results import NoRoom

if TYPE_CHECKING:
    from scriba.broker.partitions.replicas import Replicas
    from scriba.controller.image import BrokerImage
    from scriba.storage.directory.logdir import LogDir

DISTANCE_SHARE: Final = 0.02
DISTANCE_BYTES: Final = 1 << 30
"""How far below the mark a directory opens again: a fiftieth of the volume, or this if that is
less."""
AGAIN_MS: Final = 10_000
"""How often a closed directory hands over what it leads, and an open one puts back what is left."""


class WatermarkHost(BrokerIdentity, Configuration, EventLog, HandoverHost, WorldAccess, Protocol):
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
        self._due_ms: dict[LogDir, int] = {}
        """When the next are handed over, or put back."""
        self._done: set[LogDir] = set()
        """Closed directories whose leaderships the controller was asked to give to others."""

    async def look(self) -> None:
        """Closes and opens directories as their volumes are now."""
        for directory in self._node.replicas.dirs:
            if directory.failure is None:
                await self._look_at(directory)

    async def _look_at(self, directory: LogDir) -> None:
        node = self._node
        watermark = node.settings.scriba_log_dirs_write_watermark
        if directory not in self._handed:
            self._handed[directory] = handed_over.read(node.world.disk, directory.path)
        if not (watermark or directory.closed or self._handed[directory]):
            return
        try:
            with directory.guarded("its volume cannot be looked at"):
                total, usable = node.world.disk.space(directory.path)
        except KafkaError:
            return  # it is offline now, and has said so
        before = directory.closed is not None
        closed = is_closed(before, total, usable, watermark)
        if closed and not before:
            await self._close(directory, total, usable)
        elif before and not closed:
            await self._open(directory, total, usable)
        now_ms = node.world.clock.mono_ms()
        own = node.image.brokers.get(node.id)
        if own is None or own.epoch != node.broker_epoch or not own.active:
            return  # it leads nothing, and may not know the whole cluster yet
        if closed != before or now_ms >= self._due_ms.get(directory, 0):
            self._due_ms[directory] = now_ms + AGAIN_MS
            if closed:
                await self._hand_over(directory, own)
            elif self._handed[directory]:
                await self._put_back(directory)

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

    async def _open(self, directory: LogDir, total: int, usable: int) -> None:
        node = self._node
        directory.closed = None
        text = f"takes records again: {(total - usable) / total:.1%} of its volume in use"
        node.note(EventKind.WRITE_WATERMARK_LEFT, directory.path, text)
        self._done.discard(directory)
        await self._tell(directory)

    async def _hand_over(self, directory: LogDir, own: BrokerImage) -> None:
        """Has others lead what this broker leads there.

        Once, until the cluster knows that the directory is closed: brokers that do not know it of
        each other (below the level that has cordons) would hand leaderships back and forth.
        """
        if directory in self._done and directory.id not in own.cordoned_directories:
            return
        node, orders = self._node, self._handed[directory]
        known = dict(orders)
        led = [each for each in node.replicas.in_dir(directory) if each.leader is not None]
        wanted = await plan(node, led, orders, even_cordoned=False)
        if orders != known:
            await self._keep(directory)
        try:
            await carry_out(node, wanted)
        except KafkaError:
            return  # clients try again, and whoever leads refuses them
        self._done.add(directory)

    async def _put_back(self, directory: LogDir) -> None:
        try:
            self._handed[directory] = await put_back(self._node, self._handed[directory])
        except KafkaError:
            return  # the others lead on, and are the first of the replicas
        await self._keep(directory)

    async def _keep(self, directory: LogDir) -> None:
        """Has the orders survive a restart, if the device takes them."""
        node, world = self._node, self._node.world
        try:
            orders = self._handed[directory]
            await handed_over.write(world.disk, world.clock, directory.path, orders)
        except OSError as error:
            text = f"{handed_over.HANDED_OVER} cannot be written: {error}"
            node.note(EventKind.CHECKPOINT_FAILED, directory.path, text)

    async def _tell(self, directory: LogDir) -> None:
        pace = Pace(self._node.world.clock)
        for partition in tuple(self._node.replicas.in_dir(directory)):
            partition.closed = directory.closed
            await pace()
