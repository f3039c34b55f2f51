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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from scriba.broker.channels import Address
from scriba.broker.metadata.quorum import quorum_state, snapshots
from scriba.broker.metadata.quorum.batches import Batch, BatchBuilder
from scriba.broker.metadata.quorum.reserve import MetadataReserve
from scriba.broker.metadata.quorum.snapshots import FETCHED, SUFFIX, QuorumFacts, Snapshot
from scriba.broker.metadata.quorum.transport import QuorumTransport
from scriba.broker.metadata.quorum.voters import (
    KRAFT_LEVEL,
    Membership,
    VoterHistory,
    current_voters,
    voters_record,
    with_voter,
)
from scriba.broker.metadata.quorum.wire import TOPIC, Endpoints, WireError
from scriba.broker.observe.events import Note
from scriba.config import StorageLost
from scriba.controller.image import ClusterImage
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.peers.errors import ClientError
from scriba.peers.ports import Signal
from scriba.raft.allowance import EpochAllowance
from scriba.raft.machine import Raft
from scriba.raft.messages import (
    FetchReply,
    FetchRequest,
    Leadership,
    Position,
    Ready,
    Reply,
    Request,
)
from scriba.raft.roles import Role
from scriba.records.batch import (
    ControlType,
    control_batch,
    decode_records,
    read_header,
    walk,
)
from scriba.runtime.loop.pace import Pace
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings
from scriba.storage.log import Log
from scriba.storage.results import NoRoom, as_no_room, storage_error
from scriba.wire.messages.stored import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from scriba.wire.schema import Message

log = logging.getLogger(__name__)

T = TypeVar("T")

QUORUM_STATE: Final = "quorum-state"
ROOM_PAUSE_S: Final = 0.2
MANY_EPOCHS: Final = 1_000
"""More than a controller is ever behind that asks before it takes the next (KIP-996)."""
"""Before a full device is tried again with what nothing may come before."""
RESERVE_PAUSE_S: Final = 5.0
"""Between looks whether there is room for the reserve again."""


class WantedSnapshot(NamedTuple):
    """What the leader of an epoch told this node to begin with."""

    position: Position
    epoch: int


class MetadataQuorum:
    def __init__(
        self,
        world: World,
        store: Log,
        raft: Raft,
        history: VoterHistory,
        membership: Membership,
        tasks: Tasks,
        note: Note,
    ) -> None:
        self.log = store
        self.raft = raft
        self.history = history
        self.identity = membership.identity
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
        self.on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
        """Told of a snapshot from the leader, which stands for the log up to its end."""
        self.transport: QuorumTransport | None = None
        self.on_refused: Callable[[str], None] = lambda text: None
        """Told of what the device did not take, though the reserve gave what it had."""
        self.reserve = MetadataReserve(world.disk, store.directory, 0, note)
        store.on_refused = self._refused
        store.make_room = self._give_room
        self._world = world
        self._alone = membership.alone
        self._tasks = tasks
        self._note = note
        self._allowance = EpochAllowance(world.clock.mono_ms())
        self._flushing: asyncio.Task[None] | None = None
        self._appending = False
        """Whether a batch is being appended: whoever does that asks for the room it needs."""
        self._reserving: asyncio.Task[None] | None = None
        self._writing = False
        """Whether something is on its way to the disk that must come before all else."""
        self._writer: asyncio.Task[None] | None = None
        """Who brings there what the machine wants."""
        self._wanted: WantedSnapshot | None = None
        self._fetching = False
        """Whether a snapshot of the leader is on its way."""
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

    @property
    def facts(self) -> QuorumFacts:
        return self.history.latest

    def voter_endpoints(self) -> Mapping[int, Endpoints]:
        """Where each voter can be reached: listener, host and port."""
        return self.history.endpoints()

    def address(self, node_id: int) -> Address | None:
        """Where a controller listens, as far as this node knows."""
        if node_id == self.identity.voter.id:
            own = self.identity.endpoints
            return (own[0][1], own[0][2]) if own else None
        return None if self.transport is None else self.transport.address(node_id)

    def learn_leader(self, leader: int, endpoints: Endpoints) -> None:
        """A leader says where it is."""
        if self.transport is not None and endpoints:
            self.transport.learn({leader: (endpoints[0][1], endpoints[0][2])})

    def may_follow(self, epoch: int, node_id: int, host: str) -> bool:
        """Whether a request that says this epoch is believed; whoever sent it is told of where it
        has this node skip many, or is refused for that."""
        ahead = epoch - self.raft.epoch
        if ahead <= 0:
            return True
        believed = self._allowance.take(ahead, self._world.clock.mono_ms())
        if ahead >= MANY_EPOCHS or not believed:
            kind = EventKind.QUORUM_EPOCHS_SKIPPED if believed else EventKind.QUORUM_FAULT
            text = f"a request says epoch {epoch}, {ahead} after the own"
            self._note(kind, f"controller {node_id} at {host}", text)
        return believed

    # ---- start ----

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
        if self.log.flushed_offset < self.log.end_offset:
            self._flush_soon()  # what a crash left unflushed: nothing follows it before
        self._settle()

    # ---- a full device ----

    async def keep_reserve(self, size: int) -> None:
        """Has the device keep that much for the metadata log, as soon as it can."""
        self.reserve = MetadataReserve(self._world.disk, self.directory, size, self._note)
        if await self.reserve.take():
            self._take_reserve_soon()

    def _take_reserve_soon(self) -> None:
        if self._reserving is None:
            self._reserving = self._tasks.spawn(self._take_reserve(), name="metadata reserve")

    async def _take_reserve(self) -> None:
        try:
            again = True
            while again:
                await asyncio.sleep(RESERVE_PAUSE_S)
                again = await self.reserve.take()
        finally:
            self._reserving = None

    def _give_room(self, need: int = 0) -> bool:
        given = self.reserve.give(need)
        if given:
            self._take_reserve_soon()
        return given

    def _refused(self, text: str) -> None:
        """What the log writes beside its batches did not fit; what `_append` does is told there."""
        if not self._appending:
            self.on_refused(text)

    def _append(self, write: Callable[[], T], need: int) -> T:
        """Appends to the log, into the reserve where the device is full; else NoRoom."""
        while True:
            self._appending = True
            try:
                return write()
            except NoRoom as error:
                if not self._give_room(need):
                    self.on_refused(error.message)
                    raise
            finally:
                self._appending = False

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
                self._writer = self._tasks.spawn(self._after_writing(ready), name="metadata quorum")
        self._set_alarm()

    async def _after_writing(self, ready: Ready) -> None:
        try:
            await self._carry_out_slowly(ready, patient=True)
        except KafkaError as error:
            self._fail(error)
            return
        self._writing = False
        self._settle()

    async def _carry_out_slowly(self, ready: Ready, *, patient: bool = False) -> None:
        """Who is `patient` waits for room on a full device: nothing may leave before."""
        while ready.hard_state is not None:
            try:
                await quorum_state.write(self._world.disk, self.directory, ready.hard_state)
                break
            except NoRoom as error:
                if self._give_room():
                    continue
                if not patient:
                    raise
                self.on_refused(error.message)
                await asyncio.sleep(ROOM_PAUSE_S)
        if ready.truncate_to is not None:
            now = self._world.clock.now()
            self.log.truncation.truncate_to(ready.truncate_to, now)
            # Or a power cut could mix what was cut off with what comes in its place.
            await self.log.sync()
            self.history.truncate(ready.truncate_to)
            self._set_voters()
            self.on_truncate(ready.truncate_to)
        self._carry_out(ready)

    def _carry_out(self, ready: Ready) -> None:
        if ready.append is not None:
            self._append_fetched(ready.append)
        if ready.leadership is not None:
            self._tell(ready.leadership)
        if ready.fetch_snapshot is not None:
            self._want_snapshot(ready.fetch_snapshot)
        if ready.high_watermark is not None:
            self.high_watermark.advance(ready.high_watermark)
        for fault in ready.faults:
            self._note(EventKind.QUORUM_FAULT, TOPIC, fault)
        if self.transport is not None:
            for peer, request in ready.sends:
                self.transport.send(peer, request, self.raft.voters)
        for token, reply in ready.replies:
            if isinstance(token, asyncio.Future) and not token.done():
                token.set_result(reply)

    # ---- the others ----

    def ask(self, sender: int, request: Request) -> asyncio.Future[Reply]:
        """What the machine answers to a request of another node, once it may be told."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.raft.step(sender, request, self._world.clock.now(), answer)
        if isinstance(request, FetchRequest):
            self.fetched.wake()
        self._settle()
        return answer

    def receive(self, sender: int, reply: Reply) -> None:
        if self._running:
            self.raft.step(sender, reply, self._world.clock.now())
            self._settle()

    def send_failed(self, peer: int, request: Request, why: str, *, refused: bool) -> None:
        if self._running:
            log.debug("%s to controller %d failed: %s", type(request).__name__, peer, why)
            self.raft.failed(peer, request, self._world.clock.now(), refused=refused)
            self._settle()

    def mistaken(self, peer: int, why: str) -> None:
        self._note(EventKind.QUORUM_PEER_REFUSES, self._named(peer), why)

    def not_believed(self, peer: int, why: str) -> None:
        self._note(EventKind.QUORUM_FAULT, self._named(peer), why)

    def _named(self, peer: int) -> str:
        address = self.address(peer)
        where = "" if address is None else f" at {address[0]}:{address[1]}"
        return f"controller {peer}{where}"

    def _append_fetched(self, reply: FetchReply) -> None:
        """Appends what the leader sent. What a full device does not take is fetched again."""
        data = reply.payload
        assert isinstance(data, memoryview)
        now = self._world.clock.now()
        base = self.log.end_offset
        try:
            self._append(lambda: self.log.append_follower(self._rest(data, base), now), len(data))
        except NoRoom:
            self.raft.append_refused(self.log.end_offset, now)
        self._learn(data, base)
        self._flush_soon()

    def _rest(self, data: memoryview, base: int) -> memoryview:
        """What is still to be appended: a full device may have taken some before it refused."""
        end = self.log.end_offset
        if end == base:
            return data
        for at, header in walk(data):
            if header.base_offset >= end:
                return data[at:]
        return data[:0]

    def _learn(self, data: memoryview, base: int) -> None:
        """Takes in what appended control records say of the quorum itself."""
        for at, header in walk(data):
            if header.is_control and base <= header.base_offset < self.log.end_offset:
                facts = self.history.latest
                for record in decode_records(data[at : at + header.size]):
                    facts = snapshots.learn(facts, record)
                if facts.voters is not None:
                    self.history.add(header.base_offset, facts)
        self._set_voters()

    def _set_voters(self) -> None:
        """Tells the machine who votes, if those are others now."""
        raft, since = self.raft, self.history.since
        voters = current_voters(self.history, raft.own, self.log.end_offset, self._alone)
        if voters != list(raft.voters.values()) or since != raft.voters_since:
            removed_at = self.history.removed_at(raft.own)
            raft.set_voters(voters, self._world.clock.now(), since, removed_at)

    def _tell(self, leadership: Leadership) -> None:
        if leadership.leader == self.raft.own.id and not self._leads(leadership.epoch):
            leadership = leadership._replace(leader=None)  # lost again, while it was written down
        self.leadership = leadership
        if self._leads(leadership.epoch):
            try:
                self.on_append(self._append_leader_change())
            except NoRoom:
                if len(self.raft.voters) == 1:
                    raise
                # Another one may have room, and if not, there will be some.
                self.raft.resign(self._world.clock.now())
                return
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

    def _append_leader_change(self) -> Batch:
        """An epoch begins with who leads it, then the voters if they or their addresses are new."""
        raft = self.raft
        change = LeaderChangeMessage(
            leader_id=raft.own.id,
            voters=[LeaderChangeMessageVoter(voter_id=voter) for voter in sorted(raft.voters)],
            granting_voters=[LeaderChangeMessageVoter(voter_id=i) for i in raft.granted_by],
        )
        # Version 0, without directories: Kafka 4.3 reads no other.
        entries = [(ControlType.LEADER_CHANGE, change.encode(0))]
        facts, known = self.history.latest, self.history.in_log
        alone = list(raft.voters) == [raft.own.id]
        if facts.voters is not None:
            wanted = QuorumFacts(KRAFT_LEVEL, with_voter(facts.voters, self.identity))
        elif alone:
            wanted = QuorumFacts(KRAFT_LEVEL, voters_record([self.identity]))
        else:
            wanted = facts  # kraft.version 0: the voters stand in the settings
        if wanted.kraft_version and (not known or facts.kraft_version < KRAFT_LEVEL):
            version = KRaftVersionRecord(kraft_version=KRAFT_LEVEL)
            entries.append((ControlType.KRAFT_VERSION, version.encode(0)))
        if wanted.voters is not None and (not known or wanted != facts):
            entries.append((ControlType.KRAFT_VOTERS, wanted.voters.encode(0)))
        return self._append_control(entries, wanted)

    def _append_control(
        self, entries: list[tuple[ControlType, bytes]], facts: QuorumFacts
    ) -> Batch:
        timestamp = self._world.clock.wall_ms()
        data = control_batch(entries, timestamp)
        base = self._write(data, len(entries))
        if facts.voters is not None:
            self.history.add(base, facts)
            self._set_voters()
        end = base + len(entries)
        told = facts if facts.voters is not None else None
        return Batch(base, end, self.epoch, len(data), timestamp, (), told)

    def write_facts(self, facts: QuorumFacts) -> int:
        """Writes other voters, with the version of their records if that is new; the offset that
        has to be committed for it. Whether they may be written is for `raft.changes` to say."""
        assert facts.voters is not None
        entries: list[tuple[ControlType, bytes]] = []
        if facts.kraft_version != self.facts.kraft_version:
            version = KRaftVersionRecord(kraft_version=facts.kraft_version)
            entries.append((ControlType.KRAFT_VERSION, version.encode(0)))
        entries.append((ControlType.KRAFT_VOTERS, facts.voters.encode(0)))
        batch = self._append_control(entries, facts)
        self.on_append(batch)
        self._settle()
        return batch.end_offset

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
        now, header = self._world.clock.now(), read_header(data)
        base_offset, *_ = self._append(
            lambda: self.log.append(memoryview(data), header, self.epoch, now), len(data)
        )
        base = self.raft.append(count)
        assert base == base_offset
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
        # A majority has it on disk; this node may be the one that has not, and after a power cut
        # it believes its log up to the snapshot.
        await self.log.flush(position.offset)
        facts = self.history.at(position.offset)
        batches = snapshots.encoded(position, facts, image, last_timestamp)
        disk = self._world.disk
        with as_no_room("a snapshot of the metadata does not fit"):
            size = await snapshots.write(disk, self.directory, position, _slowly(batches))
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
                self.history.forget_before(found[-1].offset)
            disk.unlink(f"{self.directory}/{snapshots.file_name(oldest)}")
        if not self._fetching:
            snapshots.remove_fetched(disk, self.directory)
        await self.log.truncation.retention(now, self.high_watermark.value, by_age=False)

    # ---- snapshots of the leader ----

    def _want_snapshot(self, wanted: Position) -> None:
        """One is fetched at a time. A follower that gives its leader up meanwhile, and follows
        again, wants the same once more: it gets the one that is under way."""
        self._wanted = WantedSnapshot(wanted, self.raft.epoch)
        if not self._fetching:
            self._fetching = True
            self._tasks.spawn(self._fetch_snapshots(), name="fetch snapshot")

    async def _fetch_snapshots(self) -> None:
        try:
            while self._running and (wanted := self._wanted) is not None:
                if not await self._fetch_snapshot(wanted) and self._wanted is wanted:
                    self._wanted = None
                    self.raft.snapshot_failed(self._world.clock.now())
                    self._settle()
        except OSError as error:
            text = f"a snapshot cannot be kept: {error}"
            self._fail(storage_error(text, error))
        finally:
            self._fetching = False

    async def _fetch_snapshot(self, wanted: WantedSnapshot) -> bool:
        """Brings a snapshot of the leader here, slice by slice, and begins the log with it.

        One that is here already, from a fetch whose leader was lost, is not fetched again.
        """
        disk, position = self._world.disk, wanted.position
        name = snapshots.file_name(position, FETCHED)
        try:
            with as_no_room("a snapshot of the metadata cannot be kept"):
                if position not in snapshots.find(disk, self.directory, FETCHED):
                    snapshots.remove_fetched(disk, self.directory)
                    await self._download(position, wanted.epoch)
                snapshot = await self._read_snapshot(position)
            while self._writing and self._writer is not None and self._running:
                await asyncio.wait([self._writer])
            if not self._may_begin_with(position):
                return False
            await self._begin_with(snapshot)
        except (ClientError, WireError, NoRoom) as error:
            self._note(EventKind.SNAPSHOT_NOT_FETCHED, name, str(error))
            return False
        except ParseError as error:
            self._note(EventKind.SNAPSHOT_NOT_FETCHED, name, str(error))
            disk.unlink(f"{self.directory}/{name}")
            return False
        return True

    def _may_begin_with(self, position: Position) -> bool:
        """Whether the leader still wants that, now that the snapshot is here."""
        latest = self._wanted
        if latest is None or latest.position != position or not self._still_follows(latest.epoch):
            return False
        return position.offset >= self.raft.high_watermark

    async def _read_snapshot(self, position: Position) -> Snapshot:
        """A large one takes long: until it is read, the leader and this node hear of each other."""
        contact = self._tasks.spawn(self._stay_in_contact(position), name="fetch snapshot")
        try:
            pace = Pace(self._world.clock)
            disk = self._world.disk
            return await snapshots.read(disk, self.directory, position, pace, FETCHED)
        finally:
            contact.cancel()

    async def _stay_in_contact(self, position: Position) -> None:
        """Has the last byte of a snapshot sent again, as long as this node follows."""
        assert self.transport is not None
        path = f"{self.directory}/{snapshots.file_name(position, FETCHED)}"
        last = self._world.disk.size(path) - 1
        while True:
            await asyncio.sleep(self.raft.contact_ms / 1000)
            leader, epoch = self.raft.leader, self.raft.epoch
            if leader is not None and self._still_follows(epoch):
                with suppress(ClientError, WireError):
                    await self.transport.snapshot_slice(leader, epoch, position, last)
                    if self._still_follows(epoch):
                        self.raft.heard_leader(self._world.clock.now())
                        self._set_alarm()

    async def _begin_with(self, snapshot: Snapshot) -> None:
        """Has a snapshot of the leader stand for the log up to its end. NoRoom: nothing has
        changed."""
        now, position = self._world.clock.now(), snapshot.position
        try:
            self._append(lambda: self.log.truncation.begin_anew(position.offset, now), 0)
        except KafkaError as error:
            if isinstance(error, NoRoom) and self.log.failure is None:
                raise
            self._fail(error)
            return
        self._wanted = None
        self._writing = True
        self.raft.snapshot_loaded(position, now)
        self.history.reset(position.offset - 1, snapshot.quorum)
        self._set_voters()
        self.on_snapshot(snapshot)
        try:
            await self.log.sync()
            await self._name_fetched(position)
        except KafkaError as error:
            self._fail(error)
            return
        self._writing = False
        self._settle()

    async def _name_fetched(self, position: Position) -> None:
        """Gives a snapshot its proper name, now that the log begins with it on the device, too.

        Nothing may leave before that: the next start has the log begin with one of the other name.
        """
        disk = self._world.disk
        while True:
            try:
                with as_no_room("a snapshot of the metadata cannot be kept"):
                    if position in snapshots.find(disk, self.directory, FETCHED):
                        snapshots.rename(disk, self.directory, position, FETCHED, SUFFIX)
                    await disk.sync_dir(self.directory)
                return
            except NoRoom as error:
                self.on_refused(error.message)
                await asyncio.sleep(ROOM_PAUSE_S)

    async def _download(self, wanted: Position, epoch: int) -> None:
        assert self.transport is not None
        transport = self.transport

        async def slices() -> AsyncIterator[memoryview]:
            position, size = 0, 1
            while position < size:
                leader = self.raft.leader
                if leader is None or not self._still_follows(epoch):
                    raise WireError("the leader that had it leads no longer")
                size, data = await transport.snapshot_slice(leader, epoch, wanted, position)
                self.raft.heard_leader(self._world.clock.now())
                self._set_alarm()
                position += len(data)
                yield data

        with as_no_room("a snapshot of the metadata does not fit"):
            await snapshots.write(self._world.disk, self.directory, wanted, slices(), FETCHED)

    def _still_follows(self, epoch: int) -> bool:
        return self._running and self.raft.role is Role.FOLLOWER and self.raft.epoch == epoch

    async def resign(self) -> None:
        """Leaves in good order: the others are told whom to elect. Others lead when it returns."""
        if self.raft.role is not Role.LEADER or len(self.raft.voters) < 2:
            return
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self.raft.resign(self._world.clock.now())
        self._settle()
        if self.transport is not None:
            await self.transport.told()

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
