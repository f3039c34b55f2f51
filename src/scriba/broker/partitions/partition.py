"""One partition that this broker hosts: its log, its role, and how far it may be read.

Calls go down into the log and the replication machines; only values come back, and the watermarks
wake whoever waits. `append` is one synchronous step: nothing can come between the check of the
leader epoch and the bytes in the log.

Consumers may read from a follower as well, up to the high watermark that it knows, as long as it is
in sync (`serves`): one that is not could keep its readers back without end. One that observes is
never in sync, and serves while it is not too far behind (`partitions.replication.observers`).

Its role changes as often as the controller says: it leads (`leader`), follows (`follower`), or
waits for a leader (neither). Whoever waits for a watermark waits for this leadership: when it ends,
the wait ends with NOT_LEADER_OR_FOLLOWER, and the next role has watermarks of its own. The epochs
only rise, so that a change that comes late changes nothing.

Followers that fetch from this partition are told of its news through `feeds`.

With `flush.messages=1` what counts is what the device has: the leader's own end, as it enters the
high watermark, is then the flushed end, and each append asks for a flush that all appends waiting
at that moment share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.records.batch import BatchHeader
from scriba.replication.follower import EpochEnd, FollowerState
from scriba.replication.leader import UNCHANGED, Heard, Installed, LeaderState
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings, TopicSettings
from scriba.settings.placement import replica_placement
from scriba.settings.topic import MAX_INT

if TYPE_CHECKING:
    from scriba.controller.image import PartitionImage
    from scriba.storage.log import Appended, Log

RECOVERING = 1


class Leading(NamedTuple):
    """What a leader has to know besides the metadata of its partition."""

    node_id: int
    lag_ms: int
    stall_ms: int
    active: Mapping[int, int]
    """Epochs of the brokers that may join an ISR, as they are at each moment."""
    racks: Mapping[int, str | None]
    """Where all brokers are, at each moment: it says who observes."""


def stall_ms(settings: NodeSettings) -> int:
    """After which time without what it was sent a follower stalls; 0 for never.

    A follower is known to be caught up as of its last fetch, which may have waited.
    """
    if not settings.scriba_replica_stall_ms:
        return 0
    return settings.scriba_replica_stall_ms + settings.replica_fetch_wait_max_ms


class Feed(Protocol):
    """A follower's fetch session, as far as it is about this partition."""

    def news(self, wake: bool) -> None:
        """There is something to tell; `wake` if a fetch that waits should tell it now."""


_DEPOSED = "the partition has another leader now"


class Partition:
    __slots__ = (
        "_flush_at",
        "_flushing",
        "_oldest_unflushed_ms",
        "_racks",
        "_unflushed_from",
        "acknowledged",
        "closed",
        "feeds",
        "flushed",
        "follower",
        "high_watermark",
        "index",
        "leader",
        "leader_epoch",
        "log",
        "low_watermark",
        "partition_epoch",
        "placement",
        "serves",
        "settings",
        "stable_offset",
        "syncs",
        "told_high_watermark",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, topic_id: bytes, index: int, store: Log, checkpoint: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = store
        self.settings: TopicSettings = store.settings
        self.placement = replica_placement(store.settings.scriba_replica_placement)
        """Where its replicas are to be, and who observes; None where the topic does not say."""
        self.syncs = store.settings.flush_messages == 1
        """Whether only what the device has counts."""
        self.leader: LeaderState | None = None
        self.follower: FollowerState | None = None
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.serves = False
        """Whether it follows, and consumers may read from it."""
        self.told_high_watermark = -1
        """What the last leader that it followed said to be committed: it may lack some of that."""
        self._racks: Mapping[int, str | None] = {}
        self.feeds: list[Feed] = []
        self.closed: KafkaError | None = None
        """Why records of clients are refused, while they are: its directory is nearly full."""
        # The checkpoint is a lower bound that was true once; the log may have lost its tail since.
        start = min(max(checkpoint, store.start_offset), store.end_offset)
        self.high_watermark = Watermark(start)
        self.stable_offset = Watermark(store.last_stable_offset(start))
        self.acknowledged = Watermark(start)
        """The high watermark for those who wait with acks=all: their waits end when too few
        replicas are in sync."""
        self.flushed = Watermark(store.flushed_offset)
        """What the leader's own device has; followed while `syncs`, for acks=1 to wait for."""
        self.low_watermark = Watermark()
        """Where the logs of all live replicas begin, as far as this leadership has heard of them:
        what DeleteRecords waits for."""
        self._flushing: asyncio.Task[None] | None = None
        self._unflushed_from = start
        """Where the records begin that count for the next flush."""
        self._oldest_unflushed_ms = -1
        self._flush_at = -1
        """The end of the log from which on an append asks whether to flush; -1 for the next one."""

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def configure(self, settings: TopicSettings) -> None:
        """Takes new settings; a stricter flush policy counts from the next append on."""
        self.settings = self.log.settings = settings
        self.placement = replica_placement(settings.scriba_replica_placement)
        self.syncs = settings.flush_messages == 1
        self._flush_at = -1
        self.flushed.advance(self.log.flushed_offset)
        if self.leader is not None:
            self.leader.min_insync = settings.min_insync_replicas
            self.know_observers()
        self.refresh()
        self._refuse_unmet_acks()
        if self.syncs:
            self._ask_for_flush()

    def take_log(self, store: Log) -> None:
        """Goes on with a copy of its log, in another directory, that ends where this one does."""
        assert store.end_offset == self.log.end_offset, "no offset is lost or made twice"
        self.log = store
        if self.syncs and store.flushed_offset < store.end_offset:
            self._ask_for_flush()

    # ---- roles ----

    def knows(self, image: PartitionImage) -> bool:
        """Whether it has done already what this state of the partition, or a later one, says."""
        return image.leader_epoch < self.leader_epoch or (
            image.leader_epoch == self.leader_epoch
            and image.partition_epoch <= self.partition_epoch
        )

    def lead(self, image: PartitionImage, leading: Leading, now: Instant) -> Installed:
        """Takes or keeps the leadership that the controller has recorded; what changed in the ISR.

        Within an epoch only the ISR and the replicas can change.
        """
        leader = self.leader
        replicas, isr = tuple(image.replicas), tuple(image.isr)
        recovering = image.leader_recovery_state == RECOVERING
        self._racks = leading.racks
        if leader is not None and image.leader_epoch == self.leader_epoch:
            changed = self._installed(isr, image.partition_epoch, replicas, recovering, now)
            self._know_reassignment(leader, image)
            return changed
        if leader is None:
            self._renew_watermarks(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.follower = None
        self.serves = False
        self.leader_epoch, self.partition_epoch = image.leader_epoch, image.partition_epoch
        self.log.begin_epoch(image.leader_epoch)
        self.leader = LeaderState(
            node_id=leading.node_id,
            replicas=replicas,
            isr=isr,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
            epoch_start_offset=self.log.end_offset,
            high_watermark=self.high_watermark.value,
            own_end=self._counted_end(),
            started_ms=now.mono_ms,
            lag_ms=leading.lag_ms,
            stall_ms=leading.stall_ms,
            min_insync=self.settings.min_insync_replicas,
            active=leading.active,
            recovering=recovering,
            voters=self._voters(),
        )
        self.know_observers()
        self.told_high_watermark = -1
        self._know_reassignment(self.leader, image)
        self._move(self.leader.high_watermark)
        self._refuse_unmet_acks()
        self.move_low_watermark()
        self._tell_feeds()
        if self._counted_end() < self.log.end_offset:
            self._ask_for_flush()
        return UNCHANGED

    def _voters(self) -> int:
        return MAX_INT if self.placement is None else self.placement.voter_count

    def know_observers(self) -> None:
        """Looks again at which of its followers observe, by the racks that they are in."""
        leader, placement = self.leader, self.placement
        if leader is not None:
            leader.voters = self._voters()
            everyone = placement.observing(self._racks) if placement is not None else frozenset()
            leader.observers = everyone.intersection(leader.replicas)

    def _know_reassignment(self, leader: LeaderState, image: PartitionImage) -> None:
        leader.adding, leader.reassigning = image.adding_replicas, image.is_reassigning

    def _installed(
        self,
        isr: tuple[int, ...],
        partition_epoch: int,
        replicas: tuple[int, ...],
        recovering: bool,
        now: Instant,
    ) -> Installed:
        """The controller decided about the ISR or the replicas of this leadership."""
        leader = self.leader
        assert leader is not None
        leader.now_ms = max(leader.now_ms, now.mono_ms)
        changed = leader.installed(isr, partition_epoch, replicas, recovering)
        self.know_observers()
        self.partition_epoch = max(self.partition_epoch, leader.partition_epoch)
        self._tell_feeds()
        self._move(leader.high_watermark)
        self._refuse_unmet_acks()
        self.move_low_watermark()
        return changed

    def _refuse_unmet_acks(self) -> None:
        """Ends the waits with acks=all where too few replicas are in sync: until there are more the
        high watermark stands still, and a produce that comes now is refused as well."""
        leader = self.leader
        if leader is not None and leader.under_min_isr:
            self.acknowledged.interrupt(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))

    def resign(self, image: PartitionImage) -> None:
        """Ends a leadership at once: somebody else leads in a later epoch, or nobody.

        Whoever waits here is told so. What is in the log stays: the next leader says what of it.
        """
        if self.leader is None or image.leader_epoch < self.leader_epoch:
            return
        self.leader = None
        # Its next role is yet to be taken, so this epoch of the partition is not done with.
        self.leader_epoch, self.partition_epoch = image.leader_epoch, -1
        self._renew_watermarks(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _DEPOSED))
        self._tell_feeds()

    def follow(self, image: PartitionImage, in_sync: bool) -> FollowerState:
        """Follows whoever the controller made leader; the state of that."""
        self.resign(image)
        self._look_again()  # who waits here named the leader's last epoch
        self.serves = in_sync
        self.leader_epoch, self.partition_epoch = image.leader_epoch, image.partition_epoch
        # An epoch that this replica began as a leader, without a record, was nobody's.
        self.log.epochs.truncate_end(self.log.end_offset)
        self.follower = FollowerState(
            leader_epoch=image.leader_epoch,
            start_offset=self.log.start_offset,
            end_offset=self.log.end_offset,
            last_epoch=self.log.epochs.latest,
            high_watermark=self.high_watermark.value,
        )
        self._tell_feeds()
        if self._counted_end() < self.log.end_offset:
            self._ask_for_flush()  # what a restart found need not be on the device
        return self.follower

    def go_on_following(self, image: PartitionImage, in_sync: bool) -> None:
        """Only the ISR is another."""
        self.partition_epoch = image.partition_epoch
        self.serve(in_sync)

    def serve(self, may: bool) -> None:
        """Whether consumers may read from this follower; those that wait here are told."""
        if self.serves and not may:
            self._look_again()
        self.serves = may

    def _look_again(self) -> None:
        """Has consumers that wait at this follower look whether they may go on."""
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.high_watermark.interrupt(error)
        self.stable_offset.interrupt(error)

    def stay(self, image: PartitionImage) -> None:
        """Waits for a leader: the partition has none that this replica could follow."""
        self.resign(image)
        self.follower = None
        self.serves = False
        self._look_again()
        self.leader_epoch, self.partition_epoch = image.leader_epoch, image.partition_epoch
        self._tell_feeds()

    def retire(self, error: KafkaError) -> None:
        """Ends everything that waits here: the partition was deleted, or failed.

        A flush under way is left to end: others may wait for the same one.
        """
        self.leader = None
        self.follower = None
        self.serves = False
        self._fail_watermarks(error)
        self._tell_feeds()

    def _fail_watermarks(self, error: KafkaError) -> None:
        for watermark in (
            self.high_watermark,
            self.stable_offset,
            self.acknowledged,
            self.flushed,
            self.low_watermark,
        ):
            watermark.fail(error)

    def _renew_watermarks(self, error: KafkaError, high_watermark: int | None = None) -> None:
        """Ends all waits; the watermarks go on, perhaps from an earlier offset."""
        self._fail_watermarks(error)
        start = self.high_watermark.value if high_watermark is None else high_watermark
        start = min(max(start, self.log.start_offset), self.log.end_offset)
        self.high_watermark = Watermark(start)
        self.acknowledged = Watermark(start)
        self.stable_offset = Watermark(self.log.last_stable_offset(start))
        self.flushed = Watermark(self.log.flushed_offset)
        self.low_watermark = Watermark()

    def _tell_feeds(self) -> None:
        for feed in self.feeds:
            feed.news(True)

    def check_leader(self, epoch: int) -> LeaderState:
        """The leadership, if it is here and in the epoch the caller believes in (-1: any)."""
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.check_epoch(epoch)
        return leader

    def check_epoch(self, epoch: int) -> None:
        """KafkaError where the caller believes in another epoch than this replica (-1: in any)."""
        if epoch != -1 and epoch != self.leader_epoch:
            if epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_reader(self, epoch: int, offset: int) -> None:
        """Whether a consumer that also reads from followers may read here."""
        follower = self.follower
        if follower is None or not self.serves:
            self.check_leader(epoch)
            return
        self.check_epoch(epoch)
        if follower.end_offset < offset <= follower.leader_high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"{self} has it soon; its leader has it now"
            )

    # ---- writing ----

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        now: Instant,
        by_coordinator: bool = False,
    ) -> Appended:
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        appended = log.append(view, header, leader.leader_epoch, now, by_coordinator)
        base_offset, last_offset, _, repeat = appended
        if repeat is not None:
            return appended  # it is there already
        end_offset = last_offset + 1
        if end_offset >= self._flush_at:
            self._count_unflushed(base_offset, end_offset, now)
        producers = log.producers
        if self.syncs:
            pass  # what the device has not got does not count
        elif leader.followers or producers.open or producers.ended:
            self._move(leader.on_append(end_offset))
        else:
            # The leader is alone, and no transaction is open: what it has is committed and stable.
            # Written out: most watermarks move with nobody waiting, and then without a call.
            leader.own_end = leader.high_watermark = end_offset
            for_reads, for_acks, for_committed = (
                self.high_watermark,
                self.acknowledged,
                self.stable_offset,
            )
            if for_reads.waits or for_acks.waits or for_committed.waits:
                self._move(end_offset)
            else:
                for_reads.value = for_acks.value = for_committed.value = end_offset
        if self.feeds:
            self._tell_feeds()
        return appended

    def _count_unflushed(self, base_offset: int, end_offset: int, now: Instant) -> None:
        """Something was appended: asks for a flush if that makes so many records."""
        if self._oldest_unflushed_ms < 0:
            self._oldest_unflushed_ms = now.mono_ms
            self._unflushed_from = base_offset
        self._flush_at = self._unflushed_from + self.settings.flush_messages
        if end_offset >= self._flush_at:
            self._ask_for_flush()

    # ---- following ----

    def append_as_follower(self, view: memoryview, now: Instant) -> None:
        """Appends what the leader sent, as it is; KafkaError where it does not follow the log."""
        follower = self.follower
        assert follower is not None, "only a follower is sent records"
        before = self.log.end_offset
        try:
            if view:
                self.log.append_follower(view, now)
        finally:  # of several batches some may have been written
            self._took(follower, before, now)

    def _took(self, follower: FollowerState, before: int, now: Instant) -> None:
        log = self.log
        follower.appended(log.end_offset, log.epochs.latest)
        follower.heard(now.mono_ms)
        self.told_high_watermark = follower.leader_high_watermark
        self._move(follower.high_watermark)
        if log.end_offset > before and log.end_offset >= self._flush_at:
            self._count_unflushed(before, log.end_offset, now)

    def follow_start(self, start_offset: int) -> None:
        """Moves the start of the log to where the leader's is."""
        follower = self.follower
        if follower is not None and start_offset > self.log.start_offset:
            follower.start_offset = self.log.delete_records_to(start_offset)
            self.stable_offset.advance(self.log.last_stable_offset(self.high_watermark.value))

    def own_epoch_end(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log: what a truncation is decided by."""
        return EpochEnd(*self.log.end_offset_for_epoch(epoch))

    def truncated(self) -> None:
        """The log was truncated as the leader said."""
        follower, log = self.follower, self.log
        self._unflushed_from = min(self._unflushed_from, log.end_offset)
        self._flush_at = -1
        if follower is not None:
            follower.truncated(log.start_offset, log.end_offset, log.epochs.latest)
        if log.end_offset < self.high_watermark.value:
            error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._renew_watermarks(error, log.end_offset)
        else:
            # The last stable offset may be another without the records that are gone.
            self._look_again()
            self.stable_offset = Watermark(log.last_stable_offset(self.high_watermark.value))

    async def flushed_as_follower(self) -> None:
        """Returns when the device has what was appended; at once where nobody asked for that."""
        if self.syncs and self._flushing is not None:
            await asyncio.wait((self._flushing,))

    # ---- being followed ----

    def on_fetch(
        self,
        replica: int,
        offset: int,
        start_offset: int,
        broker_epoch: int,
        now: Instant,
        heard: Heard,
    ) -> bool:
        """A follower has everything below `offset`; False if it is no replica of this partition."""
        leader = self.leader
        assert leader is not None, "only a leader is fetched from"
        moved = leader.on_fetch(replica, offset, broker_epoch, now, start_offset, heard)
        if moved is None:
            return False
        if moved > self.high_watermark.value:
            self._move(moved)
        if start_offset > self.low_watermark.value:
            self.move_low_watermark()
        return True

    def move_low_watermark(self) -> None:
        """Looks again where the logs of all live replicas begin."""
        leader = self.leader
        if leader is not None:
            self.low_watermark.advance(min(self.log.start_offset, leader.low_watermark))

    def move_start(self, offset: int) -> int:
        """DeleteRecords: the log begins at `offset` from now on, and followers are to follow."""
        start = self.log.delete_records_to(offset)
        self.stable_offset.advance(self.log.last_stable_offset(self.high_watermark.value))
        self.move_low_watermark()
        self._tell_feeds()
        return start

    def flush_if_due(self, now: Instant) -> None:
        """The `flush.ms` half of the policy, asked by a background pass."""
        oldest = self._oldest_unflushed_ms
        if oldest >= 0 and now.mono_ms - oldest >= self.settings.flush_ms:
            self._ask_for_flush()

    def _counted_end(self) -> int:
        """How far the leader's own log counts towards the high watermark."""
        return self.log.flushed_offset if self.syncs else self.log.end_offset

    def _ask_for_flush(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Flushes until nothing waits; appends made meanwhile share the next round."""
        store = self.log
        try:
            while self.log.flushed_offset < self.log.end_offset:
                self._oldest_unflushed_ms = self._flush_at = -1
                store = self.log
                await store.flush()
                self.flushed.advance(self.log.flushed_offset)
                self.refresh()
                if not self.syncs:
                    break
        except KafkaError as error:
            # No second try: after a failed fsync nobody knows what the device holds. The log has
            # told its directory, and that the node.
            if self.leader is not None and store is self.log:
                self.retire(error)
        finally:
            self._flushing = None

    def refresh(self) -> None:
        """Brings the watermarks up to date after a change outside of `append`."""
        leader = self.leader
        if leader is not None:
            # What counted before the flush policy became stricter counts on.
            self._move(leader.on_append(max(self._counted_end(), leader.own_end)))

    def _move(self, high_watermark: int) -> None:
        # Each watermark is written out: most move with nobody waiting, and then without a call.
        mark = self.high_watermark
        if high_watermark > mark.value:
            if mark.waits:
                mark.advance(high_watermark)
            else:
                mark.value = high_watermark
            mark = self.acknowledged
            if mark.waits:
                mark.advance(high_watermark)
            else:
                mark.value = high_watermark
            if self.feeds:
                for feed in self.feeds:
                    feed.news(False)  # told with the next records
        producers = self.log.producers
        if producers.open or producers.ended:
            self.stable_offset.advance(self.log.last_stable_offset(high_watermark))
            return
        mark = self.stable_offset
        if high_watermark > mark.value:
            if mark.waits:
                mark.advance(high_watermark)
            else:
                mark.value = high_watermark

    # ---- reading ----

    def readable(self, committed_only: bool) -> Watermark:
        """The watermark that bounds what a consumer sees."""
        return self.stable_offset if committed_only else self.high_watermark
