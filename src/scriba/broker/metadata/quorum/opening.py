"""Opens the files of the metadata quorum: what they hold, and a machine that goes on from it."""

from __future__ import annotations

from collections.abc import Sequence

from scriba.broker.metadata.quorum import quorum_state, snapshots
from scriba.broker.metadata.quorum.batches import Batch, read_batches
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.snapshots import FETCHED, SUFFIX, QuorumFacts, Snapshot
from scriba.broker.metadata.quorum.voters import (
    BEFORE_THE_LOG,
    Membership,
    VoterHistory,
    current_voters,
)
from scriba.broker.metadata.quorum.wire import TOPIC, TOPIC_ID
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.errors import ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import HardState, Position
from scriba.raft.roles import Timeouts
from scriba.runtime.loop.pace import Pace
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.log import Log
from scriba.storage.results import as_no_room


async def open_quorum(
    world: World,
    log_dir: str,
    membership: Membership,
    settings: NodeSettings,
    tasks: Tasks,
    note: Note,
    *,
    clean: bool = False,
) -> tuple[MetadataQuorum, Snapshot | None, list[Batch]]:
    """Opens the files and returns what they hold: the newest snapshot and what follows it.

    StartError when they are damaged or belong to another quorum, NoRoom where the device is full.
    May wait for the device. Their directory is there, and its name on the device: with that name a
    vote would be lost.
    """
    directory = f"{log_dir}/{TOPIC}-0"
    with as_no_room(f"{directory} cannot be opened"):
        return await _open(world, directory, membership, settings, tasks, note, clean)


async def _open(
    world: World,
    directory: str,
    membership: Membership,
    settings: NodeSettings,
    tasks: Tasks,
    note: Note,
    clean: bool,
) -> tuple[MetadataQuorum, Snapshot | None, list[Batch]]:
    now = world.clock.now()
    snapshots.remove_parts(world.disk, directory)
    found = snapshots.find(world.disk, directory)
    # What a snapshot of this name holds was flushed before it got it.
    recovery_point = None if clean else found[0].offset if found else 0
    store = _open_log(world, directory, settings, recovery_point, clean, now)
    try:
        if store.failure is not None:
            raise ParseError(store.failure.error.message)
        if store.lost_tail:
            note(EventKind.LOG_TRUNCATED, repr(store), store.lost_tail)
        if store.cut_tail:
            await store.sync(hurried=True)
        snapshot = await _newest(world, store, note)
        found = snapshots.find(world.disk, directory)
        first = snapshot.position.offset if snapshot else 0
        facts = snapshot.quorum if snapshot else QuorumFacts(0, None)
        batches = await read_batches(store, first, facts)
    except ParseError as error:
        raise StartError(
            f"the metadata of the cluster is damaged: {error}; restore {directory} from a copy"
        ) from error
    since = BEFORE_THE_LOG if not first else first - 1
    history = VoterHistory(facts, since, membership.voters)
    for batch in batches:
        if batch.facts is not None:
            history.add(batch.base_offset, batch.facts)
    raft = _machine(world, directory, membership, settings, store, history, found, first)
    quorum = MetadataQuorum(world, store, raft, history, membership, tasks, note)
    await quorum.keep_reserve(settings.scriba_metadata_reserve_bytes)
    return quorum, snapshot, batches


async def _newest(world: World, store: Log, note: Note) -> Snapshot | None:
    """The snapshot that the log goes on from: one that was fetched, where that is ahead of it."""
    disk, directory = world.disk, store.directory
    snapshot = await _fetched(world, store, note)
    if snapshot is None:
        pace = Pace(world.clock)
        snapshot = await snapshots.newest_valid(disk, directory, store.start_offset, note, pace)
        if snapshot is not None and not _continues(store, snapshot.position):
            # An earlier release gave what it fetched this name before it cut the log.
            snapshots.rename(disk, directory, snapshot.position, SUFFIX, FETCHED)
            await _begin_with(world, store, snapshot.position)
    else:
        await _begin_with(world, store, snapshot.position)
    snapshots.remove_fetched(disk, directory)
    return snapshot


async def _fetched(world: World, store: Log, note: Note) -> Snapshot | None:
    """The snapshot that the node had fetched, unless the log went on without it.

    It is committed. So what the log holds at the same offsets, and does not agree with it, is not.
    """
    disk, directory = world.disk, store.directory
    for position in snapshots.find(disk, directory, FETCHED)[:1]:
        if position.offset == store.start_offset:
            # Without its proper name, the log may not yet be cut altogether.
            passed = position in snapshots.find(disk, directory)
        else:
            passed = _continues(store, position)
        if passed:
            return None
        try:
            return await snapshots.read(disk, directory, position, Pace(world.clock), FETCHED)
        except ParseError as error:
            note(EventKind.SNAPSHOT_UNREADABLE, snapshots.file_name(position, FETCHED), str(error))
    return None


async def _begin_with(world: World, store: Log, position: Position) -> None:
    """Has a fetched snapshot stand for the log up to its end.

    Ending anywhere here leaves the beginning of a log, or one that is empty, and the fetched
    snapshot, from which the next start goes on.
    """
    store.truncation.truncate_fully(position.offset, world.clock.now())
    await store.sync(hurried=True)
    snapshots.rename(world.disk, store.directory, position, FETCHED, SUFFIX)
    await world.disk.sync_dir(store.directory)


def _continues(store: Log, snapshot: Position) -> bool:
    """Whether the log goes on from a snapshot: it has what that ends with.

    Where the node ended between fetching a snapshot and cutting its log, that may end earlier, or
    hold at the same offsets what another leader never had committed.
    """
    if snapshot.offset > store.end_offset:
        return False
    before = [epoch for epoch, first in store.epochs.entries() if first < snapshot.offset]
    return snapshot.offset <= store.start_offset or before[-1:] in ([], [snapshot.epoch])


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
        settings.controller_quorum_retry_backoff_ms,
        settings.controller_quorum_election_backoff_max_ms,
    )


def _log_settings(settings: NodeSettings) -> TopicSettings:
    """Kafka keeps the metadata log by snapshots, never by the retention of topics."""
    own = settings.internal_metadata_log_segment_bytes
    return TopicSettings(
        segment_bytes=settings.metadata_log_segment_bytes if own is None else own,
        segment_ms=settings.metadata_log_segment_ms,
        retention_ms=-1,
        retention_bytes=-1,
        max_message_bytes=settings.internal_metadata_max_batch_size_in_bytes,
        file_delete_delay_ms=settings.internal_metadata_delete_delay_millis,
    )


def _start_position(store: Log, found: Sequence[Position]) -> Position:
    """Where the log begins for the quorum: at zero, or at the oldest snapshot that it goes on from.

    Older ones may be left from before a snapshot of the leader took the place of the log.
    """
    reached = [each for each in found if each.offset >= store.start_offset]
    return reached[-1] if store.start_offset and reached else Position(0, 0)


def _machine(
    world: World,
    directory: str,
    membership: Membership,
    settings: NodeSettings,
    store: Log,
    history: VoterHistory,
    found: Sequence[Position],
    committed: int,
) -> Raft:
    own = membership.identity.voter
    voters = current_voters(history, own, store.end_offset, membership.alone)
    former = next((voter for voter in voters if voter.id == own.id), own)
    if membership.alone and former != own:
        names = ", ".join(str(voter.id) for voter in voters)
        raise StartError(
            f"{directory} belongs to a quorum of the nodes {names} on other disks, and this node "
            "is told of no other controller: restore its own disk, or name the others in "
            "controller.quorum.bootstrap.servers"
        )
    hard_state = quorum_state.read(world.disk, directory)
    empty = not store.end_offset and not found and hard_state == HardState(0)
    return Raft(
        own,
        voters,
        hard_state,
        EpochTable(_start_position(store, found), store.epochs.entries(), store.end_offset),
        store.flushed_offset,
        world.rng.below,
        world.clock.now(),
        _timeouts(settings),
        membership.bootstrap,
        forgetful=empty and history.latest.voters is None and not membership.alone,
        committed=committed,
        voters_since=history.since,
        removed_at=history.removed_at(own),
    )
