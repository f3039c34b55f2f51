"""Verification: whether a batch belongs to a transaction that its coordinator knows of (KIP-890).

A client's batch may open a transaction in a partition only if the coordinator knows of it; `verify`
asks. A client of transaction version 2 does not announce its partitions: there, asking adds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import Configuration, Timekeeping
from scriba.broker.request import Context, broker_context
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.txn.messages import TopicPartition
from scriba.txn.states import by_topic
from scriba.wire.apis import ApiKey
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from scriba.broker.coordinators.markers import TransactionMarkers
    from scriba.broker.coordinators.runtime import CoordinatorRuntime

ADD_PARTITIONS_VERSION: Final = 5
"""What brokers use among themselves; before version 4 it was for clients."""


class VerifierHost(Configuration, Timekeeping, Protocol):
    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def txn_markers(self) -> TransactionMarkers: ...


class TransactionVerifier:
    def __init__(self, node: VerifierHost) -> None:
        self._node = node

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        add: bool,
        abortable: bool = True,
    ) -> dict[TopicPartition, ErrorCode]:
        """For each partition, NONE or why the producer may not write to it in its transaction.

        With `add` the partitions join the transaction; while the last one is still being ended,
        that is waited for, though not for long. `abortable`: the client knows what to do with
        TRANSACTION_ABORTABLE.
        """
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=not add,
                    topics=[
                        AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                        for topic, indexes in by_topic(partitions).items()
                    ],
                )
            ]
        )
        clock, settings = self._node.world.clock, self._node.settings
        longest_ms = min(
            settings.add_partitions_to_txn_retry_backoff_max_ms, settings.request_timeout_ms
        )
        give_up_ms = clock.mono_ms() + longest_ms
        while True:
            codes = await self._ask(transactional_id, request)
            busy = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not add or not busy or clock.mono_ms() >= give_up_ms:
                return {where: _told(code, abortable) for where, code in codes.items()}
            await self._node.txn_markers.ended(
                transactional_id, settings.add_partitions_to_txn_retry_backoff_ms
            )

    async def _ask(
        self, transactional_id: str, request: AddPartitionsToTxnRequest
    ) -> dict[TopicPartition, ErrorCode]:
        topics = request.transactions[0].topics
        try:
            answer = await self._node.txn_coordinators.ask(
                transactional_id, request, self._context()
            )
        except KafkaError as error:
            return {(t.name, index): error.code for t in topics for index in t.partitions}
        assert isinstance(answer, AddPartitionsToTxnResponse)
        return {
            (topic.name, partition.partition_index): error_code(partition.partition_error_code)
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }

    def _context(self) -> Context:
        now_ms = self._node.world.clock.mono_ms()
        return broker_context(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS_VERSION, now_ms)


def _told(code: ErrorCode, abortable: bool) -> ErrorCode:
    """To a client that writes, only the partition is speaking."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
