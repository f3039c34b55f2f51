"""Verification: whether a batch belongs to a transaction that its coordinator knows of (KIP-890).

A client's batch may open a transaction in a partition only if the coordinator knows of it; `verify`
asks. A client of transaction version 2 does not announce its partitions: there, asking adds them.

A coordinator on this broker is asked by a call, one on another broker by AddPartitionsToTxn, which
has many transactions in one request: one request at a time to each broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scriba.broker.ports import (
    BackgroundTasks,
    BrokerAccess,
    BrokerIdentity,
    Configuration,
    MetadataView,
    Timekeeping,
)
from scriba.broker.request import Context, broker_context
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.peers.errors import BrokerError, ClientError, raise_for
from scriba.txn.messages import TopicPartition
from scriba.txn.states import by_topic
from scriba.wire.apis import ApiKey
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from scriba.broker.coordinators.markers import TransactionMarkers
    from scriba.broker.coordinators.runtime import CoordinatorRuntime

ADD_PARTITIONS_VERSION: Final = 5
"""What brokers use among themselves; before version 4 it was for clients."""
ASKED_AT_ONCE: Final = 500
"""Transactions of one request to another broker."""
NAMED_AT_ONCE: Final = 10_000
"""Partitions of one: a coordinator hangs up on whoever sends more elements than it takes."""
FIRST_PART: Final = 8
"""The first pause before a busy transaction is asked for again is this part of the longest."""
PURPOSE: Final = "transactions"
"""The connection for it: a coordinator answers when its records are replicated."""

Codes = dict[TopicPartition, ErrorCode]


class VerifierHost(
    BackgroundTasks,
    BrokerAccess,
    BrokerIdentity,
    Configuration,
    MetadataView,
    Timekeeping,
    Protocol,
):
    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def txn_markers(self) -> TransactionMarkers: ...


class Question(NamedTuple):
    """What the coordinator of one transaction is asked."""

    transaction: AddPartitionsToTxnTransaction
    answer: asyncio.Future[Codes]


def take(waiting: list[Question], most: int, most_named: int = NAMED_AT_ONCE) -> list[Question]:
    """Removes what goes with the next request: no transactional id twice, for answers are by it,
    and not too many partitions, unless one transaction has them all."""
    taken: dict[str, Question] = {}
    left: list[Question] = []
    named = 0
    for question in waiting:
        tid = question.transaction.transactional_id
        more = sum(len(topic.partitions) + 1 for topic in question.transaction.topics)
        fits = not taken or (len(taken) < most and named + more <= most_named)
        if fits and tid not in taken:
            taken[tid] = question
            named += more
        else:
            left.append(question)
    waiting[:] = left
    return list(taken.values())


class TransactionVerifier:
    def __init__(self, node: VerifierHost) -> None:
        self._node = node
        self._remote: dict[int, list[Question]] = {}
        """By broker, while there is something to ask it."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        add: bool,
        abortable: bool = True,
    ) -> Codes:
        """For each partition, NONE or why the producer may not write to it in its transaction.

        With `add` the partitions join the transaction; while the last one is still being ended,
        that is waited for, though not for long. `abortable`: the client knows what to do with
        TRANSACTION_ABORTABLE.
        """
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not add,
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
        )
        clock, settings = self._node.world.clock, self._node.settings
        longest_ms = min(
            settings.add_partitions_to_txn_retry_backoff_max_ms, settings.request_timeout_ms
        )
        give_up_ms = clock.mono_ms() + longest_ms
        pause_ms = settings.add_partitions_to_txn_retry_backoff_ms / FIRST_PART
        while True:
            codes = await self._ask(transaction)
            busy = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not add or not busy or clock.mono_ms() >= give_up_ms:
                return {where: _told(code, abortable) for where, code in codes.items()}
            # Nobody tells us when a transaction has ended at another broker.
            await self._node.txn_markers.ended(transactional_id, pause_ms)
            pause_ms = min(2 * pause_ms, settings.add_partitions_to_txn_retry_backoff_ms)

    def _coordinator(self, transactional_id: str) -> int:
        """The broker that coordinates it; KafkaError where there is none now."""
        coordinators = self._node.txn_coordinators
        index = coordinators.partition_of(transactional_id)
        leader = self._node.image.topics_by_name[coordinators.topic].partitions[index].leader
        if leader < 0:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return leader

    async def _ask(self, transaction: AddPartitionsToTxnTransaction) -> Codes:
        try:
            broker_id = self._coordinator(transaction.transactional_id)
            if broker_id != self._node.id:
                return await self._ask_broker(broker_id, transaction)
            answer = await self._node.txn_coordinators.ask(
                transaction.transactional_id,
                AddPartitionsToTxnRequest(transactions=[transaction]),
                self._context(),
            )
        except KafkaError as error:
            return _for_all(transaction, error.code)
        assert isinstance(answer, AddPartitionsToTxnResponse)
        (result,) = answer.results_by_transaction
        return _codes(transaction, result)

    # ---- transactions that another broker coordinates ----

    async def _ask_broker(
        self, broker_id: int, transaction: AddPartitionsToTxnTransaction
    ) -> Codes:
        question = Question(transaction, asyncio.get_running_loop().create_future())
        waiting = self._remote.get(broker_id)
        if waiting is None:
            waiting = self._remote[broker_id] = []
            work = self._ask_all(broker_id, waiting)
            self._node.tasks.spawn(work, name=f"transactions at broker {broker_id}")
        waiting.append(question)
        return await question.answer

    async def _ask_all(self, broker_id: int, waiting: list[Question]) -> None:
        """All that comes up for a broker while it is asked goes with the next request."""
        while asked := take(waiting, ASKED_AT_ONCE):
            request = AddPartitionsToTxnRequest(transactions=[each.transaction for each in asked])
            try:
                response = await self._node.channels.call(broker_id, request, purpose=PURPOSE)
                raise_for(response.error_code)
            except ClientError as error:
                code = error.code if isinstance(error, BrokerError) else ErrorCode.NETWORK_EXCEPTION
                results = {}
            else:
                code = ErrorCode.UNKNOWN_SERVER_ERROR  # of those that the answer passes over
                results = {each.transactional_id: each for each in response.results_by_transaction}
            for transaction, answer in asked:
                result = results.get(transaction.transactional_id)
                if not answer.done():  # else whoever asked has gone
                    answer.set_result(_codes(transaction, result, code))
        del self._remote[broker_id]

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


def _codes(
    transaction: AddPartitionsToTxnTransaction,
    result: AddPartitionsToTxnResult | None,
    missing: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
) -> Codes:
    codes = _for_all(transaction, missing)
    for topic in result.topic_results if result is not None else ():
        for partition in topic.results_by_partition:
            where = topic.name, partition.partition_index
            if where in codes:
                codes[where] = error_code(partition.partition_error_code)
    return codes


def _for_all(transaction: AddPartitionsToTxnTransaction, code: ErrorCode) -> Codes:
    return {(t.name, index): code for t in transaction.topics for index in t.partitions}
