"""The metadata quorum's shell: runs the raft machine over `__cluster_metadata-0` and its files.

What the machine decides is carried out here, in its order: `quorum-state` is on disk before
anything that follows from it, a truncation before the next append, and a batch counts for the
commit only when the log is flushed past it. Many appends share a flush: one runs at a time, and
takes along all that was appended before it began. A disk that fails here ends the node, since
nobody can tell what of the cluster it knows.

Every node has one, voter or not. What the log says is for others: `on_leadership`, `on_append` and
`on_truncate` tell them, on the loop, and `high_watermark` says how far it is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from scriba.broker.metadata import snapshots
from scriba.broker.metadata.batches import Batch, BatchBuilder, read_batches
from scriba.broker.metadata.snapshots import QuorumFacts, Snapshot
from scriba.broker.observe.events import Note
from scriba.config import StartError, StorageLost
from scriba.controller.image import ClusterImage
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.peers.ports import Signal
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import HardState, Leadership, Position, Ready, Voter
from scriba.raft.roles import Role, Timeouts
from scriba.records.batch import ControlType, control_batch, read_header
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.log import Log
from scriba.storage.results import NoRoom, as_no_room
from scriba.wire.messages.stored import (
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    QuorumStateData,
    VotersRecord,
    VotersRecordVoter,
    decode_quorum_state,
    encode_quorum_state,
)
from scriba.wire.schema import Message

log = logging.getLogger(__name__)

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
KRAFT_LEVEL: Final = 1
MAX_BATCH_BYTES: Final = 8 << 20
QUORUM_STATE: Final = "quorum-state"


class Identity(NamedTuple):
    """This node as a voter, and where its controller can be reached."""

    voter: Voter
    endpoints: tuple[tuple[str, str, int], ...]


class MetadataQuorum:
    def __init__(
        self,
        world: World,
        store: Log,
        raft: Raft,
        facts: QuorumFacts,
        identity: Identity,
        tasks: Tasks,
    ) -> None:
        self.log = store
        self.raft = raft
        self.facts = facts
        self.high_watermark = Watermark(raft.high_watermark)
        self.leadership = Leadership(raft.epoch, None)
        """Who leads which epoch, as far as this node may act upon it: its disk knows, too."""
        self.on_leadership: Callable[[Leadership], None] = lambda leadership: None
        self.on_append: Callable[[Batch], None] = lambda batch: None
        """Told of the batches that this node writes as the leader, and of no others."""
        self.changed = Signal()
        """Woken when there is another leader, or when the active controller is there."""
        self.fetched = Signal()
        """Woken on the leader when a fetch has told how far a replica is."""
        self.on_truncate: Callable[[int], None] = lambda offset: None
        self._world = world
        self._identity = identity
        self._tasks = tasks
        self._flushing: asyncio.Task[None] | None = None
        self._writing = False
        """Whether something is on its way to the disk that must come before all else."""
        self._running = False
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    @property
    def directory(self) -> str:
        return self.log.directory

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER

    def leader_address(self, node_id: int) -> tuple[str, int] | None:
        """Where a controller is reached; None while that is not known."""
        for _, host, port in self.voter_endpoints().get(node_id, ()):
            return host, port
        return None

    def voter_endpoints(self) -> dict[int, tuple[tuple[str, str, int], ...]]:
        """Where each voter can be reached: listener, host and port."""
        if self.facts.voters is None:
            return {}
        return {
            voter.voter_id: tuple((e.name, e.host, e.port) for e in voter.endpoints)
            for voter in self.facts.voters.voters
        }

    # ---- start ----

    @classmethod
    async def open(
        cls,
        world: World,
        log_dir: str,
        identity: Identity,
        settings: NodeSettings,
        tasks: Tasks,
        note: Note,
        *,
        clean: bool = False,
    ) -> tuple[MetadataQuorum, Snapshot | None, list[Batch]]:
        """Opens the files and returns what they hold: the newest snapshot and what follows it.

        StartError when they are damaged or belong to another quorum. May wait for the device.
        """
        directory = f"{log_dir}/{TOPIC}-0"
        now = world.clock.now()
        with as_no_room(f"{directory} cannot be opened"):
            world.disk.mkdir(directory)
        snapshots.remove_parts(world.disk, directory)
        found = snapshots.find(world.disk, directory)
        # What a snapshot holds was committed, hence flushed.
        recovery_point = None if clean else found[0].offset if found else 0
        with as_no_room(f"{directory} cannot be opened"):
            store = _open_log(world, directory, settings, recovery_point, clean, now)
        try:
            if store.failure is not None:
                raise ParseError(store.failure.error.message)
            if store.lost_tail:
                note(EventKind.LOG_TRUNCATED, repr(store), store.lost_tail)
            if store.cut_tail:
                await store.sync(hurried=True)
            snapshot = snapshots.newest_valid(world.disk, directory, store.start_offset, note)
            if snapshot is not None and snapshot.position.offset > store.end_offset:
                store.truncation.truncate_fully(snapshot.position.offset, now)
            first = snapshot.position.offset if snapshot else 0
            facts = snapshot.quorum if snapshot else QuorumFacts(0, None)
            batches = await read_batches(store, first, facts)
        except ParseError as error:
            raise StartError(
                f"the metadata of the cluster is damaged: {error}; restore {directory} from a copy"
            ) from error
        for batch in batches:
            facts = batch.facts or facts
        _check_voters(facts, identity, directory)
        start = _start_position(store, found)
        raft = Raft(
            identity.voter,
            [identity.voter],
            _read_quorum_state(world, directory),
            EpochTable(start, store.epochs.entries(), store.end_offset),
            store.flushed_offset,
            world.rng.below,
            now,
            _timeouts(settings),
        )
        return cls(world, store, raft, facts, identity, tasks), snapshot, batches

    async def begin(self) -> None:
        """Carries out what the machine wants at first; NoRoom if the device does not take it.

        A machine that is the only voter leads after it.
        """
        ready = self.raft.ready()
        self._running = True
        if ready is not None:
            self._writing = True
            await self._carry_out_slowly(ready)
            self._writing = False
        self._settle()

    # ---- what the machine wants ----

    def _settle(self) -> None:
        """Carries out the machine's orders, unless a write that comes before them is under way.

        To be called after everything that the machine was told.
        """
        while self._running and not self._writing and (ready := self.raft.ready()) is not None:
            if ready.hard_state is None and ready.truncate_to is None:
                self._carry_out(ready)
            else:
                self._writing = True
                self._tasks.spawn(self._after_writing(ready), name="metadata quorum")
        self._set_alarm()

    async def _after_writing(self, ready: Ready) -> None:
        try:
            await self._carry_out_slowly(ready)
        except KafkaError as error:
            self._fail(error)
            return
        self._writing = False
        self._settle()

    async def _carry_out_slowly(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            await self._save(ready.hard_state)
        if ready.truncate_to is not None:
            now = self._world.clock.now()
            self.log.truncation.truncate_to(ready.truncate_to, now)
            # Or a power cut could mix what was cut off with what comes in its place.
            await self.log.sync()
            self.on_truncate(ready.truncate_to)
        self._carry_out(ready)

    def _carry_out(self, ready: Ready) -> None:
        if ready.leadership is not None:
            self._tell(ready.leadership)
        if ready.high_watermark is not None:
            self.high_watermark.advance(ready.high_watermark)

    def _tell(self, leadership: Leadership) -> None:
        if leadership.leader == self.raft.own.id and not self._leads(leadership.epoch):
            leadership = leadership._replace(leader=None)
        self.leadership = leadership
        if self._leads(leadership.epoch):
            self.on_append(self._append_leader_change())
        self.on_leadership(leadership)
        self.changed.wake()

    def _leads(self, epoch: int) -> bool:
        return self.raft.role is Role.LEADER and self.raft.epoch == epoch

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self.raft.next_deadline() if self._running else None
        if due is not None:
            delay = max(due - self._world.clock.mono_ms(), 0) / 1000
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.raft.tick(self._world.clock.now())
        self._settle()

    async def _save(self, state: HardState) -> None:
        data = QuorumStateData(
            leader_id=-1 if state.leader is None else state.leader,
            leader_epoch=state.epoch,
            voted_id=state.voted.id if state.voted else -1,
            voted_directory_id=state.voted.directory if state.voted else bytes(16),
        )
        path = f"{self.directory}/{QUORUM_STATE}"
        with as_no_room(f"{path} cannot be written"):
            await self._world.disk.write_atomic(path, encode_quorum_state(data))

    def _append_leader_change(self) -> Batch:
        """An epoch begins with who leads it, then the voters if they or their addresses are new."""
        voter = self._identity.voter
        named = [LeaderChangeMessageVoter(voter_id=voter.id)]
        # Version 0, without directories: Kafka 4.3 reads no other.
        change = LeaderChangeMessage(leader_id=voter.id, voters=named, granting_voters=named)
        entries = [(ControlType.LEADER_CHANGE, change.encode(0))]
        voters = _voters_record(self._identity)
        if self.facts.kraft_version < KRAFT_LEVEL:
            version = KRaftVersionRecord(kraft_version=KRAFT_LEVEL)
            entries.append((ControlType.KRAFT_VERSION, version.encode(0)))
        if self.facts.voters != voters:
            entries.append((ControlType.KRAFT_VOTERS, voters.encode(0)))
        self.facts = QuorumFacts(KRAFT_LEVEL, voters)
        timestamp = self._world.clock.wall_ms()
        data = control_batch(entries, timestamp)
        base = self._write(data, len(entries))
        return Batch(base, base + len(entries), self.epoch, len(data), timestamp, (), self.facts)

    # ---- writing ----

    def append(self, builder: BatchBuilder, records: Sequence[Message], epoch: int) -> Batch:
        """Writes a batch of records, which is flushed soon; await the high watermark for that.

        NOT_CONTROLLER unless this node leads `epoch`.
        """
        if not self._leads(epoch):
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        timestamp = self._world.clock.wall_ms()
        data = builder.build(timestamp)
        base = self._write(data, builder.count)
        batch = Batch(base, base + builder.count, epoch, len(data), timestamp, records)
        self.on_append(batch)
        self._settle()
        return batch

    def _write(self, data: bytearray, count: int) -> int:
        appended = self.log.append(
            memoryview(data), read_header(data), self.epoch, self._world.clock.now()
        )
        base = self.raft.append(count)
        assert base == appended.base_offset
        self._flush_soon()
        return base

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._tasks.spawn(self._flush(), name="metadata flush")

    async def _flush(self) -> None:
        try:
            while self.log.flushed_offset < self.log.end_offset:
                await self.log.flush()
                self.raft.persisted(self.log.flushed_offset, self._world.clock.now())
                self._settle()
        except KafkaError as error:
            self._fail(error)
        except Exception as error:
            self.high_watermark.fail(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}")
            )
            raise
        finally:
            self._flushing = None

    def _fail(self, error: KafkaError) -> None:
        """The disk failed: nobody can tell any more what it holds."""
        self._running = False
        text = f"the metadata log failed: {error.message}"
        self._tasks.fail(StorageLost(f"{text}; check the disk and start again"))
        self.high_watermark.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))

    # ---- snapshots ----

    async def write_snapshot(self, image: ClusterImage, last_timestamp: int) -> Position:
        """Writes a snapshot of a committed image that nobody changes, a batch per turn."""
        position = Position(image.epoch, image.end_offset)
        assert position.offset <= self.high_watermark.value
        batches = snapshots.encoded(position, self.facts, image.records(), last_timestamp)
        disk = self._world.disk
        try:
            with as_no_room("a snapshot of the metadata does not fit"):
                size = await snapshots.write(disk, self.directory, position, _slowly(batches))
        except NoRoom:
            snapshots.remove_parts(disk, self.directory)
            raise
        log.info("snapshot of the metadata at %d: %d bytes", position.offset, size)
        return position

    async def clean(self, settings: NodeSettings, now: Instant, taken: dict[Position, int]) -> None:
        """Lets go of old snapshots, and of the log before the oldest one that stays.

        `taken` says when each snapshot was taken; the newest is never among those that go.
        """
        disk = self._world.disk
        found = snapshots.find(disk, self.directory)
        while len(found) > 1:
            oldest = found[-1]
            total = self.log.size + sum(
                disk.size(f"{self.directory}/{snapshots.file_name(each)}") for each in found
            )
            age = now.wall_ms - taken.get(oldest, now.wall_ms)
            old = age > settings.metadata_max_retention_ms >= 0
            large = total > settings.metadata_max_retention_bytes >= 0
            if not (old or large):
                break
            found.pop()
            if found[-1].offset >= self.high_watermark.value:
                break  # the segment that ends here may be part of the flush under way
            # First the log, then the snapshot: a crash between the two leaves one too many.
            if found[-1].offset > self.log.start_offset:
                self.log.delete_records_to(found[-1].offset)
                self.raft.snapshot_taken(found[-1])
            disk.unlink(f"{self.directory}/{snapshots.file_name(oldest)}")
        await self.log.truncation.retention(now, self.high_watermark.value, by_age=False)

    async def close(self) -> None:
        """Waits for the flush that is on its way, and closes the files."""
        self._running = False
        self._set_alarm()
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self.log.close()


async def _slowly(batches: Iterable[bytearray]) -> AsyncIterator[bytearray]:
    for batch in batches:
        yield batch
        await asyncio.sleep(0)


def _open_log(
    world: World,
    directory: str,
    settings: NodeSettings,
    recovery_point: int | None,
    clean: bool,
    now: Instant,
) -> Log:
    return Log.open(
        world.disk,
        directory,
        TOPIC,
        0,
        TOPIC_ID,
        _log_settings(settings),
        now,
        recovery_point=recovery_point,
        clean=clean,
        offload=world.offload,
    )


def _timeouts(settings: NodeSettings) -> Timeouts:
    return Timeouts(
        settings.controller_quorum_election_timeout_ms,
        settings.controller_quorum_fetch_timeout_ms,
        settings.controller_quorum_request_timeout_ms,
    )


def _log_settings(settings: NodeSettings) -> TopicSettings:
    """Kafka keeps the metadata log by snapshots, never by the retention of topics."""
    return TopicSettings(
        segment_bytes=settings.metadata_log_segment_bytes,
        segment_ms=settings.metadata_log_segment_ms,
        retention_ms=-1,
        retention_bytes=-1,
        max_message_bytes=MAX_BATCH_BYTES,
    )


def _start_position(store: Log, found: Sequence[Position]) -> Position:
    """Where the log begins for the quorum: at zero, or at the oldest snapshot."""
    return found[-1] if store.start_offset and found else Position(0, 0)


def _read_quorum_state(world: World, directory: str) -> HardState:
    path = f"{directory}/{QUORUM_STATE}"
    if not world.disk.exists(path):
        return HardState(0)
    try:
        state = decode_quorum_state(world.disk.read(path))
    except ParseError as error:
        raise StartError(
            f"{path} is damaged ({error}); restore it from a copy, or remove it if this node is "
            "the only controller"
        ) from error
    voted = Voter(state.voted_id, state.voted_directory_id) if state.voted_id >= 0 else None
    return HardState(
        max(state.leader_epoch, 0), state.leader_id if state.leader_id >= 0 else None, voted
    )


def _check_voters(facts: QuorumFacts, identity: Identity, directory: str) -> None:
    if facts.voters is None:
        return
    voters = [Voter(v.voter_id, v.voter_directory_id) for v in facts.voters.voters]
    if voters != [identity.voter]:
        names = ", ".join(str(voter.id) for voter in voters)
        raise StartError(
            f"{directory} belongs to a quorum of the nodes {names} on other disks; this release "
            f"serves one controller, which must be node {identity.voter.id} on its own disk"
        )


def _voters_record(identity: Identity) -> VotersRecord:
    return VotersRecord(
        voters=[
            VotersRecordVoter(
                voter_id=identity.voter.id,
                voter_directory_id=identity.voter.directory,
                endpoints=[
                    Endpoint(name=name, host=host, port=port)
                    for name, host, port in identity.endpoints
                ],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=KRAFT_LEVEL
                ),
            )
        ]
    )
