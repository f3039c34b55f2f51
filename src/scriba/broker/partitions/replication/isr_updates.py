"""Changes of in-sync replicas: proposed by leaders here, decided by the controller.

Proposals of one turn of the loop travel together in one AlterPartition, and one request is under
way at a time. A proposal that got no answer is sent again, as it was, until there is one. The ISR
itself comes with the metadata; that long the leader counts its maximal ISR (`replication.leader`).

Each change is told by whoever leads after it: a shrink with the replica, its lag and the cause, and
a partition whose ISR changes again and again by its name, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import (
    BackgroundTasks,
    BrokerIdentity,
    ControllerAccess,
    Counting,
    EventLog,
    MetadataView,
    WorldAccess,
)
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.peers.errors import ClientError
from scriba.peers.ports import Backoff
from scriba.replication.leader import Cause
from scriba.runtime.loop.pace import Pace
from scriba.wire.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scriba.broker.partitions.partition import Partition
    from scriba.replication.leader import Installed, IsrProposal

MOST_AT_ONCE: Final = 1_000
RETRY_MS: Final = 50
LONGEST_RETRY_MS: Final = 1_000
FLAPS: Final = 4
"""Shrinks of one partition within `FLAPPING_MS` after which it is named."""
FLAPPING_MS: Final = 600_000
MOST_REMEMBERED: Final = 10_000


class IsrHost(
    BackgroundTasks,
    BrokerIdentity,
    ControllerAccess,
    Counting,
    EventLog,
    MetadataView,
    WorldAccess,
    Protocol,
):
    """What asking the controller for another ISR takes."""


class IsrUpdates:
    def __init__(self, node: IsrHost) -> None:
        self._node = node
        self._waiting: dict[Partition, IsrProposal] = {}
        self._worker: asyncio.Task[None] | None = None
        self._backoff = Backoff(node.world.rng, RETRY_MS, LONGEST_RETRY_MS)
        self._shrinks: dict[Partition, deque[int]] = {}
        """When the ISR of a partition shrank of late."""
        self._named: set[Partition] = set()

    # ---- proposals ----

    async def look_at_all(self, partitions: Iterable[Partition], now: Instant) -> None:
        """Drops who lags and takes in who has caught up: a background pass."""
        pace = Pace(self._node.world.clock)
        for partition in partitions:
            self.look(partition, now)
            await pace()

    def look(self, partition: Partition, now: Instant) -> None:
        """Proposes the ISR that the leader would rather have, if it is another."""
        leader = partition.leader
        if leader is None or not (leader.followers or leader.recovering):
            return
        proposal = leader.propose(now, self._node.broker_epoch)
        if proposal is not None:
            self._waiting[partition] = proposal
            if self._worker is None or self._worker.done():
                self._worker = self._node.tasks.spawn(self._work(), name="ISR changes")

    async def _work(self) -> None:
        while self._waiting:
            batch = {
                partition: proposal
                for partition, proposal in islice(self._waiting.items(), MOST_AT_ONCE)
                if _stands(partition, proposal)
            }
            for partition in tuple(islice(self._waiting, MOST_AT_ONCE)):
                del self._waiting[partition]
            again = await self._ask(batch) if batch else []
            if again:
                for partition in again:
                    if _stands(partition, batch[partition]):
                        self._waiting[partition] = batch[partition]
                await asyncio.sleep(self._backoff.next_ms() / 1000)

    async def _ask(self, batch: dict[Partition, IsrProposal]) -> list[Partition]:
        """Sends proposals; those that are to be sent again."""
        try:
            response = await self._node.controller.call(self._request(batch))
        except (KafkaError, ClientError):
            self._node.counters.failed_isr_updates += 1
            return list(batch)
        assert isinstance(response, AlterPartitionResponse)
        if response.error_code:
            self._node.counters.failed_isr_updates += 1
            return list(batch)
        self._backoff.reset()
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        return [
            partition
            for partition, proposal in batch.items()
            if _stands(partition, proposal)
            and not self._take(partition, answers.get((partition.topic_id, partition.index)))
        ]

    def _request(self, batch: dict[Partition, IsrProposal]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for partition, proposal in batch.items():
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = AlterPartitionRequestTopicData(topic_id=partition.topic_id)
                topics[partition.topic_id] = topic
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member.replica, broker_epoch=member.broker_epoch)
                        for member in proposal.members
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node.id,
            broker_epoch=self._node.broker_epoch,
            topics=list(topics.values()),
        )

    def _take(
        self, partition: Partition, answer: AlterPartitionResponsePartitionData | None
    ) -> bool:
        """Carries out a decision; False if it is to be asked for again."""
        leader = partition.leader
        assert leader is not None
        code = error_code(answer.error_code) if answer is not None else ErrorCode.UNKNOWN_TOPIC_ID
        if answer is None or code:
            self._node.counters.failed_isr_updates += 1
            again = leader.refused(code)
            partition.refresh()
            return not again
        leader.accepted(answer.partition_epoch)
        partition.refresh()
        return True

    # ---- what became of it ----

    def tell(self, partition: Partition, changed: Installed) -> None:
        """Says what the controller's decision changed."""
        node, counters = self._node, self._node.counters
        for gone in changed.left:
            counters.isr_shrinks += 1
            broker = node.image.brokers.get(gone.replica)
            stops = broker is not None and broker.in_controlled_shutdown
            stops = stops and gone.cause is Cause.FENCED
            cause = "its broker stops" if stops else gone.cause.value
            text = f"replica {gone.replica} left the in-sync set: {cause}, "
            if gone.lag >= 0:
                text += f"{gone.lag} records and {gone.behind_ms} ms behind"
            else:
                text += "its lag unknown"
            if gone.end >= 0:
                text += f", its log ended at {gone.end}"
            kind = EventKind.REPLICA_STOPPED if stops else EventKind.ISR_SHRUNK
            node.note(kind, repr(partition), text)
        if changed.left:
            self._count_flaps(partition)
        for replica in changed.joined:
            counters.isr_expands += 1
            text = f"replica {replica} is in sync"
            node.note(EventKind.ISR_EXPANDED, repr(partition), text)

    def _count_flaps(self, partition: Partition) -> None:
        now_ms = self._node.world.clock.mono_ms()
        shrinks = self._shrinks.pop(partition, None) or deque(maxlen=FLAPS)
        shrinks.append(now_ms)
        self._shrinks[partition] = shrinks
        if len(self._shrinks) > MOST_REMEMBERED:
            forgotten = next(iter(self._shrinks))
            del self._shrinks[forgotten]
            self._named.discard(forgotten)
        if len(shrinks) < FLAPS or now_ms - shrinks[0] > FLAPPING_MS:
            self._named.discard(partition)
        elif partition not in self._named:
            self._named.add(partition)
            text = f"its in-sync set shrank {FLAPS} times within {FLAPPING_MS // 60_000} minutes"
            self._node.note(EventKind.ISR_FLAPS, repr(partition), text)

    def forget(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
        self._shrinks.pop(partition, None)
        self._named.discard(partition)


def _stands(partition: Partition, proposal: IsrProposal) -> bool:
    """Whether the leader still waits for this."""
    return partition.leader is not None and partition.leader.pending is proposal
