"""The metadata follower of a node: committed batches in, images and changes of them out.

It folds the log in order, behind the high watermark, on every node alike; whether this node leads
the quorum makes no difference, except that batches which it wrote itself need not be read again. So
whatever is in `image` is in the image of every later controller, and nobody reads a state that a
crash could take back. Each change is told to the subscribers on the loop.

A long stretch of records is worked off in slices of whole batches: after each of them the image is
one that a controller meant, its changes are told, and others have their turn of the loop. A batch
that is itself long is folded on a copy that then replaces the image. It also takes the snapshots,
which each node does by itself.

A committed record that cannot be applied, because it contradicts the image or a later release wrote
it, is not skipped: images would part. The image stays as it was before that batch, whoever serves
by it goes on, and an operator is told; a restart, maybe of another release, tries again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.batches import Batch, read_part
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.snapshots import Snapshot
from scriba.broker.observe.events import Note
from scriba.controller.difference import difference
from scriba.controller.image import KRAFT_VERSION, ClusterImage, Delta, ImageError
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.raft.messages import Position
from scriba.runtime.loop.pace import Pace, next_turn, next_turn_collected
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings
from scriba.storage.results import NoRoom
from scriba.wire.schema import Message

SLICE: Final = 128
"""Records folded in one go: the loop has others to serve."""

TOLD_AT_ONCE: Final = 256
"""Partitions of which subscribers hear in one go."""

LONG_REPLAY_BYTES: Final = 2 << 20
"""A start that had to read more than this leaves a snapshot to the next one. Every restart writes
two records for each partition: without it, each would take longer than the one before."""

SNAPSHOT_PAUSE_MS: Final = 10_000
"""How long after a full device refused a snapshot the next one is tried."""

Subscriber = Callable[[Delta, ClusterImage], None]


class NotFollowed(KafkaError):
    """What is waited for comes after a record that this node cannot apply."""


class MetadataFollower:
    def __init__(
        self,
        world: World,
        settings: NodeSettings,
        tasks: Tasks,
        note: Note,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        self.stopped = ""
        """Why the image stays behind what is committed, for good; empty while it does not."""
        self.on_stopped: Callable[[], None] = lambda: None
        self.image = ClusterImage()
        """The committed image. It is replaced or changed between two turns of the loop: read it
        afresh, or `copy()` what must not change under you."""
        self.applied = Watermark()
        """How far `image` is."""
        self.last_timestamp = -1
        """The newest time in the log, as far as it was read."""
        self._world = world
        self._settings = settings
        self._tasks = tasks
        self._note = note
        self._on_refused = on_refused
        self._quorum: MetadataQuorum
        self._subscribers: list[Subscriber] = []
        self._waiting: deque[Batch] = deque()
        """Read or written, but not yet in the image: what follows the image's end."""
        self._fetched: Snapshot | None = None
        """A snapshot of the leader that the image has yet to begin anew with."""
        self._ahead: ClusterImage | None = None
        """The image up to a point that is not yet committed; kept while nobody asks for changes."""
        self._reading = asyncio.Lock()
        self._cuts = 0
        """How often the log lost its end, or began anew: what was read meanwhile may be gone."""
        self._bytes_since_snapshot = 0
        self._long_replay = False
        self._snapshots: dict[Position, int] = {}
        self._snapshot_at = 0
        self._snapshotting: asyncio.Task[None] | None = None
        self._no_snapshot_before = 0
        """While the device was found full."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """From now on `subscriber(delta, image)` runs after each change, in order, on the loop."""
        self._subscribers.append(subscriber)

    # ---- start and stop ----

    def load(self, quorum: MetadataQuorum, snapshot: Snapshot | None, batches: list[Batch]) -> None:
        """Begins with what the files hold. What follows the snapshot waits to be committed."""
        self._quorum = quorum
        if snapshot is not None:
            self.image = snapshot.image
            self.applied.advance(snapshot.position.offset)
            self.last_timestamp = snapshot.last_timestamp
        self._waiting.extend(batches)
        for batch in batches:
            self._count(batch)
        self._long_replay = self._bytes_since_snapshot >= LONG_REPLAY_BYTES
        now = self._world.clock.now()
        self._snapshot_at = now.mono_ms
        for position in snapshots.find(self._world.disk, quorum.directory):
            self._snapshots[position] = now.wall_ms
        quorum.on_append = self._on_append
        quorum.on_truncate = self._on_truncate
        quorum.on_snapshot = self._on_snapshot

    def start(self) -> None:
        self._tasks.spawn(self._follow_commits(), name="metadata image")

    def stop(self) -> None:
        if self._snapshotting is not None:
            self._snapshotting.cancel()

    # ---- the log as it is, committed or not ----

    @property
    def _known_end(self) -> int:
        if self._fetched is not None and not self._waiting:
            return self._fetched.position.offset
        return self._waiting[-1].end_offset if self._waiting else self.image.end_offset

    def _on_append(self, batch: Batch) -> None:
        """What this node wrote is known; unless reading lags, and comes to it later."""
        if batch.base_offset == self._known_end and not self._reading.locked():
            self._waiting.append(batch)
            self._count(batch)

    def _on_truncate(self, offset: int) -> None:
        self._cuts += 1
        self._ahead = None
        while self._waiting and self._waiting[-1].end_offset > offset:
            self._waiting.pop()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        """The leader has dropped what this node lacks: the image begins anew with its snapshot."""
        self._cuts += 1
        self._ahead = None
        self._waiting.clear()
        self._fetched = snapshot

    async def speculative(self) -> ClusterImage:
        """The image of all that the log holds, committed or not, for a controller that leads.

        ImageError when the log cannot be followed.
        """
        if self.stopped:
            raise ImageError(self.stopped)
        await self.applied.reach(self._quorum.log.start_offset)
        while self._known_end < self._quorum.log.end_offset:
            await self._read(self._quorum.log.end_offset)
        # What is copied and what follows it are taken in one turn of the loop.
        image, rest = self.image.copy(), list(self._waiting)
        done = 0
        for batch in rest:
            done += len(batch.records)
            if done > SLICE:
                done = 0
                await next_turn()
            await _fold_slowly(image, batch, Delta())
        if not self._subscribers:
            self._ahead = image.copy()
        return image

    async def _read(self, end_offset: int) -> None:
        """Reads some of what the log has up to `end_offset` and this does not know yet."""
        async with self._reading:
            known, cuts = self._known_end, self._cuts
            if known >= end_offset:
                return
            facts = self._quorum.history.at(known)
            batches, _ = await read_part(self._quorum.log, known, facts, end_offset)
            if cuts == self._cuts:
                self._waiting.extend(batches)
                for batch in batches:
                    self._count(batch)

    # ---- the committed image ----

    async def _follow_commits(self) -> None:
        high_watermark = self._quorum.high_watermark
        try:
            while True:
                await high_watermark.reach(self.image.end_offset + 1)
                while (snapshot := self._fetched) is not None:
                    await self._begin_anew(snapshot)
                if not self._waiting:
                    await self._read(high_watermark.value)
                await self._apply(self._committed())
                if high_watermark.value > self.image.end_offset:
                    await next_turn_collected()
        except ImageError as error:
            self._stop(str(error))
        except Exception as error:
            # Nobody who waits for a commit may wait for ever.
            self.applied.fail(error)
            raise

    def _stop(self, why: str) -> None:
        """From here on the image stays as it is. Nobody who waits for more may wait for ever."""
        self.stopped = f"stopped at offset {self.image.end_offset}: {why}"
        self._note(EventKind.METADATA_NOT_APPLIED, f"offset {self.image.end_offset}", why)
        self.applied.fail(NotFollowed(ErrorCode.UNKNOWN_SERVER_ERROR, f"metadata {self.stopped}"))
        self.on_stopped()

    async def _begin_anew(self, snapshot: Snapshot) -> None:
        """Goes on with the image of a snapshot, and tells what is different in it."""
        delta = await difference(self.image, snapshot.image, next_turn)
        if self._fetched is not snapshot:
            return  # there is a newer one by now
        self._fetched = None
        self.image = snapshot.image
        self.last_timestamp = max(self.last_timestamp, snapshot.last_timestamp)
        self._bytes_since_snapshot = 0
        self._snapshots[snapshot.position] = self._world.clock.wall_ms()
        await self._tell(delta)

    async def _tell(self, delta: Delta) -> None:
        """Tells the subscribers what the image has that is new: all at once unless it is much."""
        if delta:
            for number, part in enumerate(delta.parts(TOLD_AT_ONCE)):
                if number:
                    await next_turn()
                for subscriber in self._subscribers:
                    subscriber(part, self.image)
        self.applied.advance(self.image.end_offset)

    def _committed(self) -> list[Batch]:
        """What comes next and is committed: whole batches, as many as fit into one slice, or one
        that is larger."""
        high_watermark, records = self._quorum.high_watermark.value, 0
        chosen: list[Batch] = []
        for batch in self._waiting:
            records += len(batch.records)
            if batch.end_offset > high_watermark or (chosen and records > SLICE):
                break
            chosen.append(batch)
        return chosen

    def _take_ahead(self) -> bool:
        """A start folds what may be a long log once, not twice."""
        ahead, self._ahead = self._ahead, None
        if (
            ahead is None
            or self._subscribers
            or not self.image.end_offset < ahead.end_offset <= self._quorum.high_watermark.value
        ):
            return False
        while self._waiting and self._waiting[0].end_offset <= ahead.end_offset:
            self._waiting.popleft()
        self.image = ahead
        self.applied.advance(ahead.end_offset)
        return True

    async def _apply(self, batches: list[Batch]) -> None:
        if self._take_ahead():
            return
        delta, began = Delta(), self.image.end_offset
        if sum(len(batch.records) for batch in batches) <= 2 * SLICE:
            try:
                for batch in batches:
                    fold(self.image, batch, delta)
            except ImageError:
                await self._apply_up_to_fault(batches, began)
                return
        else:
            # A long change is made on a copy, so that nobody sees half of it between two slices.
            image = self.image.copy()
            for batch in batches:
                await _fold_slowly(image, batch, delta)
            self.image = image
        for _ in batches if self._fetched is None else ():
            self._waiting.popleft()
        await self._tell(delta)

    async def _apply_up_to_fault(self, batches: list[Batch], began: int) -> None:
        """Applies the batches before the one that cannot be, and raises what that one raises.

        The image has a part of that one by now. So it is made anew from the files, as it was at
        `began`; unless the leader has sent a snapshot meanwhile, which takes its place. Until then
        nobody takes a snapshot of it, or leads by it.
        """
        self.stopped = f"stopped after offset {began}"
        try:
            self.image = image = await self._from_files(began)
        except ParseError:
            if self._fetched is None:
                raise
        if self._fetched is not None:
            self.stopped = ""
            return
        delta, fault = Delta(), ImageError()
        for batch in batches:
            try:
                fold(image.copy(), batch, Delta())
            except ImageError as error:
                fault = error
                break
            fold(image, batch, delta)
            self._waiting.popleft()
        await self._tell(delta)
        raise fault

    async def _from_files(self, end_offset: int) -> ClusterImage:
        """The image of all before `end_offset`, which is where a batch begins."""
        quorum = self._quorum
        found = await snapshots.newest_valid(
            self._world.disk,
            quorum.directory,
            quorum.log.start_offset,
            self._note,
            Pace(self._world.clock),
            before=end_offset,
        )
        image = ClusterImage() if found is None else found.image
        while image.end_offset < end_offset:
            facts = quorum.history.at(image.end_offset)
            batches, _ = await read_part(quorum.log, image.end_offset, facts, end_offset)
            for batch in batches:
                await _fold_slowly(image, batch, Delta())
            await next_turn()
        return image

    def _count(self, batch: Batch) -> None:
        self._bytes_since_snapshot += batch.size
        self.last_timestamp = max(self.last_timestamp, batch.timestamp)

    # ---- snapshots ----

    def tick(self, now: Instant) -> None:
        """Takes a snapshot when one is due."""
        if self._snapshot_due(now):
            self._snapshotting = self._tasks.spawn(self._snapshot(now), name="metadata snapshot")

    def _snapshot_due(self, now: Instant) -> bool:
        if self._snapshotting is not None or not self._bytes_since_snapshot or self.stopped:
            return False
        if now.mono_ms < self._no_snapshot_before or self.image.unknown:
            return False  # a release that knows such records must find them in the log
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
            taken = await self._quorum.write_snapshot(self.image.copy(), self.last_timestamp)
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


def fold(image: ClusterImage, batch: Batch, delta: Delta) -> None:
    """ImageError where the batch cannot be applied; some of it may be then."""
    if batch.unreadable:
        raise ImageError(batch.unreadable)
    if batch.records:
        _replay(image, batch.records, batch.base_offset, batch.epoch, delta)
    if batch.facts is not None:
        image.set_feature(KRAFT_VERSION, batch.facts.kraft_version, delta)
    image.advance(batch.end_offset, batch.epoch, delta)


def _replay(
    image: ClusterImage, records: Sequence[Message], base_offset: int, epoch: int, delta: Delta
) -> None:
    try:
        image.replay(records, base_offset, epoch, delta)
    except (LookupError, TypeError, ValueError) as error:
        # A record of which each field can be read, and that says what no controller would write.
        text = f"a record at or after offset {base_offset} makes no sense: {error!r}"
        raise ImageError(text) from error


async def _fold_slowly(image: ClusterImage, batch: Batch, delta: Delta) -> None:
    for at in range(0, len(batch.records), SLICE):
        part = batch.records[at : at + SLICE]
        _replay(image, part, batch.base_offset + at, batch.epoch, delta)
        if at + SLICE < len(batch.records):
            await next_turn()
    fold(image, batch._replace(records=()), delta)
