"""Asks coordinators on behalf of a producer's transactions (see `transactions`).

Every question is asked until it is answered for good: a coordinator that moved is looked for again,
one that is loading or still ending the last transaction is asked again after a pause. What an
answer means is for the machine to say; here it is asked, told, and raised.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from scriba.client.cluster import Cluster
from scriba.client.coordinator import Coordinator, CoordinatorKind
from scriba.client.errors import TransactionError
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from scriba.client.settings import ProducerSettings
from scriba.client.transactions.machine import State, Transactions, judged
from scriba.errors import ErrorCode, error_code
from scriba.peers.connection import Connection
from scriba.peers.errors import BrokerError, ClientError
from scriba.peers.ports import Backoff
from scriba.wire.messages import txn as wire
from scriba.wire.schema import Message

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=Message)

FEATURE: Final = "transaction.version"
_IMPLICIT_SINCE: Final = 2
"""The level of the feature from which on brokers tell the coordinator themselves."""

_ADD_BY_CLIENTS: Final = 3
"""The newest AddPartitionsToTxn that is for clients; later ones are for brokers."""

_EXPLICIT_END: Final = 4
_EXPLICIT_OFFSETS: Final = 4
"""The newest versions of EndTxn and TxnOffsetCommit that belong to the first generation."""

_CONCURRENT_MS: Final = 5
"""First pause while the last transaction is being ended, which rarely takes long."""

_UNKNOWN: Final = (-1, -1)


class TransactionCalls:
    def __init__(self, cluster: Cluster, settings: ProducerSettings, machine: Transactions) -> None:
        self._cluster = cluster
        self._settings = settings
        self._machine = machine
        self._id = machine.transactional_id
        self._home = Coordinator(
            cluster, CoordinatorKind.TRANSACTION, self._id, purpose="transactions"
        )
        self._groups: dict[str, Coordinator] = {}
        self._level = 0

    @property
    def implicit(self) -> bool:
        """Whether the coordinator serves the second generation."""
        return self._level >= _IMPLICIT_SINCE

    async def initialize(self) -> tuple[int, int]:
        """An identity under which nobody has written: a new one, or ours with the next epoch."""
        producer_id, epoch = self._machine.identity or _UNKNOWN
        request = wire.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        async def ask(connection: Connection) -> tuple[int, int]:
            answer = await connection.request(request, wire.InitProducerIdResponse)
            _raise_for(answer.error_code)
            return answer.producer_id, answer.producer_epoch

        return await self._until_answered(self._home, ask, "initializing transactions")

    async def add_partitions(self, partitions: list[TopicPartition]) -> None:
        """Tells the coordinator where this transaction writes."""
        producer_id, epoch = self._identity
        topics: dict[str, wire.AddPartitionsToTxnTopic] = {}
        for topic, partition in partitions:
            found = topics.setdefault(topic, wire.AddPartitionsToTxnTopic(name=topic))
            found.partitions.append(partition)
        request = wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=list(topics.values()),
        )

        async def ask(connection: Connection) -> None:
            answer = await connection.request(
                request,
                wire.AddPartitionsToTxnResponse,
                version=connection.version(wire.AddPartitionsToTxnRequest, _ADD_BY_CLIENTS),
            )
            _raise_worst(
                {
                    TopicPartition(topic.name, p.partition_index): p.partition_error_code
                    for topic in answer.results_by_topic_v3_and_below
                    for p in topic.results_by_partition
                }
            )

        await self._until_answered(self._home, ask, "adding partitions to the transaction")

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Commits offsets of a group with the transaction."""
        machine = self._machine
        machine.telling_group()
        if not machine.implicit and group.group_id not in machine.groups:
            await self._add_group(group.group_id)
            machine.groups.add(group.group_id)
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = self._groups[group.group_id] = Coordinator(
                self._cluster, CoordinatorKind.GROUP, group.group_id, purpose="transactions"
            )
        request = self._offsets_request(offsets, group)
        newest = None if machine.implicit else _EXPLICIT_OFFSETS

        async def ask(connection: Connection) -> None:
            answer = await connection.request(
                request,
                wire.TxnOffsetCommitResponse,
                version=connection.version(wire.TxnOffsetCommitRequest, newest),
            )
            _raise_worst(
                {
                    TopicPartition(topic.name, p.partition_index): p.error_code
                    for topic in answer.topics
                    for p in topic.partitions
                }
            )

        await self._until_answered(coordinator, ask, f"committing offsets of {group.group_id}")

    async def _add_group(self, group_id: str) -> None:
        producer_id, epoch = self._identity
        request = wire.AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group_id,
        )

        async def ask(connection: Connection) -> None:
            answer = await connection.request(request, wire.AddOffsetsToTxnResponse)
            _raise_for(answer.error_code)

        await self._until_answered(self._home, ask, "adding a group to the transaction")

    def _offsets_request(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> wire.TxnOffsetCommitRequest:
        producer_id, epoch = self._identity
        topics: dict[str, wire.TxnOffsetCommitRequestTopic] = {}
        for (topic, partition), place in offsets.items():
            found = topics.setdefault(topic, wire.TxnOffsetCommitRequestTopic(name=topic))
            found.partitions.append(
                wire.TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=place.offset,
                    committed_leader_epoch=place.leader_epoch,
                    committed_metadata=place.metadata,
                )
            )
        return wire.TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=list(topics.values()),
        )

    async def end(self, commit: bool) -> tuple[int, int] | None:
        """Ends the transaction; the identity of the next one where the answer names it."""
        machine = self._machine
        producer_id, epoch = self._identity
        newest = None if machine.implicit else _EXPLICIT_END
        request = wire.EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )

        async def ask(connection: Connection) -> tuple[int, int] | None:
            version = connection.version(wire.EndTxnRequest, newest)
            if commit:  # an abort may have come while the coordinator was looked for
                machine.check_commit()
            machine.decided = True
            answer = await connection.request(request, wire.EndTxnResponse, version=version)
            _raise_for(answer.error_code)
            if answer.producer_id < 0:
                return None
            return answer.producer_id, answer.producer_epoch

        what = "committing" if commit else "aborting"
        return await self._until_answered(self._home, ask, f"{what} the transaction")

    # -- asking ----------------------------------------------------------------------------------

    @property
    def _identity(self) -> tuple[int, int]:
        assert self._machine.identity is not None
        return self._machine.identity

    async def _until_answered(
        self, coordinator: Coordinator, ask: Callable[[Connection], Awaitable[T]], what: str
    ) -> T:
        """The answer of a coordinator, within max.block.ms; a refusal is told to the machine."""
        settings, rng = self._settings, self._cluster.ports.rng
        pauses = Backoff(rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        soon = Backoff(rng, _CONCURRENT_MS, settings.retry_backoff_max_ms)

        async def keep_asking() -> T:
            while True:
                try:
                    connection = await coordinator.connect()
                    if coordinator is self._home:
                        self._level = connection.features.get(FEATURE, 0)
                    return await ask(connection)
                except TransactionError:
                    raise  # not the coordinator's word
                except ClientError as failure:
                    coordinator.failed(failure)
                    if not failure.retriable:
                        raise self._refused(failure, what) from failure
                    log.debug("%s: asking again after %s", what, failure)
                    busy = _code(failure) is ErrorCode.CONCURRENT_TRANSACTIONS
                await asyncio.sleep((soon if busy else pauses).next_ms() / 1000)

        await self._cluster.ready(settings.max_block_ms)
        return await self._cluster.within(keep_asking(), settings.max_block_ms, what)

    def _refused(self, failure: ClientError, what: str) -> TransactionError:
        error = judged(failure, f"{self._id}: {what}")
        self._machine.fail(error)
        if self._machine.state is State.ABORTABLE:
            log.warning("%s", error)
        elif self._machine.state is State.FATAL:
            log.error("%s", error)
        return error


def _code(failure: ClientError) -> ErrorCode | None:
    return failure.code if isinstance(failure, BrokerError) else None


def _raise_for(number: int) -> None:
    if number:
        raise BrokerError(error_code(number))


def _raise_worst(numbers: Mapping[TopicPartition, int]) -> None:
    """Raises when one of several answers is an error: one that no other try can change, if any.

    That the others were not attempted is a consequence, and told only when nothing else is.
    """
    errors = [
        BrokerError(error_code(number), about=str(where))
        for where, number in numbers.items()
        if number
    ]
    if errors:
        raise min(errors, key=lambda e: (e.code is ErrorCode.OPERATION_NOT_ATTEMPTED, e.retriable))
