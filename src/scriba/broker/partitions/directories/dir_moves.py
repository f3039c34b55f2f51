"""Replicas that move between directories of this broker (KIP-113, KIP-858).

A *future* replica is filled in the new directory from the current one, as a follower would be,
while clients write and read. It takes these steps, and whatever ends one, nothing is lost:

1. Its files are made, under a name that tells every start what it is: a restart resumes from here.
   What was copied of a log that is compacted is copied anew then: nobody can tell whether the
   current replica was compacted since, and tombstones that went from it would be missing here.
2. Batches are copied, read off the loop and appended in small slices, under
   `replica.alter.log.dirs.io.max.bytes.per.second`. What retention or a truncation takes from the
   current replica goes from the future one as well; compaction waits.
3. Caught up, it is flushed, and the controller is told of the new directory: before the switch, so
   that whoever starts with one of the two directories missing knows that the replica is not new.
4. The switch: in one step of the loop, with both logs at the same end, the future replica gets the
   partition's name and takes all that follows. Followers, fetches and watermarks do not notice.
5. The new log is flushed where it is. Only then the old one goes; where that fails it is kept,
   under another name. A move back waits for that.

A crash may leave the partition in both directories: the copy with the greater (epoch, end) is the
replica, for the other one is a prefix of it. It may leave a future replica alone: then the switch
was under way, and it has everything that was flushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.partitions import cold_reads
from scriba.broker.ports import (
    BackgroundTasks,
    Configuration,
    EventLog,
    MetadataView,
    WorldAccess,
)
from scriba.errors import ErrorCode, KafkaError, anew
from scriba.events import EventKind
from scriba.replication.throttle import Throttle
from scriba.runtime.loop.pace import next_turn
from scriba.runtime.ports import WOULD_BLOCK
from scriba.storage.directory.names import LONGEST_NAME, PartitionName, future_dir, partition_dir
from scriba.storage.log import EMPTY, NotResident, Slice
from scriba.storage.results import NoRoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scriba.broker.partitions.directories.assignments import Assignments
    from scriba.broker.partitions.partition import Partition
    from scriba.settings import TopicSettings
    from scriba.storage.directory.logdir import LogDir
    from scriba.storage.log import Log

SLICE_BYTES: Final = 256 << 10
"""Read off the loop and appended in one step of it."""
ON_LOOP_BYTES: Final = 64 << 10
"""What is in the page cache, and no more than this, is read at once: the last of it, which must not
be overtaken by what clients write meanwhile."""
PAUSE_S: Final = 0.2
"""Between two looks at something that this does not hear of."""
ROOM_PAUSE_S: Final = 1.0
MOST_PREFERRED: Final = 10_000
"""Replicas to come whose directory is remembered."""
NO_GENERATION: Final = -1


class Truncations(Protocol):
    def is_truncating(self, partition: Partition) -> bool: ...

    async def truncated(self, partition: Partition) -> None:
        """Returns when no truncation of it is under way."""


class MovableReplicas(Protocol):
    """The replicas of this broker, and where they are."""

    @property
    def dirs(self) -> Sequence[LogDir]: ...

    @property
    def assignments(self) -> Assignments: ...

    @property
    def fetchers(self) -> Truncations: ...

    def find(self, topic: str, index: int) -> Partition: ...

    def get(self, topic: str, index: int) -> Partition | None: ...

    def home(self, partition: Partition) -> LogDir | None: ...

    def is_cordoned(self, directory: LogDir) -> bool: ...

    def moved(self, name: PartitionName, partition: Partition, directory: LogDir) -> None:
        """The files of a replica are in another directory now."""

    def remove_later(self, directory: LogDir, store: Log, delay_ms: int) -> None: ...


class Compactions(Protocol):
    def is_cleaning(self, partition: Partition) -> bool:
        """Whether a compaction of it is under way, that may still put in place what it has made."""


class DirMoveHost(BackgroundTasks, Configuration, EventLog, MetadataView, WorldAccess, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def replicas(self) -> MovableReplicas: ...

    @property
    def log_cleaner(self) -> Compactions: ...

    def on_moved(self) -> None:
        """A replica has another log now: nobody should keep the old one in mind."""


class Move:
    """One replica on its way to another directory."""

    __slots__ = (
        "anew",
        "generation",
        "log",
        "partition",
        "promised",
        "source",
        "stalled",
        "target",
        "task",
    )

    def __init__(self, partition: Partition, source: LogDir, target: LogDir, store: Log) -> None:
        self.partition = partition
        self.source = source
        self.target = target
        self.log = store
        """The future replica."""
        self.generation = NO_GENERATION
        """That of the current log at which the future one is known to be a prefix of it."""
        self.anew = False
        """Whether what is there already may be of before a compaction of the current replica."""
        self.promised = False
        """Whether the controller has been, or is being, told of the new directory."""
        self.stalled = False
        """Whether it waits for room, and has said so."""
        self.task: asyncio.Task[None] | None = None

    @property
    def lag(self) -> int:
        """Offsets that the future replica lacks."""
        return max(self.partition.log.end_offset - self.log.end_offset, 0)


class Stopped(Exception):
    """The move is no longer wanted, or what it was about is gone."""


class DirMoves:
    def __init__(self, node: DirMoveHost) -> None:
        self._node = node
        self._moves: dict[PartitionName, Move] = {}
        self._resuming: dict[PartitionName, tuple[LogDir, str]] = {}
        """Moves of an earlier run whose future replica is being opened, with its entry."""
        self._left: set[tuple[LogDir, str]] = set()
        """Those of them whose current replica went out of use meanwhile."""
        self._settling: set[Move] = set()
        """Moves that have taken over and have yet to remove the old replica."""
        self._preferred: dict[PartitionName, LogDir] = {}
        self._throttle = Throttle(
            lambda: node.settings.replica_alter_log_dirs_io_max_bytes_per_second
        )
        self._at_once: asyncio.Semaphore | None = None

    # ---- what is under way ----

    def __len__(self) -> int:
        return len(self._moves)

    def is_moving(self, partition: Partition) -> bool:
        """Whether it is being copied, or is to be once what there is of the copy is open."""
        name = PartitionName(partition.topic, partition.index)
        return name in self._moves or name in self._resuming

    def into(self, directory: LogDir) -> Iterator[Move]:
        """The moves that fill a directory."""
        return (each for each in tuple(self._moves.values()) if each.target is directory)

    def preferred(self, name: PartitionName) -> LogDir | None:
        """Where a replica that is new here was asked to go."""
        return self._preferred.get(name)

    def settled_in(self, name: PartitionName) -> None:
        """The replica is here now: what was asked for is done, or is asked again."""
        self._preferred.pop(name, None)

    def told_as(self, name: PartitionName, home: LogDir) -> LogDir:
        """Where the controller is to know a replica whose files are in `home`."""
        move = self._moves.get(name)
        return move.target if move is not None and move.promised else home

    @property
    def max_lag(self) -> int:
        return max((each.lag for each in self._moves.values()), default=0)

    # ---- asked for ----

    async def alter(self, wanted: Mapping[PartitionName, str]) -> dict[PartitionName, KafkaError]:
        """Moves replicas to directories, by their paths; those that cannot be, and why.

        The directory in which a replica is ends a move of it to another one.
        """
        refused: dict[PartitionName, KafkaError] = {}
        for name, path in wanted.items():
            try:
                target = self._target(name, path)
                partition = self._partition(name, target)
                await self._begin(name, partition, target)
            except KafkaError as error:
                refused[name] = error
            await next_turn()
        return refused

    def _target(self, name: PartitionName, path: str) -> LogDir:
        if len(future_dir(*name, bytes(16))) > LONGEST_NAME:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"the name of {name.topic} is too long for a replica that moves",
            )
        wanted = path.rstrip("/") or "/"
        replicas = self._node.replicas
        for directory in replicas.dirs:
            if (directory.path.rstrip("/") or "/") == wanted:
                break
        else:
            raise KafkaError(
                ErrorCode.LOG_DIR_NOT_FOUND,
                f"{path} is not among the log.dirs of broker {self._node.id}",
            )
        if directory.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline: {directory.failure}"
            )
        return directory

    def _partition(self, name: PartitionName, target: LogDir) -> Partition:
        replicas = self._node.replicas
        try:
            return replicas.find(*name)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        self._check_cordon(target)
        self._preferred.pop(name, None)
        self._preferred[name] = target
        while len(self._preferred) > MOST_PREFERRED:
            del self._preferred[next(iter(self._preferred))]
        raise KafkaError(
            ErrorCode.REPLICA_NOT_AVAILABLE,
            f"{name.topic}-{name.partition} is not on broker {self._node.id}; if it comes, "
            f"it goes to {target.path}",
        )

    def _check_cordon(self, target: LogDir) -> None:
        if self._node.replicas.is_cordoned(target):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{target.path} is cordoned: it gets nothing"
            )

    async def _begin(self, name: PartitionName, partition: Partition, target: LogDir) -> None:
        node = self._node
        if not self._is_needed(name, partition, target):
            return
        self._check_cordon(target)
        base_offset = partition.log.start_offset
        unique, now = node.world.rng.uuid(), node.world.clock.now()
        store = target.new_future(
            name, partition.topic_id, partition.settings, base_offset, unique, now
        )
        try:
            await target.make_files((store,))
        except KafkaError:
            self._drop(target, store)
            raise
        # It may be gone by now, or another request may have come first.
        if not self._is_needed(name, partition, target):
            self._drop(target, store)
            return
        home = node.replicas.home(partition)
        assert home is not None, "a partition that is needed elsewhere is somewhere"
        node.note(
            EventKind.DIR_MOVE_BEGUN,
            repr(partition),
            f"{partition.log.size} bytes from {home.path} to {target.path}",
        )
        self._start(name, Move(partition, home, target, store))

    def _is_needed(self, name: PartitionName, partition: Partition, target: LogDir) -> bool:
        """Whether a move has to begin; one to elsewhere ends."""
        replicas = self._node.replicas
        home, move = replicas.home(partition), self._moves.get(name)
        if home is None or replicas.get(*name) is not partition:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition!r} is gone")
        resumed_into = self._resuming[name][0] if name in self._resuming else None
        if target is resumed_into or (move is not None and move.target is target):
            return False
        self.stop(name, f"ended: {target.path} was asked for")
        return home is not target

    def _start(self, name: PartitionName, move: Move) -> None:
        self._moves[name] = move
        move.target.futures[name] = move.log
        move.task = self._node.tasks.spawn(self._run(name, move), name="move between directories")

    # ---- ended ----

    def stop(self, name: PartitionName, why: str) -> bool:
        """Ends a move, and removes what came of it; whether the controller may believe in it."""
        self._resuming.pop(name, None)
        move = self._moves.pop(name, None)
        if move is None:
            return False
        if move.task is not None:
            move.task.cancel()
        self._node.note(EventKind.DIR_MOVE_ENDED, repr(move.partition), why)
        self._drop(move.target, move.log)
        if move.promised:
            self._tell_of(name, move.partition, move.source)
        return move.promised

    def leave(self, name: PartitionName) -> bool:
        """The current replica is out of use: what was copied stays, for it may be all there is.

        Whether the controller may believe that the replica lies elsewhere.
        """
        if name in self._resuming:
            self._left.add(self._resuming.pop(name))
        move = self._moves.pop(name, None)
        if move is None:
            return False
        if move.task is not None:
            move.task.cancel()
        text = f"ended, and {move.log.directory} kept: the current replica is out of use"
        self._node.note(EventKind.DIR_MOVE_ENDED, repr(move.partition), text)
        return move.promised

    def _drop(self, target: LogDir, store: Log) -> None:
        # Where it cannot be, the next start finds it.
        with suppress(KafkaError), target.guarded(f"the copy of {store!r} cannot be dropped"):
            target.drop_future(store)
        self._node.replicas.remove_later(target, store, 0)

    def _tell_of(self, name: PartitionName, partition: Partition, home: LogDir) -> None:
        """Has the controller know where a replica is after all."""
        node = self._node
        topic = node.image.topics_by_id.get(partition.topic_id)
        image = topic.partitions.get(name.partition) if topic is not None else None
        if image is not None and node.id in image.replicas:
            assignments = node.replicas.assignments
            # What is being told is not in the image yet: it is said again in any case.
            assignments.note(name, partition.topic_id, home.id, b"")
            assignments.begin_to_tell()

    def configure(self, partition: Partition, settings: TopicSettings) -> None:
        move = self._moves.get(PartitionName(partition.topic, partition.index))
        if move is not None:
            move.log.settings = settings

    async def close(self) -> None:
        """Ends all work; the next start goes on with it."""
        moves = (*self._moves.values(), *self._settling)
        tasks = [each.task for each in moves if each.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- after a restart ----

    def resume(self, partition: Partition, home: LogDir, target: LogDir, entry: str) -> None:
        """Goes on with a move of an earlier run."""
        name = PartitionName(partition.topic, partition.index)
        self._resuming[name] = (target, entry)
        work = self._resume(name, partition, home, target, entry)
        self._node.tasks.spawn(work, name="resumed move between directories")

    async def _resume(
        self, name: PartitionName, partition: Partition, home: LogDir, target: LogDir, entry: str
    ) -> None:
        node = self._node
        try:
            store = await target.open_future(
                entry,
                name,
                partition.topic_id,
                partition.settings,
                node.world.clock.now(),
                node.settings.producer_id_expiration_ms,
            )
        except KafkaError as error:
            if self._resuming.get(name) == (target, entry):
                del self._resuming[name]
                self._not_resumed(partition, target, entry, error.message)
            elif (target, entry) in self._left:
                self._left.discard((target, entry))
                text = f"the current replica is out of use, and this one too: {error.message}"
                self._not_resumed(partition, target, entry, text)
            return
        if (target, entry) in self._left:
            self._left.discard((target, entry))
            self._not_resumed(partition, target, entry, "the current replica is out of use")
            return
        wanted = (
            self._resuming.get(name) == (target, entry) and node.replicas.get(*name) is partition
        )
        if not wanted or store.failure is not None or name in self._moves:
            self._drop(target, store)
            return
        move = Move(partition, home, target, store)
        move.anew = (
            "compact" in partition.settings.cleanup_policy or home.compacted.get(name) is not None
        )
        reached = "begins anew" if move.anew else f"has come to offset {store.end_offset}"
        text = f"goes on to {target.path}, where it {reached}"
        node.note(EventKind.DIR_MOVE_BEGUN, repr(partition), text)
        del self._resuming[name]
        self._start(name, move)

    def _not_resumed(self, partition: Partition, target: LogDir, entry: str, why: str) -> None:
        text = f"not resumed, {target.path}/{entry} is kept: {why}"
        self._node.note(EventKind.DIR_MOVE_ENDED, repr(partition), text)

    # ---- carried out ----

    async def _run(self, name: PartitionName, move: Move) -> None:
        if self._at_once is None:
            self._at_once = asyncio.Semaphore(max(len(self._node.replicas.dirs), 1))
        try:
            await self._found_again(move)
            await self._name_free(move)
            async with self._at_once:
                await self._copy(move)
                await self._promise(name, move)
                await self._switch(name, move)
        except Stopped:
            return
        except KafkaError as error:
            if self._moves.get(name) is move:
                move.task = None
                self.stop(name, f"given up: {error.message}")
            return
        self._settling.add(move)
        try:
            await self._settle(name, move)
        finally:
            self._settling.discard(move)

    async def _found_again(self, move: Move) -> None:
        """Makes the name durable, by which a start knows what was asked for."""
        with suppress(NoRoom):
            await move.log.sync(hurried=True)

    async def _name_free(self, move: Move) -> None:
        """Back to where an earlier move came from, it waits until that has removed the old replica:
        there is one directory of the partition's name, and until then nothing else is durable."""
        for earlier in tuple(self._settling):
            same = earlier.partition is move.partition and earlier.source is move.target
            if same and earlier.task is not None:
                text = (
                    f"waits until the replica is durable in {earlier.target.path}: before that "
                    f"the one in {move.target.path} is kept"
                )
                self._node.note(EventKind.DIR_MOVE_STALLED, repr(move.partition), text)
                await asyncio.wait((earlier.task,))
        self._check(move)

    async def _wait_for_room(self, move: Move, error: NoRoom) -> None:
        """A full device is waited for: the current replica is served meanwhile as ever."""
        if not move.stalled:
            move.stalled = True
            text = f"waits for room in {move.target.path}: {error.message}"
            self._node.note(EventKind.DIR_MOVE_STALLED, repr(move.partition), text)
        await asyncio.sleep(ROOM_PAUSE_S)

    async def _copy(self, move: Move) -> None:
        """Returns when the future replica has been flushed with nothing, or little, missing."""
        while True:
            try:
                while not await self._catch_up(move):
                    pass
                move.log.epochs.adopt(move.partition.log.epochs)
                await move.log.sync(hurried=True)
                return
            except NoRoom as error:
                await self._wait_for_room(move, error)

    async def _catch_up(self, move: Move) -> bool:
        """Copies a slice; True, without an await since the last look, if nothing is missing."""
        source = move.partition.log
        self._check(move)
        if not source.has_files:
            await asyncio.sleep(PAUSE_S)  # a new one, whose files are being made
            return False
        if self._node.log_cleaner.is_cleaning(move.partition):
            await asyncio.sleep(PAUSE_S)  # it sees the move, and gives up at its next step
            return False
        if await self._align(move, source):
            return False
        if not move.lag:
            return True
        wait_ms = self._throttle.wait_ms(self._node.world.clock.mono_ms())
        if wait_ms:
            await asyncio.sleep(min(wait_ms / 1000, PAUSE_S))
            return False
        future, start = move.log, max(move.log.end_offset, source.start_offset)
        most = min(self._throttle.allowance(self._node.world.clock.mono_ms()), SLICE_BYTES)
        found = source.read(start, most, source.end_offset)
        if isinstance(found, NotResident):
            await cold_reads.load(source, found)
            return False
        now = self._node.world.clock.now()
        if found is EMPTY:
            future.skip_to(source.end_offset, now)
            return not move.lag
        assert isinstance(found, Slice)
        if (view := _at_once(found)) is None:
            generation, end = source.compaction.generation, future.end_offset
            view = await self._read(source, found)
            await future.ready_to_follow(view)
            self._check(move)
            if source.compaction.generation != generation or future.end_offset != end:
                return False
        if not self._append(future, view):
            return False
        if move.stalled:
            move.stalled = False
            text = f"goes on: there is room in {move.target.path}"
            self._node.note(EventKind.DIR_MOVE_BEGUN, repr(move.partition), text)
        self._throttle.take(len(view), self._node.world.clock.mono_ms())
        if not move.lag:
            return True
        await next_turn()
        return False

    async def _read(self, source: Log, found: Slice) -> memoryview:
        view = memoryview(bytearray(found.size))
        try:
            size = await self._node.world.offload.run(found.file.pread_into, view, found.position)
        except OSError as error:
            if error.errno in cold_reads.GONE:
                return view[:0]
            raise cold_reads.unreadable(source, error) from error
        return view[:size]

    def _append(self, future: Log, view: memoryview) -> bool:
        """Whether anything came of it."""
        if not view:
            return False
        now, end = self._node.world.clock.now(), future.end_offset
        base_offset = int.from_bytes(view[:8], "big")
        if base_offset < end and not future.size:
            # The current log begins within a batch, which comes whole.
            future.truncation.truncate_fully(base_offset, now)
        future.append_follower(view, now)
        return future.end_offset > end

    def _check(self, move: Move) -> None:
        """Stopped if the move is over; KafkaError if one of the two logs is."""
        if self._moves.get(PartitionName(move.partition.topic, move.partition.index)) is not move:
            raise Stopped
        for store in (move.log, move.partition.log):
            if store.failure is not None:
                raise anew(store.failure.error)

    async def _align(self, move: Move, source: Log) -> bool:
        """Takes from the future replica what the current one has lost; whether that took time."""
        future, now = move.log, self._node.world.clock.now()
        generation = source.compaction.generation
        if move.generation != generation:
            end = None if move.anew else common_end(future, source)
            move.anew, move.generation = False, generation
            if end is None:
                future.truncation.truncate_fully(source.start_offset, now)
            elif end < future.end_offset:
                future.truncation.truncate_to(end, now)
            else:
                return False
            await future.sync(hurried=True)
            return True
        start = source.start_offset
        if start > future.end_offset:
            future.truncation.truncate_fully(start, now)
        elif start > future.start_offset:
            future.delete_records_to(start)
            high_watermark = move.partition.high_watermark.value
            with move.target.guarded(f"the start of the copy of {future!r}"):
                await future.truncation.retention(now, high_watermark, by_age=False)
            return True
        return False

    # ---- taking over ----

    async def _promise(self, name: PartitionName, move: Move) -> None:
        """Has the controller know the new directory, and the new one what its checkpoints say."""
        replicas, partition = self._node.replicas, move.partition
        move.promised = True
        replicas.assignments.note(name, partition.topic_id, move.target.id, b"")
        while not replicas.assignments.is_told(name):
            await replicas.assignments.tell()
            self._check(move)
            if not replicas.assignments.is_told(name):
                await asyncio.sleep(PAUSE_S)
        while True:
            try:
                await move.target.expect(move.log, partition.log.start_offset)
                return
            except NoRoom as error:
                await self._wait_for_room(move, error)

    async def _switch(self, name: PartitionName, move: Move) -> None:
        """Catches up for the last time, and in the same step takes the place of the current log."""
        replicas, partition = self._node.replicas, move.partition
        while True:
            try:
                await replicas.fetchers.truncated(partition)
                if not await self._catch_up(move) or replicas.fetchers.is_truncating(partition):
                    continue
                old, new = partition.log, move.log
                move.target.promote(new)
            except NoRoom as error:
                await self._wait_for_room(move, error)
                continue
            # No await from here on. Producers and epochs are what the old log has learnt in its
            # life: of some of it the records are gone.
            new.producers = old.producers
            new.epochs.adopt(old.epochs)
            new.delete_records_to(old.start_offset)
            move.source.logs.pop(name, None)
            replicas.moved(name, partition, move.target)
            partition.take_log(new)
            move.log = old
            del self._moves[name]
            return

    async def _settle(self, name: PartitionName, move: Move) -> None:
        """Makes the new log durable where it is; then the old one goes."""
        node, partition, old = self._node, move.partition, move.log
        compacted = move.source.compacted.get(name)
        node.on_moved()
        while partition.log.failure is None and node.replicas.get(*name) is partition:
            try:
                mark = partition.high_watermark.value
                with move.target.guarded(f"{partition!r} has come here"):
                    await move.target.promoted(partition.log, mark, compacted)
                break
            except NoRoom as error:
                await self._wait_for_room(move, error)
            except KafkaError:
                await self._keep(name, move)
                return
        else:
            return  # deleted, or out of use: the next start has two copies to choose from
        # Where it cannot go, its directory is offline; the next start takes the copy with more.
        with suppress(KafkaError):
            with move.source.guarded(f"{old!r}, which has moved, cannot be taken away"):
                move.source.begin_deletion(old)
            node.replicas.remove_later(move.source, old, old.settings.file_delete_delay_ms)
        text = f"is in {move.target.path} now, {partition.log.size} bytes"
        node.note(EventKind.DIR_MOVE_DONE, repr(partition), text)

    async def _keep(self, name: PartitionName, move: Move) -> None:
        """The new directory has failed, and has said so: the old log may be all there is.

        It is not taken up again, for it lacks what was written since.
        """
        partition, old = move.partition, move.log
        with suppress(KafkaError):
            await old.close()
        kept = f"{move.source.path}/{partition_dir(*name)}"
        with suppress(KafkaError), move.source.guarded(f"{old!r} cannot be set aside"):
            kept = await move.source.rename_stray(name)
        text = f"{move.target.path} failed; what was there before is kept as {kept}"
        self._node.note(EventKind.PARTITION_STRAY, repr(partition), text)


def _at_once(found: Slice) -> memoryview | None:
    """What a small slice has, if no device has to be waited for."""
    if found.size > ON_LOOP_BYTES:
        return None
    view = memoryview(bytearray(found.size))
    size = found.file.try_pread_into(view, found.position)
    return view if size == found.size and size != WOULD_BLOCK else None


def common_end(future: Log, source: Log) -> int | None:
    """Up to where a future replica is what the current one is; None if nobody can tell.

    As a follower finds it: within one epoch only one leader has written.
    """
    if not future.size:
        at = future.end_offset
        return at if source.start_offset <= at <= source.end_offset else None
    epoch = min(future.epochs.latest, source.epochs.latest)
    while True:
        theirs, end = source.end_offset_for_epoch(epoch)
        if theirs < 0:
            return None
        ours, own_end = future.end_offset_for_epoch(theirs)
        if ours == theirs:
            return min(end, own_end, future.end_offset)
        if ours < 0 or ours >= epoch:
            return None
        epoch = ours
