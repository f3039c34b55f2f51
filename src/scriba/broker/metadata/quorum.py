"""The metadata quorum's shell: runs the raft machine over `__cluster_metadata-0` and its files.

What the machine decides is carried out here, in its order: `quorum-state` is on disk before
anything that follows from it, and a batch counts for the commit only when the log is flushed past
it. Many appends share a flush: one runs at a time, and takes along all that was appended before it
began. A disk that fails here ends the node, since nobody can tell what of the cluster it knows.

This release serves quorums of one voter. Such a machine elects itself at the start, never has a
message to send and no deadline to keep, so what remains to carry out is what is written here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from scriba.broker.metadata import snapshots
from scriba.broker.metadata.snapshots import QuorumFacts, Snapshot
from scriba.broker.observe.events import Note
from scriba.config import StartError, StorageLost
from scriba.controller.image import ClusterImage
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import HardState, Position, Voter
from scriba.raft.roles import Timeouts
from scriba.records.batch import (
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    ControlType,
    assemble,
    check_crc,
    control_batch,
    decode_records,
    read_header,
    walk,
    write_varint,
)
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.log import Log, Slice
from scriba.storage.results import NoRoom, as_no_room
from scriba.storage.segments.not_resident import NotResident
from scriba.wire.messages.stored import (
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    QuorumStateData,
    VotersRecord,
    VotersRecordVoter,
    decode_metadata_record,
    decode_quorum_state,
    encode_quorum_state,
)
from scriba.wire.schema import Message

log = logging.getLogger(__name__)

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
KRAFT_LEVEL: Final = 1
MAX_BATCH_BYTES: Final = 8 << 20
READ_BYTES: Final = 1 << 20
QUORUM_STATE: Final = "quorum-state"


class Batch(NamedTuple):
    """A batch of the log, decoded. `facts` is set by control batches, which have no records."""

    base_offset: int
    end_offset: int
    epoch: int
    size: int
    timestamp: int
    records: Sequence[Message]
    facts: QuorumFacts | None = None


class BatchBuilder:
    """A batch of metadata records, made a record at a time so that long ones can be made slowly."""

    def __init__(self) -> None:
        self.count = 0
        self._body = bytearray()

    @property
    def size(self) -> int:
        return len(self._body)

    def add(self, value: bytes) -> None:
        record = bytearray(2)  # attributes, and no difference to the batch's timestamp
        write_varint(record, self.count)
        record.append(1)  # no key
        write_varint(record, len(value))
        record += value
        record.append(0)  # no headers
        write_varint(self._body, len(record))
        self._body += record
        self.count += 1

    def build(self, timestamp: int) -> bytearray:
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=self.count - 1,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            count=self.count,
        )
        return assemble(header, self._body)


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
        self._world = world
        self._identity = identity
        self._tasks = tasks
        self._flushing: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    @property
    def directory(self) -> str:
        return self.log.directory

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

    async def lead(self) -> Batch:
        """Writes down the epoch that the machine took, then opens it with its first batch."""
        ready = self.raft.ready()
        assert ready is not None
        assert ready.hard_state is not None
        assert not ready.sends, "a quorum of one talks to nobody"
        await self._save(ready.hard_state)
        return self._append_leader_change()

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

    def append(self, builder: BatchBuilder, records: Sequence[Message]) -> Batch:
        """Writes a batch of records, which is flushed soon; await the high watermark for that."""
        timestamp = self._world.clock.wall_ms()
        data = builder.build(timestamp)
        base = self._write(data, builder.count)
        end = base + builder.count
        return Batch(base, end, self.epoch, len(data), timestamp, records)

    def _write(self, data: bytearray, count: int) -> int:
        appended = self.log.append(
            memoryview(data), read_header(data), self.epoch, self._world.clock.now()
        )
        base = self.raft.append(count)
        assert base == appended.base_offset
        if self._flushing is None:
            self._flushing = self._tasks.spawn(self._flush(), name="metadata flush")
        return base

    async def _flush(self) -> None:
        try:
            while self.log.flushed_offset < self.log.end_offset:
                await self.log.flush()
                self.raft.persisted(self.log.flushed_offset, self._world.clock.now())
                ready = self.raft.ready()
                if ready is not None and ready.high_watermark is not None:
                    self.high_watermark.advance(ready.high_watermark)
        except KafkaError as error:
            text = f"the metadata log failed: {error.message}"
            self._tasks.fail(StorageLost(f"{text}; check the disk and start again"))
            self.high_watermark.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))
        except Exception as error:
            self.high_watermark.fail(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}")
            )
            raise
        finally:
            self._flushing = None

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
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self.log.close()


async def read_batches(store: Log, offset: int, facts: QuorumFacts) -> list[Batch]:
    """The log from `offset` to its end, decoded; `facts` are those of the quorum up to there.

    ParseError where a batch is damaged.
    """
    batches: list[Batch] = []
    while offset < store.end_offset:
        part = store.read(offset, READ_BYTES, store.end_offset)
        if isinstance(part, NotResident):
            await part.file.load(part.position, part.size)
            continue
        if not isinstance(part, Slice):
            raise ParseError(f"{store.directory}: nothing at offset {offset}")
        data = bytearray(part.size)
        part.file.pread_into(memoryview(data), part.position)
        before = offset
        for at, header in walk(data):
            if header.next_offset <= offset:
                continue
            if header.base_offset != offset or not check_crc(data, at, header):
                raise ParseError(f"{part.file.path}: the batch at offset {offset} is damaged")
            batch, facts = _decode(memoryview(data)[at : at + header.size], header, facts)
            batches.append(batch)
            offset = header.next_offset
        if offset == before:
            raise ParseError(f"{part.file.path}: no whole batch at offset {offset}")
    return batches


def _decode(data: memoryview, header: BatchHeader, facts: QuorumFacts) -> tuple[Batch, QuorumFacts]:
    messages: list[Message] = []
    for record in decode_records(data):
        if header.is_control:
            facts = snapshots.learn(facts, record)
        else:
            messages.append(decode_metadata_record(record.value or b""))
    batch = Batch(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.size,
        header.max_timestamp,
        messages,
        facts if header.is_control and facts.voters else None,
    )
    return batch, facts


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
