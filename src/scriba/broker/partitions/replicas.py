"""Every partition replica this broker hosts: found by name, opened and closed by the image.

The controller's image says what should be here. Changes of it are queued and carried out in order
by one task: new partitions get a log, gone ones lose theirs, leaderships begin and end. A long
change (ten thousand partitions in one request) is worked off in slices. Two things do not wait
for their turn: a leadership that somebody else has now ends as soon as the image says so, and a
topic that was deleted is not found any more. Its name may be another topic's by then, and whoever
writes to that one must not be answered by the log of the one before, which is about to go.

A replica that is new has nothing that would have to be read. So it is only taken note of
(`_unopened`), and from then on it can be used: whoever asks for it first (`get`) has it opened, in
memory, without a look at the file system. Its files are made by the same task once the queue is
empty, many in one call off the loop, or by its first append if that comes earlier: nothing is
acknowledged that is not in a file. `applied()` waits for the queue, `settled()` for the files, too.
Nothing else creates or removes a partition's files.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple, Protocol

from scriba.broker.partitions import cold_reads
from scriba.broker.partitions.change_queue import ChangeQueue
from scriba.broker.partitions.directories.assignments import AssignmentHost, Assignments
from scriba.broker.partitions.directories.dir_moves import Compactions, DirMoves
from scriba.broker.partitions.found import FoundReplicas, FutureReplica, Placement
from scriba.broker.partitions.nearby import ReplicaSelector
from scriba.broker.partitions.open_files import OpenFiles
from scriba.broker.partitions.partition import Leading, Partition, stall_ms
from scriba.broker.partitions.replication.departures import Departures, departures
from scriba.broker.partitions.replication.fetchers import Fetchers, LeaderChannels
from scriba.broker.partitions.replication.follower_sessions import FollowerSessions
from scriba.broker.partitions.replication.isr_updates import IsrUpdates
from scriba.broker.partitions.replication.observers import Observers
from scriba.broker.partitions.replication.throttles import ReplicationThrottles
from scriba.broker.ports import (
    BackgroundTasks,
    Configuration,
    Counting,
    EventLog,
    MetadataView,
    WorldAccess,
)
from scriba.controller.image import (
    BROKER,
    DIRECTORY_LOST,
    NO_DIRECTORY,
    TOPIC,
    ClusterImage,
    Delta,
    PartitionImage,
)
from scriba.controller.parts import NO_LEADER
from scriba.errors import ErrorCode, KafkaError, anew
from scriba.events import EventKind
from scriba.replication.leader import Installed, departure
from scriba.runtime.loop.pace import Pace, next_turn
from scriba.settings import TopicSettings
from scriba.storage.compaction.log import FOR_EVER_MS
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import Log
from scriba.storage.results import NoRoom, storage_error

LOGS_AT_ONCE: Final = 64
"""New logs whose files are made in one call off the loop."""

BEGUN_AT_ONCE: Final = 500
"""New replicas of whose names the checkpoints are asked in one step."""

FILES_WAIT_S: Final = 0.05
"""How long whoever creates partitions waits for their files: long enough for some dozens."""

PARTITIONS_AT_ONCE: Final = 256
"""Partitions that are looked at, or whose waits end at a stop, in one turn of the loop."""

LOSSES_PAUSE_S: Final = 0.1
"""Between two attempts to tell the controller of replicas that are not whole."""
WORTH_WAITING_FOR: Final = 4
"""Calls off the loop; with more to come the files are not there in time, and nobody waits."""


class ClockDoubt(Protocol):
    @property
    def paused(self) -> bool:
        """Whether nothing may go because of its age, the clock being in doubt."""


class Cordons(Protocol):
    def is_cordoned(self, directory: LogDir) -> bool:
        """Whether it is to get no new partitions."""


class ReplicaHost(
    AssignmentHost,
    BackgroundTasks,
    Configuration,
    Counting,
    EventLog,
    MetadataView,
    WorldAccess,
    Protocol,
):
    """What hosting replicas takes, and who is told of leaderships."""

    @property
    def log_dirs(self) -> Cordons: ...

    @property
    def channels(self) -> LeaderChannels: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def clock_guard(self) -> ClockDoubt: ...

    @property
    def log_cleaner(self) -> Compactions: ...

    def on_lead(self, partition: Partition) -> None:
        """This broker leads the partition, in an epoch that may be new."""

    def on_moved(self) -> None:
        """A replica has another log now, in another directory."""

    def on_departure(self) -> None:
        """A replica is no longer here, or of no use any more."""

    def on_replicas_removed(self, partitions: Iterable[Partition]) -> None:
        """The partitions are no longer led here: they are led elsewhere, gone, or of no use."""


class Unopened(NamedTuple):
    """A new replica, as the image had it when it was taken note of."""

    topic_id: bytes
    image: PartitionImage
    home: LogDir | None = None
    """Where its files will be; None while no directory is online."""


class Replicas:
    def __init__(self, node: ReplicaHost, dirs: list[LogDir]) -> None:
        self.dirs = dirs
        self.configured = 0
        """How often partitions were given new settings."""
        self._node = node
        self._partitions: dict[PartitionName, Partition] = {}
        self._homes: dict[PartitionName, LogDir] = {}
        self._offline: dict[PartitionName, KafkaError] = {}
        """Replicas that should be here but cannot be used, and why."""
        self.assignments = Assignments(node)
        self._queue = ChangeQueue(node, self)
        self._damaged: dict[PartitionName, tuple[LogDir, Log]] = {}
        """Those of them whose files are damaged, on a device that is well."""
        self._topic_settings: dict[str, TopicSettings] = {}
        self._inspecting: set[Partition] = set()
        self._waiting: dict[PartitionName, None] = {}
        """Replicas that wait for room on the device to be opened."""
        self._begun: dict[PartitionName, LogDir] = {}
        """Where those of them lie that had a log before."""
        self._found = FoundReplicas(node, dirs, self._open_log)
        self._unopened: dict[PartitionName, Unopened] = {}
        """New replicas that nobody has asked for yet."""
        self._fileless: dict[PartitionName, Log] = {}
        """New logs that are open and whose files are to be made."""
        self._trimming: dict[Partition, int] = {}
        """Partitions, each with how many wait for the start of their followers' logs."""
        self.unheard: dict[Partition, None] = {}
        """Led since a short while: some of their followers may not have been heard yet."""
        self.active: dict[int, int] = {}
        """Epochs of the brokers that may be in an ISR."""
        self.racks: dict[int, str | None] = {}
        """Where the brokers of the cluster are."""
        self.moves = DirMoves(node)
        self._deleted: set[bytes] = set()
        """Topics that are no more, whose replicas are still to be taken away."""
        self.fetchers = Fetchers(node)
        self.observers = Observers(node, self.fetchers)
        self.selector = ReplicaSelector(node)
        self.follower_sessions = FollowerSessions(node.world.rng, prompt=self.selector.by_rack)
        self.isr_updates = IsrUpdates(node)
        self.throttles = ReplicationThrottles(node)
        self._removals: list[tuple[int, LogDir, Log]] = []
        """Logs that were taken away, each with where its files lie and when they go."""
        self._open_files = OpenFiles(node, self)

    # ---- finding ----

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions) + len(self._unopened)

    def get(self, topic: str, index: int) -> Partition | None:
        partition: Partition | None = self._partitions.get(  # type: ignore[call-overload]
            (topic, index)
        )
        if partition is None and self._unopened:
            name = PartitionName(topic, index)
            new = self._unopened.get(name)
            if new is not None and new.topic_id not in self._deleted:
                return self._open_new(name)
            return None
        if self._deleted and partition is not None and partition.topic_id in self._deleted:
            return None
        return partition

    def find(self, topic: str, index: int) -> Partition:
        """The partition, or the error that a client understands."""
        partition = self.get(topic, index)
        if partition is not None:
            return partition
        failure = self._offline.get(PartitionName(topic, index))
        if failure is not None:
            raise anew(failure)
        known = self._node.image.topics_by_name.get(topic)
        if known is None or index not in known.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def home(self, partition: Partition) -> LogDir | None:
        """The directory that a partition lives in."""
        return self._homes.get(PartitionName(partition.topic, partition.index))

    def in_dir(self, directory: LogDir) -> Iterator[Partition]:
        return (self._partitions[name] for name, home in self._homes.items() if home is directory)

    def unopened_in(self, directory: LogDir) -> Iterator[PartitionName]:
        """New replicas, empty as they are, that nobody has asked for yet."""
        return (name for name, new in self._unopened.items() if new.home is directory)

    def new_leaders(self) -> int:
        """How many new replicas lead that are not opened yet; each has all its replicas in sync."""
        me = self._node.id
        return sum(new.image.leader == me for new in self._unopened.values())

    # ---- following the image ----

    def load(self, image: ClusterImage) -> None:
        """Queues everything that the image places here: what a node does at its start."""
        self._follow_brokers(image)
        self._queue.append(lambda: self._load(image))
        self._queue.wake()

    def apply(self, delta: Delta, image: ClusterImage) -> None:
        """Queues a change of the image. Images change in place, so what is needed is kept now."""
        if delta.brokers:
            self._follow_brokers(image)
        if delta.deleted:
            gone = [(t.name, t.id, tuple(t.partitions)) for t in delta.deleted.values()]
            self._deleted.update(topic_id for _, topic_id, _ in gone)
            self._end_coordinators(gone)
            self._queue.append(lambda: self._delete(gone))
        if delta.configs:
            changed = {name for kind, name in delta.configs if kind == TOPIC}
            everything = any(kind == BROKER for kind, _ in delta.configs)
            if everything or changed:
                self._queue.append(lambda: self._reconfigure(None if everything else changed))
        touched = list(self._touched(delta, image))
        if touched:
            self._depose(touched)
            self._queue.append(lambda: self._place(touched))
        departed = departures(delta, image, self._node.id)
        if departed:
            self._queue.append(lambda: self._tell_departed(departed))
        self._queue.wake()

    def _end_coordinators(self, gone: list[tuple[str, bytes, tuple[int, ...]]]) -> None:
        """What a coordinator writes from now on would be accepted, and go with the deleted log."""
        names = [
            PartitionName(topic, index)
            for topic, _, indexes in gone
            if topic in self._node.internal_topics
            for index in indexes
        ]
        here = [self._partitions[name] for name in names if name in self._partitions]
        if here:
            self._node.on_replicas_removed(here)

    def _touched(self, delta: Delta, image: ClusterImage) -> Iterator[Placement]:
        """The partitions of a change that have a replica here, or had one before it."""
        me, starting = self._node.id, bool(self._found.replicas)
        for topic_id, changes in delta.partitions.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                continue
            mine = [
                (index, topic.partitions[index])
                for index, before in changes.items()
                if me in topic.partitions[index].replicas
                or starting
                or (before is not None and me in before.replicas)
            ]
            if mine:
                yield topic.name, topic_id, sorted(mine)

    async def _tell_departed(self, departed: list[Departures]) -> None:
        pace = Pace(self._node.world.clock)
        for name, topic_id, led_before, replicas in departed:
            await pace()
            partition = self.get(*name)
            if partition is not None and partition.topic_id == topic_id:
                left = tuple(departure(replica, led_before) for replica in replicas)
                self.isr_updates.tell(partition, Installed(left))

    def _follow_brokers(self, image: ClusterImage) -> None:
        """Takes note of who may join an ISR, in place: every leader looks there."""
        before = dict(self.active)
        self.active.clear()
        self.active.update((b.id, b.epoch) for b in image.brokers.values() if b.active)
        for broker_id in self.active.keys() - before.keys():
            self.follower_sessions.look_again(broker_id)
        self.follower_sessions.keep_brokers(image.brokers)
        racks = {broker.id: broker.rack for broker in image.brokers.values()}
        if racks != self.racks:
            self.racks.clear()
            self.racks.update(racks)
            for partition in self:
                partition.know_observers()
        for partition in tuple(self._trimming):
            partition.move_low_watermark()  # nobody waits for a broker that is gone

    def _depose(self, placements: Iterable[Placement]) -> None:
        """Ends the leaderships that somebody else has now: nothing more is acknowledged here."""
        me = self._node.id
        deposed: list[Partition] = []
        for topic, topic_id, partitions in placements:
            for index, image in partitions:
                partition: Partition | None = self._partitions.get(  # type: ignore[call-overload]
                    (topic, index)
                )
                if (
                    partition is not None
                    and partition.leader is not None
                    and image.leader != me
                    and partition.topic_id == topic_id
                ):
                    partition.resign(image)
                    deposed.append(partition)
        if deposed:
            self._node.on_replicas_removed(deposed)

    async def settled(self) -> None:
        """See `ChangeQueue.settled`."""
        await self._queue.settled()

    async def applied(self) -> None:
        """See `ChangeQueue.applied`."""
        await self._queue.applied()

    def has_backlog(self) -> bool:
        """Whether new replicas are still to get their files."""
        return bool(self._unopened or self._fileless)

    async def created(self) -> None:
        """As `applied`, for whoever made partitions: their files are waited for, but not for long.

        So a first record seldom has to make them on the loop, and ten thousand partitions have
        their leaders long before they have their files.
        """
        await self.applied()
        worker = self._queue.worker
        if len(self._unopened) + len(self._fileless) > WORTH_WAITING_FOR * LOGS_AT_ONCE:
            return
        if worker is not None and not worker.done():
            await asyncio.wait((worker,), timeout=FILES_WAIT_S)

    async def _load(self, image: ClusterImage) -> None:
        moving = await self._found.look(image)
        await self._place(map(self._found.placed_here, list(image.topics_by_name.values())))
        await self._found.set_aside_rest()
        self._resume_moves(moving)
        for directory in self._online():
            left = directory.remove_deleted(directory.deleted())
            self._node.tasks.spawn(left, name="deleted partitions")

    def _resume_moves(self, moving: list[FutureReplica]) -> None:
        for name, directory, entry in moving:
            partition, home = self._partitions.get(name), self._homes.get(name)
            if partition is not None and home is not None and home is not directory:
                self.moves.resume(partition, home, directory, entry)
            elif home is directory:
                left = directory.remove_deleted((entry,))
                self._node.tasks.spawn(left, name="future replica that is not needed")

    async def _place(self, placements: Iterable[Placement]) -> None:
        pace = Pace(self._node.world.clock)
        me = self._node.id
        expected = Counter(each.home for each in self._unopened.values())
        new: dict[PartitionName, Unopened] = {}
        for topic, topic_id, partitions in placements:
            await pace()
            for index, then in partitions:
                await pace()
                if len(new) >= BEGUN_AT_ONCE:
                    await self._begin(new, pace, expected)
                    new = {}
                name = PartitionName(topic, index)
                # What is queued may be old: a leadership that is over must not begin.
                image = self._now(topic_id, index) or then
                if me not in image.replicas:
                    await self._leave(name, topic_id)
                elif (partition := self._partitions.get(name)) is not None:
                    await self.fetchers.truncated(partition)
                    self._follow_now(partition, image)
                elif name in self._damaged:
                    await self._refill(name, topic_id, image, new)
                elif (found := self._holder(name)) is not None:
                    partition = await self._open(name, topic_id, image, found)
                    if name in self._damaged:
                        await self._refill(name, topic_id, image, new)
                    elif partition is not None:
                        self._follow_now(partition, image)
                elif not self._is_lost(image):
                    new[name] = Unopened(topic_id, image)
        await self._begin(new, pace, expected)
        await self.assignments.tell()

    async def _leave(self, name: PartitionName, topic_id: bytes) -> None:
        """The partition has other replicas now; those that a reassignment chose have everything."""
        partition = self._partitions.get(name)
        if partition is not None:
            await self.fetchers.truncated(partition)
        self._remove_replica(name, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        found = self._found.replicas.get(name)
        if found is not None and await found.discard(name, topic_id):
            del self._found.replicas[name]  # it was reassigned while this broker was away

    async def _refill(
        self,
        name: PartitionName,
        topic_id: bytes,
        image: PartitionImage,
        new: dict[PartitionName, Unopened],
    ) -> None:
        """Begins a damaged replica anew, to be filled by its leader: once it does not count.

        In the ISR, or eligible to lead, it is the controller's word that its copy is whole; an
        empty one in its place could become the leader and take the others with it.
        """
        me = self._node.id
        if image.leader in (NO_LEADER, me) or me in (*image.isr, *image.eligible_leader_replicas):
            return
        directory, store = self._damaged.pop(name)
        directory.logs.pop(name, None)
        with suppress(KafkaError):
            await store.close()
        try:
            kept = await directory.rename_stray(name)
        except OSError as error:
            self.offline(name, storage_error(f"its damaged files cannot be set aside: {error}"))
            return
        text = f"it is filled anew by broker {image.leader}; the damaged files are kept as {kept}"
        about = f"{name.topic}-{name.partition}"
        self._node.note(EventKind.REPLICA_REFILLED, about, text)
        new[name] = Unopened(topic_id, image)

    def _now(self, topic_id: bytes, index: int) -> PartitionImage | None:
        """The partition as the image has it at this moment."""
        topic = self._node.image.topics_by_id.get(topic_id)
        return topic.partitions.get(index) if topic is not None else None

    def _follow_now(self, partition: Partition, then: PartitionImage) -> None:
        """Has a replica do what the image says of it by now: `then` may be old.

        Somebody else may lead meanwhile, and nothing deposed a replica that had no role yet. One
        that is no longer to be here gets none; what takes it away is on its way.
        """
        image = self._now(partition.topic_id, partition.index) or then
        if self._node.id in image.replicas:
            self._follow(partition, image)

    def _follow(self, partition: Partition, image: PartitionImage) -> None:
        """Has a replica do what the image says of it."""
        me = self._node.id
        name = PartitionName(partition.topic, partition.index)
        home = self._homes.get(name)
        if home is None:  # it was opened, and found damaged
            return
        told = self.moves.told_as(name, home)
        self.assignments.note(name, partition.topic_id, told.id, image.directory(me))
        if partition.knows(image):
            return
        if image.leader == me:
            self.fetchers.drop(partition)
            now = self._node.world.clock.now()
            lag_ms = self._node.settings.replica_lag_time_max_ms
            stalls_ms = stall_ms(self._node.settings)
            leading = Leading(me, lag_ms, stalls_ms, self.active, self.racks)
            if image.leader_epoch != partition.leader_epoch:
                self.unheard[partition] = None
            before = partition.leader
            self.isr_updates.tell(partition, partition.lead(image, leading, now))
            if partition.leader is before:
                # A replica that was refused may be eligible now: its directory is another.
                self.isr_updates.look(partition, now)
            self.observers.watch(partition)
            self._node.on_lead(partition)
            return
        led = partition.leader is not None
        if image.leader < 0:
            self.fetchers.drop(partition)
            partition.stay(image)
        elif partition.follower is None or image.leader_epoch != partition.leader_epoch:
            partition.follow(image, me in image.isr)
            self.fetchers.follow(partition, image.leader)
        else:
            observes = partition in self.observers
            partition.go_on_following(image, partition.serves if observes else me in image.isr)
        self.observers.watch(partition)
        if led:
            self._node.on_replicas_removed((partition,))

    # ---- new replicas ----

    async def _begin(
        self, new: dict[PartitionName, Unopened], pace: Pace, expected: Counter[LogDir | None]
    ) -> None:
        """Makes new replicas known, once no checkpoint tells of earlier ones of their names.

        `expected` counts those of each directory that are not opened yet.
        """
        unopened = self._unopened
        fresh = [name for name in new if name not in unopened and name not in self._partitions]
        try:
            for directory in self._online():
                await directory.forget(fresh)
        except NoRoom as error:
            for name in fresh:
                self._wait_for_room(name, error)
            return
        except KafkaError:
            pass  # the directory is offline now, has said so, and is given none of them
        for name, each in new.items():
            await pace()
            partition = self._partitions.get(name)
            if partition is None:
                home = self._choose_dir(name, each.image, expected)
                unopened[name] = each._replace(home=home)
                self._offline.pop(name, None)
                self._waiting.pop(name, None)
                if name.topic in self._node.internal_topics:
                    self._open_new(name)  # its coordinator waits for nobody to ask
                else:
                    expected[home] += 1
            else:  # somebody asked for it meanwhile
                self._follow_now(partition, each.image)

    def _open_new(self, name: PartitionName) -> Partition | None:
        """Opens a new replica in memory; None if there is none of this name, or it cannot be."""
        new = self._unopened.pop(name, None)
        if new is None:
            return None
        topic, index = name
        try:
            directory = new.home
            if directory is None or directory.failure is not None:
                directory = self._choose_dir(name, new.image, Counter())
            if directory is None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
            now = self._node.world.clock.now()
            store = directory.new_log(topic, index, new.topic_id, self._settings_of(topic), now)
        except KafkaError as error:
            self.offline(name, error)
            return None
        self._fileless[name] = store
        partition = self._add(name, new.topic_id, store, directory)
        self._follow_now(partition, new.image)
        return partition

    async def work_off(self) -> None:
        """Opens some of the new replicas and makes their files."""
        pace = Pace(self._node.world.clock)
        for name in tuple(islice(self._unopened, LOGS_AT_ONCE)):
            self._open_new(name)
            await pace()
        batch = dict(islice(self._fileless.items(), LOGS_AT_ONCE))
        for directory in self.dirs:
            logs = {n: each for n, each in batch.items() if self._homes.get(n) is directory}
            try:
                if logs:
                    await directory.make_files(tuple(logs.values()))
            except NoRoom as error:
                for name, store in logs.items():
                    if not store.has_files:
                        self._wait_for_room(name, error)
            except KafkaError:
                pass  # the directory is offline now, and its replicas with it
        for name, store in batch.items():
            self._fileless.pop(name, None)
            if store.has_files:
                self._waiting.pop(name, None)
        if not self._unopened and not self._fileless:
            await self.assignments.tell()  # once for all: each request is a flush of the metadata

    # ---- replicas that were here before ----

    def _is_lost(self, image: PartitionImage) -> bool:
        """Whether the replica is on a device that failed: another one would begin it anew.

        Where one cannot even be asked who it is, it may have whatever the others do not.
        """
        assigned = image.directory(self._node.id)
        if any(each.failure is not None and each.id == assigned for each in self.dirs):
            return True
        return (
            not all(each.readable for each in self.dirs)
            and assigned not in NO_DIRECTORY
            and all(each.id != assigned for each in self.dirs)
        )

    def _holder(self, name: PartitionName) -> LogDir | None:
        """The directory in which the replica has files already."""
        found = self._found.replicas.pop(name, None) or self._begun.pop(name, None)
        if found is not None:
            return found
        return next((each for each in self._online() if each.holds(*name)), None)

    async def _open(
        self, name: PartitionName, topic_id: bytes, image: PartitionImage, directory: LogDir
    ) -> Partition | None:
        topic, index = name
        try:
            store = await self._open_log(name, topic_id, directory)
        except KafkaError as error:
            if error.code is ErrorCode.INCONSISTENT_TOPIC_ID:
                # A topic of the same name that was deleted while this node was away.
                await self._found.rename_stray(name, directory)
                pace = Pace(self._node.world.clock)
                await self._begin({name: Unopened(topic_id, image)}, pace, Counter())
                return self.get(topic, index)
            if isinstance(error, NoRoom):
                self._begun[name] = directory
                self._wait_for_room(name, error)
            else:
                self.offline(name, error)
            return None
        self._offline.pop(name, None)
        self._waiting.pop(name, None)
        partition = self._add(name, topic_id, store, directory)
        if store.lost_tail:
            self._node.note(EventKind.LOG_TRUNCATED, repr(partition), store.lost_tail)
        if store.cut_batches or name in self._found.doubtful:
            self._found.doubtful.discard(name)
            self._lose(name, topic_id, image)
        if store.failure is not None:
            self.offline(name, store.failure.error)
        return partition

    async def _open_log(self, name: PartitionName, topic_id: bytes, directory: LogDir) -> Log:
        return await directory.open_log(
            *name,
            topic_id,
            self._settings_of(name.topic),
            self._node.world.clock.now(),
            self._producer_expiration_ms(),
        )

    def _add(
        self, name: PartitionName, topic_id: bytes, store: Log, directory: LogDir
    ) -> Partition:
        checkpoint = directory.high_watermarks.get(name, 0)
        partition = Partition(name.topic, topic_id, name.partition, store, checkpoint)
        partition.closed = directory.closed
        self._partitions[name] = partition
        self._homes[name] = directory
        self.moves.settled_in(name)
        self._watch(partition)
        return partition

    def moved(self, name: PartitionName, partition: Partition, directory: LogDir) -> None:
        """The files of a replica are in another directory now."""
        self._homes[name] = directory
        partition.closed = directory.closed

    def is_cordoned(self, directory: LogDir) -> bool:
        return self._node.log_dirs.is_cordoned(directory)

    def _producer_expiration_ms(self) -> int:
        """How long producers are known; for ever while the clock is in doubt."""
        if self._node.clock_guard.paused:
            return FOR_EVER_MS
        return self._node.settings.producer_id_expiration_ms

    def _choose_dir(
        self, name: PartitionName, image: PartitionImage, expected: Counter[LogDir | None]
    ) -> LogDir | None:
        """For a new replica: where it was asked to go, where the controller put it, or else the
        directory with fewest logs, those that it is expected to get included, cordoned ones last.
        None where all are offline."""
        online = [directory for directory in self.dirs if directory.failure is None]
        preferred = self.moves.preferred(name)
        if preferred in online:
            return preferred
        assigned = image.directory(self._node.id)
        for directory in online:
            if directory.id == assigned:
                return directory
        cordoned = self._node.log_dirs.is_cordoned
        return min(online, key=lambda d: (cordoned(d), len(d.logs) + expected[d]), default=None)

    async def _delete(self, gone: list[tuple[str, bytes, tuple[int, ...]]]) -> None:
        pace = Pace(self._node.world.clock)
        for topic, topic_id, indexes in gone:
            self._topic_settings.pop(topic, None)
            for index in indexes:
                await pace()
                name = PartitionName(topic, index)
                here = self._partitions.get(name) or self._unopened.get(name)
                if here is None or here.topic_id == topic_id:
                    gone_for_good = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    self._remove_replica(name, gone_for_good)
            self._deleted.discard(topic_id)

    def _remove_replica(self, name: PartitionName, why: KafkaError) -> None:
        """Ends a replica: its directory gets another name now, its files go in the background."""
        self._offline.pop(name, None)
        self._damaged.pop(name, None)
        self._waiting.pop(name, None)
        self._unopened.pop(name, None)
        self._fileless.pop(name, None)
        self.moves.stop(name, f"ended: {why.message}")
        partition = self._partitions.pop(name, None)
        if partition is None:
            return
        self._inspecting.discard(partition)
        self._end(partition, why)
        store, home = partition.log, self._homes.pop(name)
        self.assignments.forget(name)
        with suppress(KafkaError):  # else it is not of the cluster at the next start
            with home.guarded(f"{store!r} cannot be taken away"):
                home.begin_deletion(store)
            self.remove_later(home, store, store.settings.file_delete_delay_ms)

    def remove_later(self, directory: LogDir, store: Log, delay_ms: int) -> None:
        """Removes the files of a log that was taken away, once nobody can be sending from them."""
        due = self._node.world.clock.mono_ms() + delay_ms
        self._removals.append((due, directory, store))

    def _end(self, partition: Partition, error: KafkaError) -> None:
        """Ends whatever role a replica has here."""
        self.fetchers.drop(partition)
        self.unheard.pop(partition, None)
        self.isr_updates.forget(partition)
        self.throttles.forget(partition)
        self.observers.forget(partition)
        partition.retire(error)
        self._node.on_replicas_removed((partition,))
        self._node.on_departure()

    async def _reconfigure(self, topics: set[str] | None) -> None:
        if topics is None:
            self._topic_settings.clear()
        else:
            for topic in topics:
                self._topic_settings.pop(topic, None)
        pace = Pace(self._node.world.clock)
        for partition in self:
            if topics is None or partition.topic in topics:
                self._inspecting.discard(partition)
                partition.configure(self._settings_of(partition.topic))
                self.moves.configure(partition, partition.settings)
                self._watch(partition)
                self._watch_placement(partition)
                await pace()
        self.configured += 1

    def _watch_placement(self, partition: Partition) -> None:
        """Who observed may vote now, and the other way round."""
        self.observers.watch(partition)
        image = self._now(partition.topic_id, partition.index)
        if partition.leader is not None:
            self.isr_updates.look(partition, self._node.world.clock.now())
        elif partition.follower is not None and partition not in self.observers:
            partition.serve(image is not None and self._node.id in image.isr)

    def _settings_of(self, topic: str) -> TopicSettings:
        found = self._topic_settings.get(topic)
        if found is None:
            overrides = self._node.image.config(TOPIC, topic)
            found = TopicSettings.resolve(overrides, self._node.settings)
            self._topic_settings[topic] = found
        return found

    def _watch(self, partition: Partition) -> None:
        self.throttles.watch(partition)
        if partition.topic in self._node.internal_topics:
            return  # no client writes there
        if partition.settings.compression_type != "producer" or (
            "compact" in partition.settings.cleanup_policy
        ):
            self._inspecting.add(partition)

    @property
    def offline_count(self) -> int:
        """Replicas that cannot be used, those that wait for room included."""
        return len(self._offline)

    def inspects(self) -> bool:
        """Whether any topic here makes a batch's records pass through the broker."""
        return bool(self._inspecting)

    # ---- failures ----

    def unreadable(self, path: str, error: OSError) -> None:
        """A device does not give what a segment has, of which an answer was being sent."""
        for partition in self._partitions.values():
            if path.startswith(f"{partition.log.directory}/"):
                cold_reads.unreadable(partition.log, error)
                return

    def offline(self, name: PartitionName, error: KafkaError) -> None:
        """A replica that cannot be used: it leads nothing, and clients are told why."""
        self._offline[name] = anew(error)
        self._fileless.pop(name, None)
        partition = self._partitions.pop(name, None)
        if partition is not None:
            self._end(partition, error)
            home, failure = self._homes.pop(name, None), partition.log.failure
            self.assignments.forget(name)
            told_elsewhere = self.moves.leave(name)
            damaged = home is not None and failure is not None and not failure.device
            if home is not None and damaged:
                self._damaged[name] = (home, partition.log)
            if damaged or told_elsewhere:
                self._tell_lost(name, partition.topic_id)
        self._node.note(
            EventKind.PARTITION_OFFLINE, f"{name.topic}-{name.partition}", error.message
        )

    def _tell_lost(self, name: PartitionName, topic_id: bytes) -> None:
        """Has the controller know of a damaged replica: another leads, and nobody trusts this one.

        With a failed device the next heartbeat says so of all that was on it.
        """
        image = self._now(topic_id, name.partition)
        if image is not None:
            known = image.directory(self._node.id)
            self.assignments.note(name, topic_id, DIRECTORY_LOST, known)
            self.assignments.begin_to_tell()

    def _lose(self, name: PartitionName, topic_id: bytes, image: PartitionImage) -> None:
        """Takes back the word that a replica is whole, where the controller goes by it."""
        if self._node.id in (*image.isr, *image.eligible_leader_replicas):
            self.assignments.lose(name, topic_id)

    async def losses_told(self) -> None:
        """Returns when the controller knows of every replica that is not whole."""
        while self.assignments.untold_losses:
            await self.assignments.tell()
            if self.assignments.untold_losses:
                await asyncio.sleep(LOSSES_PAUSE_S)

    def _wait_for_room(self, name: PartitionName, error: KafkaError) -> None:
        """A full device is no failed one: the replica is opened as soon as it fits.

        A new one is open already, empty; only its files are missing.
        """
        if name not in self._partitions:
            self._offline[name] = anew(error)
        if name not in self._waiting:
            self._waiting[name] = None
            about = f"{name.topic}-{name.partition}"
            self._node.note(EventKind.PARTITION_WAITS_FOR_ROOM, about, error.message)

    def open_waiting(self) -> None:
        """Has those tried again that found the device full."""
        if self._waiting and self._queue.idle:
            self._queue.append(self._open_waiting)
            self._queue.wake()

    async def _open_waiting(self) -> None:
        for name in tuple(self._waiting):
            topic = self._node.image.topics_by_name.get(name.topic)
            image = topic.partitions.get(name.partition) if topic is not None else None
            if topic is None or image is None:
                self._waiting.pop(name, None)
                continue
            partition = self._partitions.get(name)
            if partition is not None:  # a new one, which has no files yet
                self._fileless[name] = partition.log
                await self.work_off()
            else:
                await self._place([(topic.name, topic.id, [(name.partition, image)])])
            if name in self._waiting:
                return  # where one does not fit, the others do not either

    # ---- background passes ----

    async def remove_deleted(self, now_ms: int) -> None:
        due = [each for each in self._removals if each[0] <= now_ms]
        self._removals = [each for each in self._removals if each[0] > now_ms]
        for _, directory, store in due:
            try:
                with directory.guarded(f"{store!r}, which was taken away, cannot be removed"):
                    await store.truncation.remove_files()
            except NoRoom:
                self.remove_later(directory, store, 0)
            except KafkaError:
                pass  # the directory is offline now: its next start removes what is left

    async def checkpoint_starts(self) -> None:
        await self._in_each(LogDir.checkpoint_starts)

    def begin_trim(self, partition: Partition) -> None:
        """Somebody waits until every live replica of a partition led here begins where it does."""
        self._trimming[partition] = self._trimming.get(partition, 0) + 1
        partition.move_low_watermark()  # a broker may have gone while nobody waited

    def end_trim(self, partition: Partition) -> None:
        self._trimming[partition] -= 1
        if not self._trimming[partition]:
            del self._trimming[partition]

    async def checkpoint(self) -> None:
        await self._in_each(LogDir.checkpoint)

    async def checkpoint_high_watermarks(self) -> None:
        for number, (name, home) in enumerate(tuple(self._homes.items()), 1):
            partition = self._partitions.get(name)
            if partition is not None and self._homes.get(name) is home:
                home.high_watermarks.set(name, partition.high_watermark.value)
            if number % PARTITIONS_AT_ONCE == 0:
                await next_turn()
        await self._in_each(LogDir.checkpoint_high_watermarks)

    async def _in_each(self, checkpoint: Callable[[LogDir], Awaitable[None]]) -> None:
        """KafkaError: where it could not be written; the other directories have theirs."""
        refused: list[KafkaError] = []
        for directory in self._online():
            try:
                await checkpoint(directory)
            except KafkaError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _online(self) -> Iterator[LogDir]:
        return (directory for directory in self.dirs if directory.failure is None)

    async def close(self) -> None:
        """Ends every wait; the directories then close their logs."""
        self.fetchers.close()
        self.follower_sessions.close()
        await self.moves.close()
        await self.settled()
        closing = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
        for number, partition in enumerate(self, 1):
            partition.retire(closing)
            if number % PARTITIONS_AT_ONCE == 0:
                await next_turn()
