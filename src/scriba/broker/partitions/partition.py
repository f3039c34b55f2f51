"""One partition that this broker hosts: its log, its leadership, and how far it may be read.

Calls go down into the log and the replication machine; only values come back, and the two
watermarks wake whoever waits. `append` is one synchronous step: nothing can come between the
check of the leader epoch and the bytes in the log.

With `flush.messages=1` what counts is what the device has: the leader's own end, as it enters the
high watermark, is then the flushed end, and each append asks for a flush that all appends waiting
at that moment share.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.records.batch import BatchHeader
from scriba.replication.leader import LeaderState
from scriba.runtime.watermark import Watermark
from scriba.settings import TopicSettings

if TYPE_CHECKING:
    from scriba.controller.image import PartitionImage
    from scriba.storage.log import Appended, Log


class Partition:
    __slots__ = (
        "_flushing",
        "_messages_unflushed",
        "_oldest_unflushed_ms",
        "flushed",
        "high_watermark",
        "index",
        "leader",
        "leader_epoch",
        "log",
        "settings",
        "stable_offset",
        "syncs",
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
        self.syncs = store.settings.flush_messages == 1
        """Whether only what the device has counts."""
        self.leader: LeaderState | None = None
        self.leader_epoch = -1
        # The checkpoint is a lower bound that was true once; the log may have lost its tail since.
        start = min(max(checkpoint, store.start_offset), store.end_offset)
        self.high_watermark = Watermark(start)
        self.stable_offset = Watermark(store.last_stable_offset(start))
        self.flushed = Watermark(store.flushed_offset)
        """What the leader's own device has; followed while `syncs`, for acks=1 to wait for."""
        self._flushing: asyncio.Task[None] | None = None
        self._messages_unflushed = 0
        self._oldest_unflushed_ms = -1

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def configure(self, settings: TopicSettings) -> None:
        """Takes new settings; a stricter flush policy counts from the next append on."""
        self.settings = self.log.settings = settings
        self.syncs = settings.flush_messages == 1
        self.flushed.advance(self.log.flushed_offset)
        self.refresh()
        if self.syncs:
            self._ask_for_flush()

    # ---- leadership ----

    def lead(self, node_id: int, image: PartitionImage, lag_ms: int) -> None:
        """Takes or keeps the leadership that the controller has recorded."""
        replicas, isr = tuple(image.replicas), tuple(image.isr)
        if self.leader is not None and image.leader_epoch == self.leader_epoch:
            self.leader.replicas = replicas
            self._move(self.leader.installed(isr, image.partition_epoch))
            return
        self.leader_epoch = image.leader_epoch
        self.log.begin_epoch(image.leader_epoch)
        self.leader = LeaderState(
            node_id=node_id,
            replicas=replicas,
            isr=isr,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
            epoch_start_offset=self.log.end_offset,
            high_watermark=self.high_watermark.value,
            own_end=self._counted_end(),
            lag_ms=lag_ms,
        )
        self._move(self.leader.high_watermark)
        if self._counted_end() < self.log.end_offset:
            self._ask_for_flush()

    def retire(self, error: KafkaError) -> None:
        """Ends everything that waits here: the partition moved, was deleted or failed.

        A flush under way is left to end: others may wait for the same one.
        """
        self.leader = None
        self.high_watermark.fail(error)
        self.stable_offset.fail(error)
        self.flushed.fail(error)

    def check_leader(self, epoch: int) -> LeaderState:
        """The leadership, if it is here and in the epoch the caller believes in (-1: any)."""
        leader = self.leader
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch != -1 and epoch != leader.leader_epoch:
            if epoch < leader.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return leader

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
        appended = self.log.append(view, header, leader.leader_epoch, now, by_coordinator)
        if appended.duplicate:
            return appended
        if self._oldest_unflushed_ms < 0:
            self._oldest_unflushed_ms = now.mono_ms
        self._messages_unflushed += header.count
        if self._messages_unflushed >= self.settings.flush_messages:
            self._ask_for_flush()
        if not self.syncs:
            self._move(leader.on_append(appended.last_offset + 1))
        return appended

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
        try:
            while self.log.flushed_offset < self.log.end_offset:
                self._messages_unflushed = 0
                self._oldest_unflushed_ms = -1
                await self.log.flush()
                self.flushed.advance(self.log.flushed_offset)
                self.refresh()
                if not self.syncs:
                    break
        except KafkaError as error:
            # No second try: after a failed fsync nobody knows what the device holds. The log has
            # told its directory, and that the node.
            if self.leader is not None:
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
        if high_watermark > self.high_watermark.value:
            self.high_watermark.advance(high_watermark)
        stable = self.log.producers.last_stable_offset(high_watermark)
        if stable > self.stable_offset.value:
            self.stable_offset.advance(stable)

    # ---- reading ----

    def readable(self, committed_only: bool) -> Watermark:
        """The watermark that bounds what a consumer sees."""
        return self.stable_offset if committed_only else self.high_watermark
