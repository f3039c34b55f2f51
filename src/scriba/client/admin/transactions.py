"""The part of `Admin` that is about transactions and the producers behind them."""

from collections.abc import Iterable
from typing import Final

from scriba.client.admin.calls import Calls, outcome, several
from scriba.client.admin.model import ActiveProducer, TransactionDescription, TransactionListing
from scriba.client.admin.requests import describe_producers
from scriba.client.admin.responses import read_active_producer
from scriba.client.coordinator import CoordinatorKind
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, raise_for
from scriba.wire.messages import txn as wire

_BY_DURATION_SINCE: Final = 1
_BY_PATTERN_SINCE: Final = 2
_TOPIC: Final = "__transaction_state"
_BRIEFLY_MS: Final = 1
"""Time-out of the transactions of a producer that is initialized only to fence others."""


class TransactionAdmin:
    _calls: Calls

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_longer_ms: int | None = None,
        pattern: str | None = None,
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that coordinators know, with the state each is in.

        `pattern` is a regular expression (RE2) that the whole transactional id matches.
        PartlyListed, with the others in it, where partitions of `__transaction_state` are offline.
        """
        request = wire.ListTransactionsRequest(
            state_filters=several(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if open_longer_ms is None else open_longer_ms,
            transactional_id_pattern=pattern,
        )
        needed = 0
        if open_longer_ms is not None:
            needed = _BY_DURATION_SINCE
        if pattern is not None:
            needed = _BY_PATTERN_SINCE

        async def ask(node: int) -> list[TransactionListing]:
            connection = await self._calls.cluster.connect(node)
            version = connection.version(wire.ListTransactionsRequest)
            if version < needed:
                raise BrokerError(
                    ErrorCode.UNSUPPORTED_VERSION, "the broker is too old for this filter"
                )
            answer = await connection.request(
                request, wire.ListTransactionsResponse, version=version
            )
            raise_for(answer.error_code, about="the transactions")
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"no such state: {unknown}")
            return [
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
                for t in answer.transaction_states
            ]

        return await self._calls.all_listed(
            ask, lambda listing: listing.transactional_id, _TOPIC, timeout_ms, "the transactions"
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        async def ask(
            node: int, part: list[str]
        ) -> dict[str, TransactionDescription | BrokerError]:
            request = wire.DescribeTransactionsRequest(transactional_ids=part)
            answer = await self._calls.ask(request, wire.DescribeTransactionsResponse, node)
            return {
                t.transactional_id: outcome(
                    t.error_code, None, _read(t, node), f"transactional id {t.transactional_id}"
                )
                for t in answer.transaction_states
            }

        return await self._calls.at_coordinators(
            CoordinatorKind.TRANSACTION, transactional_ids, ask, timeout_ms, "the transactions"
        )

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, tuple[int, int]]:
        """Takes transactional ids over, as a new producer of that name would: whoever has one can
        write no more, and what it has open is aborted. Producer id and epoch of each."""

        async def ask(node: int, part: list[str]) -> dict[str, tuple[int, int] | BrokerError]:
            found: dict[str, tuple[int, int] | BrokerError] = {}
            for name in part:
                request = wire.InitProducerIdRequest(
                    transactional_id=name, transaction_timeout_ms=_BRIEFLY_MS
                )
                answer = await self._calls.ask(request, wire.InitProducerIdResponse, node)
                identity = (answer.producer_id, answer.producer_epoch)
                about = f"transactional id {name}"
                found[name] = outcome(answer.error_code, None, identity, about)
            return found

        return await self._calls.at_coordinators(
            CoordinatorKind.TRANSACTION, transactional_ids, ask, timeout_ms, "fencing producers"
        )

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Who has written to these partitions lately, and what transactions are open."""

        async def ask(
            leader: int, part: list[TopicPartition]
        ) -> dict[TopicPartition, list[ActiveProducer] | BrokerError]:
            request = describe_producers(part)
            answer = await self._calls.ask(request, wire.DescribeProducersResponse, leader)
            return {
                (where := TopicPartition(t.name, p.partition_index)): outcome(
                    p.error_code,
                    p.error_message,
                    [read_active_producer(state) for state in p.active_producers],
                    str(where),
                )
                for t in answer.topics
                for p in t.partitions
            }

        wanted = [TopicPartition(*where) for where in partitions]
        return await self._calls.at_leaders(wanted, ask, timeout_ms, "the producers")

    async def abort_transaction(
        self,
        partition: tuple[str, int],
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = -1,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Writes an abort marker into one partition, whatever the coordinator says.

        For a transaction that hangs: one that is open in a partition and that no coordinator
        knows. For any other, `fence_producers` is the way.
        """
        where = TopicPartition(*partition)

        async def ask(
            leader: int, part: list[TopicPartition]
        ) -> dict[TopicPartition, BrokerError | None]:
            topic = wire.WritableTxnMarkerTopic(
                name=where.topic, partition_indexes=[where.partition]
            )
            marker = wire.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=[topic],
                coordinator_epoch=max(0, coordinator_epoch),
            )
            request = wire.WriteTxnMarkersRequest(markers=[marker])
            answer = await self._calls.ask(request, wire.WriteTxnMarkersResponse, leader)
            return {
                TopicPartition(t.name, p.partition_index): outcome(
                    p.error_code, None, None, str(where)
                )
                for m in answer.markers
                for t in m.topics
                for p in t.partitions
            }

        await self._calls.at_leaders([where], ask, timeout_ms, "aborting a transaction")


def _read(
    said: wire.DescribeTransactionsResponseTransactionState, node: int
) -> TransactionDescription:
    start = said.transaction_start_time_ms
    return TransactionDescription(
        said.transactional_id,
        said.transaction_state,
        said.producer_id,
        said.producer_epoch,
        said.transaction_timeout_ms,
        start if start >= 0 else None,
        tuple(sorted(TopicPartition(t.topic, p) for t in said.topics for p in t.partitions)),
        node,
    )
