"""The log directories of a node: taken at its start, watched while it runs, closed at its end.

All are looked at before any is changed. What a device does not take is counted and told; a failed
directory takes its replicas offline, and the last one the node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import (
    BackgroundTasks,
    Configuration,
    Counting,
    EventLog,
    WorldAccess,
)
from scriba.config import StartError, StorageLost
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.settings.node import ALL_DIRS
from scriba.storage.directory.last_run import LastRun
from scriba.storage.directory.logdir import DeviceFailed, LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import METADATA_TOPIC

if TYPE_CHECKING:
    from scriba.storage.log import Log

log = logging.getLogger(__name__)

LEAST_ROOM_BYTES: Final = 64 << 10
"""A log directory with less is full for a new partition: five files and a name."""


class FailableReplicas(Protocol):
    def offline(self, name: PartitionName, error: KafkaError) -> None:
        """A replica that cannot be used: it leads nothing, and clients are told why."""


class LogDirHost(BackgroundTasks, Configuration, Counting, EventLog, WorldAccess, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def replicas(self) -> FailableReplicas: ...

    def on_log_dir_failed(self) -> None:
        """One of several directories is of no use any more."""


class LogDirs:
    def __init__(self, node: LogDirHost) -> None:
        self._node = node
        self._new_ids: dict[str, bytes] = {}
        self.data: list[LogDir] = []
        """Where replicas lie."""
        self.all: list[LogDir] = []
        """Those, and the one of the metadata log if it has one of its own."""
        self._run: LastRun | None = None
        """What they are to say of this process; None once they are not to be trusted."""
        self._marked = False

    # ---- start and end ----

    def take(self) -> str | None:
        """Locks every directory; the id of the cluster that they belong to, None if they are new.

        Nothing is changed. One whose device has failed is offline, if the node can do without it.
        """
        node = self._node
        settings, world = node.settings, node.world
        failed: list[DeviceFailed] = []
        for path in dict.fromkeys((*settings.data_dirs, settings.metadata_dir)):
            try:
                directory = LogDir.open(
                    world.disk, path, world.offload, self._on_failure, self.on_refused
                )
            except DeviceFailed as error:
                failed.append(error)
                directory = LogDir.unusable(world.disk, path, world.offload, error.why)
            self.all.append(directory)
        self.data = self.all[: len(settings.data_dirs)]
        if failed and (self.metadata_home.offline or all(each.offline for each in self.data)):
            raise failed[0]
        self._check_metadata_home()
        known = [d.meta.cluster_id for d in self.all if d.meta is not None]
        for directory in self.all if known else ():
            directory.check_owner(known[0], node.id)
        self._new_ids = {d.path: world.rng.uuid() for d in self.all}
        return known[0] if known else None

    async def adopt(self, cluster_id: str, begin: Callable[[], None]) -> None:
        """Makes every directory this node's in that cluster.

        `begin` is called once they are, before they forget how the last process ended.
        """
        for directory in self.all:
            directory.check_owner(cluster_id, self._node.id)
        for directory in self.all:
            await directory.adopt(cluster_id, self._node.id, self._new_ids[directory.path])
        begin()
        for directory in self.all:
            await self._use(directory)

    async def _use(self, directory: LogDir) -> None:
        """One whose device has failed is offline from the start on. Where it is the only one, or
        has the metadata, the node cannot do without it."""
        if directory.failure is not None:
            self._on_failure(directory, None, directory.failure)
        else:
            try:
                with directory.guarded("it cannot be used"):
                    await directory.start()
            except KafkaError:
                if directory.failure is None:
                    raise
        if directory.offline and (
            directory is self.metadata_home or all(each.offline for each in self.data)
        ):
            raise StartError(
                f"log directory {directory.path} is offline: {directory.failure}; "
                "check the disk and start again"
            )

    @property
    def metadata_id(self) -> bytes:
        """The id that the directory of the metadata has, or will have once it is adopted."""
        meta = self.metadata_home.meta
        known = None if meta is None else meta.directory_id
        return self._new_ids[self.metadata_home.path] if known is None else known

    @property
    def metadata_home(self) -> LogDir:
        return next(d for d in self.all if d.path == self._node.settings.metadata_dir)

    def _check_metadata_home(self) -> None:
        home = self.metadata_home
        for other in self.all:
            if other is not home and other.holds(METADATA_TOPIC, 0):
                raise StartError(
                    f"{other.path} holds {METADATA_TOPIC}-0, but the metadata belongs into "
                    f"{home.path}: move it there, or set metadata.log.dir={other.path}"
                )

    async def close(self, broker_epoch: int) -> None:
        """Closes every log and marks the directories as cleanly shut down."""
        for directory in self.all:
            await directory.close(broker_epoch)

    def release(self) -> None:
        """Lets go of the directories and leaves their files as they are."""
        for directory in self.all:
            directory.release()

    # ---- while running ----

    def ids(self) -> list[bytes]:
        return [directory.id for directory in self.data]

    def offline_ids(self) -> list[bytes]:
        return [directory.id for directory in self.data if directory.failure is not None]

    def cordoned_ids(self) -> list[bytes]:
        """Directories that get no new partitions: as an administrator says, or nearly full."""
        return [directory.id for directory in self.data if self.is_cordoned(directory)]

    def is_cordoned(self, directory: LogDir) -> bool:
        named = self._node.settings.cordoned_log_dirs
        return directory.closed is not None or ALL_DIRS in named or directory.path in named

    def begin_run(self, incarnation: bytes) -> tuple[bytes, int]:
        """The incarnation to register under, and the broker's epoch up to which nothing was lost.

        That is -1 unless every directory says the same: by a clean shutdown, or since its last
        process was killed on a machine that ran on. A directory that is new, was copied or restored
        says nothing. Then nobody knows what a crash left (KIP-966).
        """
        before = [_last_run(directory) for directory in self.data if not directory.offline]
        epochs = {-1 if run is None else run.previous_epoch for run in before}
        previous = epochs.pop() if len(epochs) == 1 else -1
        unanswered = {b"" if run is None else run.incarnation for run in before}
        same = unanswered.pop() if len(unanswered) == 1 else b""
        self._run = LastRun(same or incarnation, -1, previous)
        if not self.mark() and same:
            # What is left there would say later that this process never got an epoch.
            self._run = LastRun(incarnation, -1, previous)
        return self._run.incarnation, previous

    def registered(self, broker_epoch: int) -> None:
        """From now on a process that is killed leaves what this epoch stands for."""
        if self._run is not None:
            self._run = self._run._replace(broker_epoch=broker_epoch)
            self._marked = False
            self.mark()

    def mark(self) -> bool:
        """Has every directory name this process, if they do not yet; whether they do.

        A full device is asked again later: until then a process that is killed counts as crashed.
        """
        if self._run is None or self._marked:
            return self._marked
        try:
            for directory in self.data:
                directory.mark(self._run)
            self._marked = True
        except OSError as error:
            log.info("a killed broker will count as one that crashed: %s", error)
            for directory in self.data:
                directory.unmark()
        return self._marked

    def distrust(self) -> None:
        """A device failed, or a log: what the page cache shows may never reach a device."""
        self._run, self._marked = None, False
        for directory in self.data:
            directory.unmark()

    def has_room(self) -> bool:
        """Whether a partition more can be made: some file system blocks for its files."""
        return any(
            directory.has_room(LEAST_ROOM_BYTES) and not self.is_cordoned(directory)
            for directory in self.data
        )

    def on_refused(self, path: str, what: str) -> None:
        """A device did not take a write: counted each time, told once a minute.

        Whatever it was (a batch, a checkpoint, a new partition), it is tried again by whoever
        needs it, so that all goes on by itself once the device takes writes.
        """
        self._node.counters.refused_writes += 1
        text = f"takes no writes, reads go on: {what}"
        self._node.note(EventKind.WRITE_REFUSED, path, text)

    def _on_failure(self, directory: LogDir, store: Log | None, why: str) -> None:
        node = self._node
        self.distrust()
        if store is not None:
            name = PartitionName(store.topic, store.partition)
            node.replicas.offline(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))
            return
        node.note(EventKind.LOG_DIR_OFFLINE, directory.path, why)
        if all(each.offline for each in self.data):
            # All it could do from here is to answer errors. A supervisor starts it again,
            # which is what a device needs that has come back.
            node.tasks.fail(
                StorageLost(
                    f"every log directory is offline, the last one {directory.path}: {why}; "
                    "check the disks and start again"
                )
            )
        else:
            node.on_log_dir_failed()


def _last_run(directory: LogDir) -> LastRun | None:
    """What the directory says of the process before this one: with the epoch up to which nothing
    was lost, and the incarnation under which it may have registered without an answer."""
    if directory.clean:
        return LastRun(b"", -1, directory.broker_epoch)
    run = directory.last_run
    if run is not None and run.broker_epoch >= 0:
        return LastRun(b"", -1, run.broker_epoch)
    return run
