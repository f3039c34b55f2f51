"""One of a node's log directories: whose it is, what lies in it, and how it was left.

`open` only looks: it takes the lock and reads. `adopt` says whose the directory must be, before
anything is changed. `start` makes it ours: the mark of a clean shutdown goes, so that a crash from
now on is seen as one. `close` flushes every log, writes the checkpoints and leaves the mark, last.

While a broker runs, another mark (`last_run`) tells under which epoch. It counts for as long as the
machine's page cache does: a process that was killed has lost nothing of what it had written.

The recovery points on disk are promises: everything below them is on the device. So one is never
above what its log still has: it is lowered before a truncation, and forgotten before another log
begins under the same name.

A device that fails takes all its logs with it. One that is full takes nothing: what does not fit
is refused (`NoRoom`), and whoever asked may ask again.
"""

import asyncio
import json
import logging
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from errno import ENOENT
from functools import partial
from typing import Any, Final

from scriba.config import StartError
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.runtime.loop.pace import next_turn
from scriba.runtime.ports import DirLock, Disk, Mark, Offload
from scriba.settings import TopicSettings
from scriba.storage.compaction.cleaner import Rewritten
from scriba.storage.compaction.log import Stale
from scriba.storage.directory.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    Checkpoint,
)
from scriba.storage.directory.last_run import FILE_NAME as LAST_RUN
from scriba.storage.directory.last_run import LastRun
from scriba.storage.directory.meta_properties import FILE_NAME as META_PROPERTIES
from scriba.storage.directory.meta_properties import MetaProperties
from scriba.storage.directory.names import (
    DELETED_DIR,
    FUTURE_DIR,
    PartitionName,
    deleted_dir,
    future_dir,
    parse_apart,
    parse_partition_dir,
    partition_dir,
    stray_dir,
)
from scriba.storage.directory.partition_metadata import read_topic_id
from scriba.storage.directory.removal import remove_tree, unused_dir
from scriba.storage.group_commit import GroupCommit
from scriba.storage.log import DAY_MS, METADATA_TOPIC, Failure, Log
from scriba.storage.results import FAILED, FULL, NoRoom, storage_error
from scriba.storage.segments.cut import Cut, cut_files

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_CLOSING_AT_ONCE: Final = 16
_SYNCED_AT_ONCE: Final = 16
LOOKED_AT_ONCE: Final = 500
"""Logs that are looked at for a checkpoint in one slice of the loop."""


class DeviceFailed(StartError):
    """A log directory whose device does not let a node use it; `why` in few words."""

    def __init__(self, path: str, error: OSError) -> None:
        self.why = f"it cannot be used: {error.strerror}"
        super().__init__(
            f"{path} cannot be used as a log directory: {error.strerror}; "
            "choose another with --data or log.dirs"
        )


class LogDir:
    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DirLock | None,
        offload: Offload,
        on_failure: Callable[["LogDir", Log | None, str], None] | None,
        on_refused: Callable[[str, str], None] | None,
        *,
        readable: bool = True,
    ) -> None:
        """Without a lock nothing may be changed in it."""
        checkpoint = partial(Checkpoint, disk, path, readable=readable)
        self.path = path
        self.readable = readable
        """Whether anybody knows whose directory it is, and what lies there."""
        self.logs: dict[PartitionName, Log] = {}
        self.futures: dict[PartitionName, Log] = {}
        """Replicas on their way here from another directory of this broker (KIP-113)."""
        self.meta: MetaProperties | None = None
        self.clean = False
        """Whether the last shutdown was clean."""
        self.broker_epoch = -1
        """The broker's epoch at that shutdown, -1 if unknown (KIP-966)."""
        self.last_run: LastRun | None = None
        """What the last process left, if the machine has lost nothing of it since."""
        self._mark: Mark | None = None
        self.high_watermarks = checkpoint(HIGH_WATERMARKS)
        """As of the last look at all of them."""
        self.compacted = checkpoint(CLEANER_OFFSETS)
        """How far each log is compacted, as of its last compaction."""
        self.failure: str | None = None
        self.closed: NoRoom | None = None
        """Why clients' records are refused, while they are: the volume is nearly full."""
        self._disk = disk
        self._lock = lock
        self._offload = offload
        self._on_failure = on_failure
        self._on_refused = on_refused
        self._recovery_points = checkpoint(RECOVERY_POINTS)
        self._truncating: dict[PartitionName, int] = {}
        """How far the recovery points of logs may go that are being truncated."""
        self._log_starts = checkpoint(LOG_STARTS)
        self._cut: set[PartitionName] = set()
        """Logs whose tail was cut off when they were opened, which may not be on the device."""
        self._left_clean: set[str] = set()
        """Directories of logs that nobody has opened since a clean shutdown."""
        self._names = GroupCommit(lambda: disk.sync_dir(path))
        """Makes the names of new partitions durable, for many at once."""

    # ---- opening ----

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        offload: Offload,
        on_failure: Callable[["LogDir", Log | None, str], None] | None = None,
        on_refused: Callable[[str, str], None] | None = None,
    ) -> "LogDir":
        """Locks the directory and reads what it says about itself. Waits for the device.

        `on_failure` is told of a log that failed, and, with None for a log, of the directory;
        `on_refused` the directory's path and what could not be written, each time. DeviceFailed
        where the device is to blame, StartError where somebody else is.
        """
        try:
            disk.mkdir(path, parents=True)
            lock = disk.lock(path)
        except BlockingIOError:
            raise StartError(
                f"{path} is in use by another running node: stop that one, or choose other log.dirs"
            ) from None
        except OSError as error:
            if error.errno in FAILED:
                raise DeviceFailed(path, error) from None
            raise StartError(
                f"{path} cannot be used as a log directory: {error.strerror}; "
                "choose another with --data or log.dirs"
            ) from None
        try:
            directory = cls(disk, path, lock, offload, on_failure, on_refused)
            directory._look()
        except OSError as error:
            lock.release()
            if error.errno in FAILED:
                raise DeviceFailed(path, error) from None
            raise
        except BaseException:
            lock.release()
            raise
        return directory

    @classmethod
    def unusable(cls, disk: Disk, path: str, offload: Offload, why: str) -> "LogDir":
        """One that is offline before it was used. Nothing is changed in it; what it says about
        itself is known if its device can be read."""
        try:
            directory = cls(disk, path, None, offload, None, None)
            directory._look()
        except OSError:
            directory = cls(disk, path, None, offload, None, None, readable=False)
        directory.failure = why
        return directory

    def _look(self) -> None:
        disk, path = self._disk, self.path
        meta = f"{path}/{META_PROPERTIES}"
        if disk.exists(meta):
            try:
                self.meta = MetaProperties.decode(disk.read(meta))
            except ValueError as error:
                raise StartError(
                    f"{meta} cannot be read ({error}): restore it, or choose other log.dirs"
                ) from None
        marker = f"{path}/{CLEAN_SHUTDOWN}"
        self.clean = disk.exists(marker)
        if self.clean:
            with suppress(ValueError, TypeError, KeyError):
                self.broker_epoch = int(json.loads(disk.read(marker))["brokerEpoch"])
        if (found := disk.marked(f"{path}/{LAST_RUN}")) is not None:
            self.last_run = LastRun.decode(found)

    def check_owner(self, cluster_id: str, node_id: int) -> None:
        """StartError when the directory is another cluster's or another node's."""
        meta = self.meta
        if meta is not None:
            if meta.cluster_id != cluster_id:
                raise StartError(
                    f"{self.path} belongs to cluster {meta.cluster_id}, this is {cluster_id}: "
                    "choose other log.dirs"
                )
            if meta.node_id != node_id:
                raise StartError(
                    f"{self.path} belongs to node {meta.node_id}, this is {node_id}: "
                    f"choose other log.dirs, or set node.id={meta.node_id}"
                )

    async def adopt(self, cluster_id: str, node_id: int, directory_id: bytes) -> None:
        """Makes the directory this node's; `directory_id` is for one that has none.

        One that is offline goes by it as long as this process lives. So does one whose device
        fails now.
        """
        self.check_owner(cluster_id, node_id)
        if self.meta is not None and self.meta.directory_id is not None:
            return
        self.meta = MetaProperties(cluster_id, node_id, directory_id)
        if self.failure is not None:
            return
        try:
            await self._disk.write_atomic(f"{self.path}/{META_PROPERTIES}", self.meta.encode())
        except OSError as error:
            if error.errno in FAILED:
                self.failure = DeviceFailed(self.path, error).why
                return
            raise StartError(
                f"{self.path} cannot be used as a log directory: {error.strerror}; "
                "make room there, or choose another with --data or log.dirs"
            ) from None

    async def start(self) -> None:
        """Begins to use the directory; nothing was changed before."""
        if self.clean:
            self._left_clean = set(self._log_directories())
            self._disk.unlink(f"{self.path}/{CLEAN_SHUTDOWN}")
        if self._recovery_points:
            self._recovery_points.keep(set(self._listed()))
            # Without room they stay as they are: what is gone is forgotten before it comes again.
            with suppress(NoRoom):
                await self._save(self._recovery_points)
        await self._disk.sync_dir(self.path)
        await self._sync_parent()

    async def _sync_parent(self) -> None:
        """Makes the directory itself durable, and those above it, which may be as new: as far up
        as we may look."""
        above = self.path.rstrip("/")
        with suppress(PermissionError):
            while "/" in above:
                above = above.rpartition("/")[0]
                await self._disk.sync_dir(above or "/")

    def mark(self, run: LastRun) -> None:
        """Says who uses the directory now, for as long as the page cache is what it is. OSError
        where it cannot be said."""
        self._mark = self._disk.mark(f"{self.path}/{LAST_RUN}", run.encode())

    def unmark(self) -> None:
        """What is in the page cache is not to be trusted, by the next process either."""
        if self._mark is not None:
            self._mark.revoke()
            self._mark = None

    @property
    def id(self) -> bytes:
        """The directory's own id, known once it is adopted."""
        assert self.meta is not None
        assert self.meta.directory_id is not None
        return self.meta.directory_id

    @property
    def offline(self) -> bool:
        return self.failure is not None

    def holds(self, topic: str, partition: int) -> bool:
        """Whether the partition has a directory here."""
        name = PartitionName(topic, partition)
        return name in self.logs or self._disk.exists(self._directory(name))

    def high_watermark(self, topic: str, partition: int) -> int:
        """As of the last checkpoint, 0 if there is none."""
        return self.high_watermarks.get(PartitionName(topic, partition), 0)

    def _directory(self, name: PartitionName) -> str:
        return f"{self.path}/{partition_dir(*name)}"

    def partitions(self) -> list[PartitionName]:
        """The partitions that have a directory here."""
        return [name for name in self._listed() if name.topic != METADATA_TOPIC]

    def _listed(self) -> list[PartitionName]:
        return [
            name
            for entry in self._disk.list(self.path)
            if (name := parse_partition_dir(entry)) is not None
            and self._disk.is_dir(f"{self.path}/{entry}")
        ]

    def _log_directories(self) -> list[str]:
        """Where the logs of partitions lie, those on their way here included."""
        found = []
        for entry in self._disk.list(self.path):
            name = parse_partition_dir(entry)
            if entry.endswith(FUTURE_DIR) or (name is not None and name.topic != METADATA_TOPIC):
                found.append(f"{self.path}/{entry}")
        return found

    def new_log(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: TopicSettings,
        now: Instant,
    ) -> Log:
        """A log for a partition that has no directory here, and of which no checkpoint tells.

        Nothing is touched: its files come with `make_files`, or else with its first append.
        """
        if self.failure is not None:
            raise self._error()
        name = PartitionName(topic, partition)
        log = Log.new(
            self._disk,
            self._directory(name),
            topic,
            partition,
            topic_id,
            settings,
            now,
            offload=self._offload,
            sync_parent=self._names.join,
        )
        self._add(name, log)
        return log

    async def make_files(self, logs: Sequence[Log]) -> None:
        """Makes the files of new logs, off the loop: a busy disk has its callers wait.

        Those that it came to have them (`has_files`), whatever is raised.
        """
        made: list[Log] = []
        meta = f"{self.path}/{META_PROPERTIES}"

        def make() -> None:
            if self.meta is not None and not self._disk.exists(meta):
                # What is there now is another one, the mount point of a device that is gone say.
                raise FileNotFoundError(ENOENT, "the log directory is no longer there", meta)
            for log in logs:
                log.create_files()
                made.append(log)

        try:
            await self._offload.run(make)
        except OSError as error:
            at = logs[len(made)]
            if error.errno in FULL:
                raise self._refused(f"{at!r} cannot be created", error) from error
            self._fail(f"{at.directory}: {error}")
            raise self._error() from error
        finally:
            for log in made:
                log.has_files = True

    async def open_log(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        settings: TopicSettings,
        now: Instant,
        producer_expiration_ms: int = DAY_MS,
    ) -> Log:
        """Opens the partition's log, or creates it.

        Off the loop where it may take a while: reading after a crash, and making files.
        """
        if self.failure is not None:
            raise self._error()
        name = PartitionName(topic, partition)
        directory = self._directory(name)
        if not self._disk.exists(directory):
            await self.forget((name,))
            log = self.new_log(topic, partition, topic_id, settings, now)
            try:
                await self.make_files((log,))
            except KafkaError:
                self.logs.pop(name, None)
                raise
            return log
        self._left_clean.discard(directory)
        recovery_point = self._recovery_points.get(name)
        log_start = self._log_starts.get(name, 0)

        def open_log() -> Log:
            return Log.open(
                self._disk,
                directory,
                topic,
                partition,
                topic_id,
                settings,
                now,
                recovery_point=recovery_point,
                log_start=log_start,
                clean=self.clean,
                offload=self._offload,
                producer_expiration_ms=producer_expiration_ms,
                sync_parent=self._names.join,
            )

        try:
            if self.clean:
                log = open_log()  # little is read, and nobody is served yet
            else:
                log = await self._offload.run(open_log)
        except OSError as error:
            if error.errno in FULL:
                raise self._refused(f"{topic}-{partition} cannot be opened", error) from error
            self._fail(f"{directory}: {error}")
            raise self._error() from error
        if log.found_full:
            text = f"{log!r} could not write its indexes or its snapshot of producers"
            self._tell_refused(f"{text}: {log.found_full}")
        if log.failure is None and (log.cut_tail or name in self._cut):
            self._cut.add(name)
            await log.sync(hurried=True)
            self._cut.discard(name)
        self._add(name, log)
        if log.failure is not None:  # found when it was opened, perhaps off the loop
            self._log_failed(log, log.failure)
        return log

    def _add(self, name: PartitionName, log: Log) -> None:
        self.logs[name] = log
        log.on_refused = self._tell_refused
        log.on_failure = self._log_failed

    # ---- replicas that come from another directory ----

    def new_future(
        self,
        name: PartitionName,
        topic_id: bytes,
        settings: TopicSettings,
        base_offset: int,
        unique: bytes,
        now: Instant,
    ) -> Log:
        """A log that is to take the place of one in another directory; nothing is touched yet."""
        if self.failure is not None:
            raise self._error()
        log = Log.new(
            self._disk,
            f"{self.path}/{future_dir(*name, unique)}",
            *name,
            topic_id,
            settings,
            now,
            base_offset=base_offset,
            offload=self._offload,
            sync_parent=self._names.join,
        )
        self._add_future(log)
        return log

    def found_futures(self) -> list[tuple[str, PartitionName, bytes | None]]:
        """What earlier runs left on its way here: the entry, whose it is, and the topic's id.

        That is None where a crash came before it was written.
        """
        return [
            (entry, name, read_topic_id(self._disk, f"{self.path}/{entry}"))
            for entry in self._disk.list(self.path)
            if entry.endswith(FUTURE_DIR) and (name := parse_apart(entry)) is not None
        ]

    def took_away(self, topic_id: bytes, partition: int) -> bool:
        """Whether a replica of this partition lay here that was deleted, files and all but done."""
        return any(
            entry.endswith(DELETED_DIR)
            and (name := parse_apart(entry)) is not None
            and name.partition == partition
            and read_topic_id(self._disk, f"{self.path}/{entry}") == topic_id
            for entry in self._disk.list(self.path)
        )

    async def open_future(
        self,
        entry: str,
        name: PartitionName,
        topic_id: bytes,
        settings: TopicSettings,
        now: Instant,
        producer_expiration_ms: int,
    ) -> Log:
        """Opens what an earlier run left on its way here. Off the loop: after a crash all of it is
        read, for no checkpoint tells of it."""
        directory = f"{self.path}/{entry}"
        self._left_clean.discard(directory)

        def open_log() -> Log:
            return Log.open(
                self._disk,
                directory,
                *name,
                topic_id,
                settings,
                now,
                clean=self.clean,
                offload=self._offload,
                producer_expiration_ms=producer_expiration_ms,
                sync_parent=self._names.join,
            )

        try:
            log = await self._offload.run(open_log)
        except OSError as error:
            raise storage_error(f"{directory} cannot be opened: {error}", error) from error
        if log.failure is None and log.cut_tail:
            await log.sync(hurried=True)
        self._add_future(log)
        return log

    def _add_future(self, log: Log) -> None:
        # One that is opened late takes no place of a newer one: whose move begins says which it is.
        self.futures.setdefault(_name_of(log), log)
        log.on_refused = self._tell_refused
        log.on_failure = self._future_failed

    def _future_failed(self, log: Log, failure: Failure) -> None:
        """Nobody is served from it; only its device may be one that others lie on."""
        if failure.device:
            self._fail(failure.error.message)

    async def expect(self, log: Log, start_offset: int) -> None:
        """Has the checkpoints tell nothing of earlier logs of this name, and where it starts."""
        name = _name_of(log)
        await self.forget((name,))
        if start_offset > log.first_segment_offset:
            self._log_starts.set(name, start_offset)
            await self._save(self._log_starts)

    def promote(self, log: Log) -> None:
        """Gives a log that has come here the partition's name. NoRoom: nothing has changed."""
        name = _name_of(log)
        with self.guarded(f"{log!r} cannot be renamed"):
            self._disk.rename(log.directory, self._directory(name))
        log.renamed(self._directory(name))
        self.futures.pop(name, None)
        self._add(name, log)

    async def promoted(self, log: Log, high_watermark: int, compacted: int | None) -> None:
        """Makes a log that was promoted durable here, with what the checkpoints tell of it."""
        name = _name_of(log)
        await log.sync(hurried=True)
        await self._disk.sync_dir(self.path)
        await self.checkpoint_starts()
        if compacted is not None:
            await self.checkpoint_compacted(log, compacted)
        self.high_watermarks.set(name, high_watermark)
        await self.checkpoint_high_watermarks()
        await self._raise_recovery_points((log,))

    async def adopt_future(self, entry: str, name: PartitionName) -> None:
        """Gives a replica the partition's name whose change of directories was interrupted."""
        await self.forget((name,))
        self._disk.rename(f"{self.path}/{entry}", self._directory(name))
        await self._disk.sync_dir(self.path)

    async def rename_stray_future(self, entry: str, name: PartitionName) -> str:
        """Keeps a part of a replica of which nothing else is here, under another name."""
        topic_id = read_topic_id(self._disk, f"{self.path}/{entry}") or bytes(16)
        kept = unused_dir(self._disk, self.path, lambda each: stray_dir(*name, each), topic_id)
        self._disk.rename(f"{self.path}/{entry}", kept)
        await self._disk.sync_dir(self.path)
        return kept

    def drop_future(self, log: Log) -> None:
        """Ends a replica on its way here; its files go with `log.remove_files`."""
        if self.futures.get(_name_of(log)) is log:
            del self.futures[_name_of(log)]
        log.truncation.begin_delete()

    # ---- using ----

    async def truncate(self, log: Log, offset: int, now: Instant) -> bool:
        """Truncates for good: after lowering the recovery point, and durably before any append."""
        before = log.end_offset
        for error in (await self.truncate_all({log: offset}, now)).values():
            raise error
        return offset < before

    async def truncate_all(
        self, offsets: Mapping[Log, int], now: Instant, wholly: Collection[Log] = ()
    ) -> dict[Log, KafkaError]:
        """As `truncate`, for many: their checkpoints are written, and their files cut, in one go.

        The logs in `wholly` lose everything, and go on at their offset. Nobody may append to any of
        them until this returns. Why some could not be truncated, by log; all others are, durably.
        KafkaError: none was begun.
        """
        cut = {log: at for log, at in offsets.items() if at < log.end_offset or log in wholly}
        lowered = {_name_of(log): self._lowered(log, at, log in wholly) for log, at in cut.items()}
        self._truncating.update(lowered)
        try:
            if lowered:
                await self._lower(cut, lowered)
            failed: dict[Log, KafkaError] = {}
            await _to_its_end(self._cut_off(offsets, wholly, now, failed))
            waiting = iter([log for log in cut if log not in failed])

            async def sync_in_turn() -> None:
                for log in waiting:
                    try:
                        await log.sync()
                    except KafkaError as error:
                        failed[log] = error

            await asyncio.gather(*(sync_in_turn() for _ in range(min(len(cut), _SYNCED_AT_ONCE))))
            return failed
        finally:
            for name in lowered:
                self._truncating.pop(name, None)

    async def _lower(self, cut: Mapping[Log, int], lowered: Mapping[PartitionName, int]) -> None:
        """Has no checkpoint tell more of these logs than will be left of them."""
        for name, at in lowered.items():
            self._recovery_points.set(name, at)
        await self._save(self._recovery_points)
        for log, at in cut.items():
            name = _name_of(log)
            if self.compacted.get(name, 0) > at:
                self.compacted.set(name, lowered[name])
        await self._save(self.compacted)

    async def _cut_off(
        self,
        offsets: Mapping[Log, int],
        wholly: Collection[Log],
        now: Instant,
        failed: dict[Log, KafkaError],
    ) -> None:
        """Truncates in memory, and cuts the files; `failed` takes why some cannot be.

        Nobody may be called off in between: a shutdown would count as clean, and the next start
        believe files that were never cut. So one log that fails does not keep others from it.
        """
        cuts: dict[Log, Sequence[Cut]] = {}
        for log, at in offsets.items():
            try:
                if log in wholly:
                    log.truncation.begin_anew(at, now)
                else:
                    producers = await log.truncation.producers_at(at, now)
                    cuts[log] = log.truncation.shorten(at, now, producers)
            except KafkaError as error:
                failed[log] = error
        wanted = [cut for each in cuts.values() for cut in each]
        if wanted:
            try:
                await self._offload.run(cut_files, self._disk, wanted)
            except OSError as error:
                failed |= {log: log.truncation.not_cut(error) for log in cuts if cuts[log]}

    def _lowered(self, log: Log, offset: int, wholly: bool) -> int:
        """The recovery point for a log that is to be truncated to `offset`."""
        known = self._recovery_points.get(_name_of(log), 0)
        if wholly:
            return min(known, offset)
        # A batch goes as a whole, so the new end may be a little before `offset`.
        return min(known, log.segment_start(offset), offset)

    async def take_compacted(
        self, log: Log, rewritten: Rewritten, generation: int, now: Instant
    ) -> None:
        """Swaps a compacted segment in, once recovery will not look at what it replaces.

        Stale where the log was deleted meanwhile: what the checkpoints say is of the next one of
        its name by then. And where it is being truncated: recovery would look.
        """
        await log.flush(rewritten.end_offset)
        name = _name_of(log)
        if self.logs.get(name) is not log:
            raise Stale
        if self._recovery_points.get(name, 0) < rewritten.end_offset:
            await self._raise_recovery_points((log,))
        else:
            await self._save(self._recovery_points)
        if self._recovery_points.get(name, 0) < rewritten.end_offset:
            raise Stale
        await log.take_compacted(rewritten, generation, now)

    def begin_deletion(self, log: Log) -> None:
        """Ends a partition here; its files go with `log.remove_files`.

        The checkpoints may still name it. That harms nobody: they are corrected before another log
        begins under the same name.
        """
        name = _name_of(log)
        self.logs.pop(name, None)
        self.high_watermarks.drop(name)
        self._recovery_points.drop(name)
        log.truncation.begin_delete()

    async def rename_stray(self, name: PartitionName) -> str:
        """Gives a directory that belongs to no partition of the cluster another name, for good.

        Its data is kept: only an operator can know whether it is still wanted.
        """
        topic_id = read_topic_id(self._disk, self._directory(name)) or bytes(16)
        kept = unused_dir(self._disk, self.path, lambda each: stray_dir(*name, each), topic_id)
        self._disk.rename(self._directory(name), kept)
        await self._disk.sync_dir(self.path)
        return kept

    async def discard(self, name: PartitionName, topic_id: bytes) -> bool:
        """Takes a partition away without opening it, for `remove_deleted` to remove; False if the
        files are of another topic."""
        if read_topic_id(self._disk, self._directory(name)) != topic_id:
            return False
        gone = unused_dir(self._disk, self.path, lambda each: deleted_dir(*name, each), topic_id)
        try:
            self._disk.rename(self._directory(name), gone)
        except OSError as error:
            if error.errno not in FULL:
                raise
            await remove_tree(self._disk, self._offload, self._directory(name))
        await self._disk.sync_dir(self.path)
        return True

    async def forget(self, names: Collection[PartitionName]) -> None:
        """Drops what the checkpoints say about earlier logs of these names, before new ones."""
        known = (self.high_watermarks, self.compacted, self._log_starts, self._recovery_points)
        for checkpoint in known:
            for name in names:
                checkpoint.drop(name)
        for checkpoint in known:
            await self._save(checkpoint)

    def deleted(self) -> list[str]:
        """Directories of deleted partitions whose files are still there."""
        return [entry for entry in self._disk.list(self.path) if entry.endswith(DELETED_DIR)]

    async def remove_deleted(self, deleted: Iterable[str]) -> None:
        """Removes the files of partitions that earlier runs have deleted."""
        for entry in deleted:
            try:
                await remove_tree(self._disk, self._offload, f"{self.path}/{entry}")
            except OSError as error:
                logger.warning("%s/%s cannot be removed: %s", self.path, entry, error)

    async def checkpoint(self) -> None:
        """Flushes sealed segments, and writes down how far each log is flushed and starts.

        So a crash leaves only active segments to read, whatever the flush policy.
        """
        for number, log in enumerate(tuple(self.logs.values()), 1):
            if log.failure is None and log.flushed_offset < log.sealed_offset:
                with suppress(KafkaError):  # the log has said so, and its directory with it
                    await log.flush(log.sealed_offset)
            if number % LOOKED_AT_ONCE == 0:
                await next_turn()
        await self.checkpoint_starts()
        await self._raise_recovery_points(tuple(self.logs.values()))

    async def _raise_recovery_points(self, logs: Iterable[Log]) -> None:
        """Writes down how far these logs are flushed, if they are still their partitions'.

        But for those that failed: one that was found damaged ends before what was promised of it.
        With that end as its recovery point, the next start would take the damage for a tail that
        was never flushed, and cut it off. And not beyond what is left by a truncation under way.
        """
        for number, log in enumerate(logs, 1):
            name, at = _name_of(log), log.flushed_offset
            if log.failure is None and self.logs.get(name) is log:
                self._recovery_points.set(name, min(at, self._truncating.get(name, at)))
            if number % LOOKED_AT_ONCE == 0:
                await next_turn()
        await self._save(self._recovery_points)

    async def checkpoint_starts(self) -> None:
        """Only a start that lies inside a segment needs a line: the others are file names."""
        for number, (name, log) in enumerate(tuple(self.logs.items()), 1):
            if self.logs.get(name) is log:
                if log.start_offset > log.first_segment_offset:
                    self._log_starts.set(name, log.start_offset)
                else:
                    self._log_starts.drop(name)
            if number % LOOKED_AT_ONCE == 0:
                await next_turn()
        await self._save(self._log_starts)

    async def checkpoint_high_watermarks(self) -> None:
        await self._save(self.high_watermarks)

    async def checkpoint_compacted(self, log: Log, offset: int) -> None:
        self.compacted.set(_name_of(log), offset)
        await self._save(self.compacted)

    async def _save(self, checkpoint: Checkpoint) -> None:
        try:
            await checkpoint.save()
        except OSError as error:
            if error.errno in FULL:
                # What stands there is older, never wrong; the next pass writes it anew.
                raise self._refused(f"{checkpoint.file} cannot be written", error) from error
            self._fail(f"{checkpoint.file}: {error}")
            raise self._error() from error

    # ---- full, failing and closing ----

    def has_room(self, least_bytes: int) -> bool:
        if self.failure is not None or self.closed is not None:
            return False
        try:
            return self._disk.space(self.path)[1] >= least_bytes
        except OSError:  # it was taken away, which whoever looks after directories finds as well
            return False

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """What the device does not do in here is a matter of this directory, not of the node.

        KafkaError: NoRoom where it is full, or no file may be opened just now. Where a file alone
        is gone, somebody else has removed it. All else is a device that has failed.
        """
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise self._refused(what, error) from error
            if error.errno == ENOENT and self._disk.exists(f"{self.path}/{META_PROPERTIES}"):
                raise storage_error(f"{self.path}: {what}: {error}", error) from error
            self._fail(f"{what}: {error}")
            raise self._error() from error

    def _refused(self, what: str, error: OSError) -> KafkaError:
        text = f"{what}: {error}"
        self._tell_refused(text)
        return storage_error(f"{self.path}: {text}", error)

    def _tell_refused(self, what: str) -> None:
        if self._on_refused is not None:
            self._on_refused(self.path, what)

    def _log_failed(self, log: Log, failure: Failure) -> None:
        if self._on_failure is not None:
            self._on_failure(self, log, failure.error.message)
        else:
            logger.error("%s", failure.error.message)
        if failure.device:
            self._fail(failure.error.message)

    def _fail(self, why: str) -> None:
        if self.failure is not None:
            return
        self.failure = why
        for log in (*self.logs.values(), *self.futures.values()):
            log.fail(f"its directory is offline: {why}", device=True)
        if self._on_failure is not None:
            self._on_failure(self, None, why)
        else:
            logger.error("log directory %s is offline: %s", self.path, why)

    def _error(self) -> KafkaError:
        return storage_error(f"log directory {self.path} is offline: {self.failure}")

    async def close(self, broker_epoch: int = -1) -> None:
        """Closes every log; the mark of a clean shutdown only if all that lie here are whole."""
        waiting = iter([*self.logs.values(), *self.futures.values()])
        full: list[KafkaError] = []

        async def close_in_turn() -> None:
            for log in waiting:
                try:
                    await log.close()
                except NoRoom as error:
                    full.append(error)
                except KafkaError as error:
                    logger.error("%r: not closed cleanly: %s", log, error)
                await asyncio.sleep(0)  # most have nothing to wait for, and others have

        try:
            await asyncio.gather(*(close_in_turn() for _ in range(_CLOSING_AT_ONCE)))
            if full:
                raise full[0]
            if self.failure is None:
                await self.checkpoint()
                if self._is_whole():
                    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
                    await self._disk.write_atomic(f"{self.path}/{CLEAN_SHUTDOWN}", content.encode())
                    self.unmark()
                    with suppress(OSError):
                        self._disk.unlink(f"{self.path}/{LAST_RUN}")
        except (KafkaError, OSError) as error:
            why = error.message if isinstance(error, KafkaError) else error
            logger.error(
                "log directory %s is not closed cleanly, the next start recovers it: %s",
                self.path,
                why,
            )
        finally:
            self.release()

    def _is_whole(self) -> bool:
        """Whether each log here was closed as it should be, or not opened since it was.

        After a crash, one that could not be opened is still as the crash left it: with the mark,
        the next start would not look at what its checkpoint does not tell.
        """
        logs = [*self.logs.values(), *self.futures.values()]
        whole = self._left_clean | {log.directory for log in logs if log.failure is None}
        return not any(
            path not in whole and self._disk.is_dir(path) for path in self._log_directories()
        )

    def release(self) -> None:
        """Lets go of the directory as it is: its node did not come up, or is done."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        if self._lock is not None:
            self._lock.release()


def _name_of(log: Log) -> PartitionName:
    return PartitionName(log.topic, log.partition)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Does the work to its end. A caller that is called off meanwhile learns of that afterwards."""
    task = asyncio.ensure_future(work)
    called_off: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            called_off = error
    if called_off is not None:
        if not task.cancelled():
            task.exception()  # the log that could not be cut has told of it
        raise called_off
    task.result()
