"""The controller of a node: requests in, committed images out.

A request is handled, its records are appended and replayed into the speculative image without an
await in between; then the call waits until the committed image has them, too. So whoever gets an
answer finds its effect in `image`, and nobody reads a state that a crash could take back. Committed
batches are folded in order by one task, and each change is told to the subscribers on the loop.

Work on thousands of records is cut into slices. While such a request is under way others wait their
turn, but the loop does not: between two slices it serves whatever else is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.metadata import snapshots
from scriba.broker.metadata.quorum import (
    MAX_BATCH_BYTES,
    TOPIC,
    Batch,
    BatchBuilder,
    Identity,
    MetadataQuorum,
)
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.controller.features import SUPPORTED
from scriba.controller.image import KRAFT_VERSION, ClusterImage, Delta, ImageError
from scriba.controller.machine import Controller, encode, idle_record
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.raft.messages import Position, Voter
from scriba.raft.progress import Replica
from scriba.records.batch import HEADER_SIZE
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings
from scriba.storage.results import NoRoom
from scriba.wire.messages.admin import CreatePartitionsRequest, CreateTopicsRequest
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Node,
    ReplicaState,
)
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.request import Context

log = logging.getLogger(__name__)

SLICE: Final = 128
SLICE_MS: Final = 5
"""Records handled in one go, and for how long: the loop has others to serve."""

LONG_REPLAY_BYTES: Final = 2 << 20
"""A start that had to read more than this leaves a snapshot to the next one. Every restart writes
two records for each partition: without it, each would take longer than the one before."""

SNAPSHOT_PAUSE_MS: Final = 10_000
"""How long after a full device refused a snapshot the next one is tried."""

Subscriber = Callable[[Delta, ClusterImage], None]


class QuorumController:
    def __init__(
        self,
        world: World,
        log_dir: str,
        *,
        node_id: int,
        cluster_id: str,
        directory_id: bytes,
        settings: NodeSettings,
        tasks: Tasks,
        note: Note,
        supported: Mapping[str, tuple[int, int]] = SUPPORTED,
        on_refused: Callable[[str], None] | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`log_dir` is the directory that holds the metadata log, `directory_id` its id.

        `on_refused` is told what the device did not take; `has_room` tells whether this broker can
        make another partition.
        """
        self.image = ClusterImage()
        """The committed image. It is replaced or changed between two turns of the loop: read it
        afresh, or `copy()` what must not change under you."""
        self.applied = Watermark()
        """How far `image` is."""
        self._world = world
        self._log_dir = log_dir
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._settings = settings
        self._tasks = tasks
        self._note = note
        self._supported = supported
        self._on_refused = on_refused
        self._has_room = has_room
        endpoints = tuple(
            (e.name, e.host, e.port)
            for e in settings.endpoints
            if e.name in settings.controller_names
        )
        self._identity = Identity(Voter(node_id, directory_id), endpoints)
        self._subscribers: list[Subscriber] = []
        self._waiting: deque[Batch] = deque()
        """Appended, but not yet in the committed image."""
        self._long: asyncio.Future[None] | None = None
        self._machine: Controller | None = None
        self._bytes_since_snapshot = 0
        self._long_replay = False
        self._last_timestamp = -1
        self._last_append = 0
        self._snapshots: dict[Position, int] = {}
        self._snapshot_at = 0
        self._snapshotting: asyncio.Task[None] | None = None
        self._no_snapshot_before = 0
        """While the device was found full."""

    # ---- start and stop ----

    async def start(
        self,
        *,
        clean: bool = False,
        also: Callable[[ClusterImage, int], list[Message]] = lambda image, newest_ms: [],
    ) -> None:
        """Opens the metadata log and leads its quorum. StartError when that cannot be.

        `also` is given the image and the newest time in the log, and returns records that go in
        with the first ones.

        The image is complete with the first call that returns: its commit is also that of all
        records before it, so a broker that registers pays for one flush, not for two.
        """
        now = self._world.clock.now()
        self._quorum, snapshot, batches = await MetadataQuorum.open(
            self._world,
            self._log_dir,
            self._identity,
            self._settings,
            self._tasks,
            self._note,
            clean=clean,
        )
        self._quorum.log.on_refused = self._on_refused
        try:
            if snapshot is not None:
                self._load(snapshot)
            speculative = self.image.copy()
            replayed = Delta()
            for batch in batches:
                _fold(speculative, batch, replayed)
                self._count(batch)
        except ImageError as error:
            raise StartError(f"the metadata of the cluster cannot be followed: {error}") from error
        self._long_replay = self._bytes_since_snapshot >= LONG_REPLAY_BYTES
        opened = speculative.copy()
        self._machine = Controller(
            speculative,
            node_id=self._node_id,
            cluster_id=self._cluster_id,
            settings=self._settings,
            uuid=self._world.rng.uuid,
            below=self._world.rng.below,
            supported=self._supported,
        )
        try:
            first = [*self._machine.activate(now, own_broker=self._node_id)]
            first += also(speculative, self._last_timestamp)
        except KafkaError as error:
            raise StartError(f"{error.message}; start a release that supports it") from error
        opening = await self._quorum.lead()
        self._waiting.append(opening)
        _fold(self._machine.image, opening, Delta())
        self._append(first)
        self._snapshot_at = now.mono_ms
        for position in snapshots.find(self._world.disk, self._quorum.directory):
            self._snapshots[position] = now.wall_ms
        self._tasks.spawn(self._follow_commits(opened), name="metadata image")

    def _load(self, snapshot: snapshots.Snapshot) -> None:
        delta = Delta()
        position = snapshot.position
        for records in snapshot.batches:
            # The records have no offsets of their own: all stand for the snapshot's last one.
            for record in records:
                self.image.replay((record,), position.offset - 1, position.epoch, delta)
        self.image.advance(position.offset, position.epoch, delta)
        if snapshot.quorum.kraft_version:
            self.image.set_feature(KRAFT_VERSION, snapshot.quorum.kraft_version, delta)
        self.applied.advance(position.offset)
        self._last_timestamp = snapshot.last_timestamp

    async def stop(self) -> None:
        """Closes the log when all that was appended is flushed."""
        if self._snapshotting is not None:
            self._snapshotting.cancel()
        await self._quorum.close()

    def subscribe(self, subscriber: Subscriber) -> None:
        """From now on `subscriber(delta, image)` runs after each change, in order, on the loop."""
        self._subscribers.append(subscriber)

    # ---- requests ----

    async def call(
        self, request: Message, version: int | None = None, ctx: Context | None = None
    ) -> Any:
        """Carries out a request and returns its response once that is committed.

        KafkaError when the request is refused as a whole.
        """
        if self._machine is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if isinstance(request, DescribeQuorumRequest):
            return self._describe_quorum(request)
        if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
            self._check_room()
        while self._long is not None:
            await asyncio.shield(self._long)
        result = self._machine.handle(
            request,
            request.VERSIONS.high if version is None else version,
            self._world.clock.now(),
        )
        await self._carry_out(result.records, result.atomic)
        return result.response

    def _check_room(self) -> None:
        """Nobody is told of a partition that has no place yet."""
        if not self._has_room():
            raise NoRoom(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "no log directory has room for another partition: make room, and try again",
            )

    async def _carry_out(self, records: Iterable[Message], atomic: bool) -> None:
        pull = iter(records)
        first, more = self._slice(pull)
        if more:
            # Begun, it must end, even if the caller goes: half of it would not be in the image.
            self._long = asyncio.get_running_loop().create_future()
            await asyncio.shield(asyncio.ensure_future(self._in_slices(first, pull, atomic)))
        else:
            self._append(first)
        # Reads wait as well: they may rest on records that are still on their way.
        await self.applied.reach(self._quorum.log.end_offset)

    def _slice(self, pull: Iterator[Message]) -> tuple[list[Message], bool]:
        """The next records, and whether there may be more."""
        records: list[Message] = []
        clock = self._world.clock
        end = clock.mono_ms() + SLICE_MS
        for record in pull:
            records.append(record)
            if len(records) == SLICE or clock.mono_ms() >= end:
                return records, True
        return records, False

    async def _in_slices(
        self, records: list[Message], pull: Iterator[Message], atomic: bool
    ) -> None:
        assert self._long is not None
        try:
            if atomic:
                await self._append_slowly(records, pull)
            else:
                while records:
                    self._append(records)
                    await asyncio.sleep(0)
                    records, _ = self._slice(pull)
        finally:
            self._long.set_result(None)
            self._long = None

    async def _append_slowly(self, records: list[Message], pull: Iterator[Message]) -> None:
        """One batch of any number of records: encoded and replayed a slice at a time."""
        builder = BatchBuilder()
        everything: list[Message] = []
        while records:
            for record in records:
                builder.add(encode(record))
            everything += records
            await asyncio.sleep(0)
            records, _ = self._slice(pull)
        batch = self._write(builder, everything)
        assert self._machine is not None
        for at in range(0, len(everything), SLICE):
            part = everything[at : at + SLICE]
            self._machine.replay(part, batch.base_offset + at, batch.epoch)
            await asyncio.sleep(0)

    def _append(self, records: Sequence[Message]) -> None:
        if not records:
            return
        builder = BatchBuilder()
        for record in records:
            builder.add(encode(record))
        batch = self._write(builder, records)
        assert self._machine is not None
        self._machine.replay(records, batch.base_offset, batch.epoch)

    def _write(self, builder: BatchBuilder, records: Sequence[Message]) -> Batch:
        if builder.size + HEADER_SIZE > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the change takes {builder.size + HEADER_SIZE} bytes in the metadata log, one may "
                f"take {MAX_BATCH_BYTES}; ask for it in parts",
            )
        batch = self._quorum.append(builder, records)
        self._waiting.append(batch)
        self._last_append = self._world.clock.mono_ms()
        return batch

    # ---- the committed image ----

    async def _follow_commits(self, opened: ClusterImage) -> None:
        """`opened` is what the log held at the start: committed with the first batch after it."""
        try:
            await self._quorum.high_watermark.reach(opened.end_offset + 1)
            self.image = opened
            while True:
                await self._quorum.high_watermark.reach(self.image.end_offset + 1)
                await self._apply(self._take_committed())
        except Exception as error:
            # Nobody who waits for a commit may wait for ever.
            self.applied.fail(error)
            raise

    def _take_committed(self) -> list[Batch]:
        committed: list[Batch] = []
        while self._waiting and self._waiting[0].end_offset <= self._quorum.high_watermark.value:
            committed.append(self._waiting.popleft())
        return committed

    async def _apply(self, batches: list[Batch]) -> None:
        delta = Delta()
        if sum(len(batch.records) for batch in batches) <= 2 * SLICE:
            for batch in batches:
                _fold(self.image, batch, delta)
        else:
            # A long change is made on a copy, so that nobody sees half of it between two slices.
            image = self.image.copy()
            for batch in batches:
                for at in range(0, len(batch.records), SLICE):
                    part = batch.records[at : at + SLICE]
                    image.replay(part, batch.base_offset + at, batch.epoch, delta)
                    await asyncio.sleep(0)
                _fold(image, batch._replace(records=()), delta)
            self.image = image
        for batch in batches:
            self._count(batch)
        if delta:
            for subscriber in self._subscribers:
                subscriber(delta, self.image)
        self.applied.advance(self.image.end_offset)

    def _count(self, batch: Batch) -> None:
        self._bytes_since_snapshot += batch.size
        self._last_timestamp = max(self._last_timestamp, batch.timestamp)

    # ---- background ----

    async def tick(self, now: Instant) -> None:
        """One bounded pass, due at least every half second: sessions, idle records, snapshots."""
        if self._machine is None or self._long is not None:
            return
        expired = self._machine.tick(now)
        if expired:
            with self.unless_refused():
                await self._carry_out(expired, atomic=False)
        idle = self._settings.metadata_max_idle_interval_ms
        if idle and now.mono_ms - self._last_append >= idle:
            self._say_alive()
        if self._snapshot_due(now):
            self._snapshotting = self._tasks.spawn(self._snapshot(now), name="metadata snapshot")

    def _say_alive(self) -> None:
        self._last_append = self._world.clock.mono_ms()
        with self.unless_refused():
            self._append([idle_record()])

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """For work that comes again by itself, when the device takes no writes.

        A full disk is no reason to stop: what is there can still be read. A log that failed is.
        """
        try:
            yield
        except KafkaError as error:
            refused = error.code is ErrorCode.KAFKA_STORAGE_ERROR
            if not refused or self._quorum.log.failure is not None:
                raise

    def _snapshot_due(self, now: Instant) -> bool:
        if self._snapshotting is not None or not self._bytes_since_snapshot:
            return False
        if now.mono_ms < self._no_snapshot_before:
            return False
        interval = self._settings.metadata_log_max_snapshot_interval_ms
        return (
            self._bytes_since_snapshot
            >= self._settings.metadata_log_max_record_bytes_between_snapshots
            or 0 < interval <= now.mono_ms - self._snapshot_at
            or self._long_replay
        ) and not self.image.in_transaction

    async def _snapshot(self, now: Instant) -> None:
        counted, long = self._bytes_since_snapshot, self._long_replay
        try:
            self._bytes_since_snapshot = 0
            self._long_replay = False
            taken = await self._quorum.write_snapshot(self.image.copy(), self._last_timestamp)
            self._snapshot_at = now.mono_ms
            self._snapshots[taken] = now.wall_ms
            await self._quorum.clean(self._settings, now, self._snapshots)
        except NoRoom as error:
            # The log itself is all there; it only stays longer.
            self._bytes_since_snapshot += counted
            self._long_replay = self._long_replay or long
            self._no_snapshot_before = now.mono_ms + SNAPSHOT_PAUSE_MS
            if self._on_refused is not None:
                self._on_refused(error.message)
        finally:
            self._snapshotting = None

    # ---- DescribeQuorum ----

    def _describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        response = DescribeQuorumResponse()
        for topic in request.topics:
            answer = DescribeQuorumResponseTopicData(topic_name=topic.topic_name)
            response.topics.append(answer)
            for partition in topic.partitions:
                index = partition.partition_index
                if topic.topic_name == TOPIC and index == 0:
                    answer.partitions.append(self._describe_partition())
                else:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    answer.partitions.append(
                        DescribeQuorumResponsePartitionData(
                            partition_index=index, error_code=code, error_message=code.text
                        )
                    )
        if any(not p.error_code for topic in response.topics for p in topic.partitions):
            listeners = [
                DescribeQuorumResponseListener(name=name, host=host, port=port)
                for name, host, port in self._identity.endpoints
            ]
            response.nodes = [Node(node_id=self._node_id, listeners=listeners)]
        return response

    def _describe_partition(self) -> DescribeQuorumResponsePartitionData:
        raft, now = self._quorum.raft, self._world.clock.now()
        assert raft.progress is not None

        def state(replica: Replica) -> ReplicaState:
            own = replica.voter == raft.own
            return ReplicaState(
                replica_id=replica.voter.id,
                replica_directory_id=replica.voter.directory,
                log_end_offset=raft.log.end_offset if own else replica.end_offset,
                last_fetch_timestamp=now.wall_ms if own else replica.last_fetch_ms,
                last_caught_up_timestamp=now.wall_ms if own else replica.last_caught_up_ms,
            )

        return DescribeQuorumResponsePartitionData(
            partition_index=0,
            error_message=None,
            leader_id=raft.own.id,
            leader_epoch=raft.epoch,
            high_watermark=raft.high_watermark,
            current_voters=[state(replica) for replica in raft.progress.voters.values()],
            observers=[state(replica) for replica in raft.progress.observers.values()],
        )


def _fold(image: ClusterImage, batch: Batch, delta: Delta) -> None:
    if batch.records:
        image.replay(batch.records, batch.base_offset, batch.epoch, delta)
    if batch.facts is not None:
        image.set_feature(KRAFT_VERSION, batch.facts.kraft_version, delta)
    image.advance(batch.end_offset, batch.epoch, delta)
