"""The transactional side of Produce: a batch opens a transaction only where its coordinator agrees.

Only the first batch of a transaction in a partition is asked about; while the transaction is open
there, more of them go the way of any other batch. From version 12 on the partition joins the
transaction by being written to, so asking adds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.broker.request import Context
from scriba.errors import ErrorCode, KafkaError, bare
from scriba.records.header import HEADER_SIZE, BatchHeader, read_header
from scriba.storage.producers.state import Verification
from scriba.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import Producing
    from scriba.broker.partitions.partition import Partition
    from scriba.txn.messages import TopicPartition

FIRST_WITH_ABORTABLE: Final = 11
FIRST_THAT_ADDS: Final = 12

_COORDINATOR_AWAY: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Verified = dict[int, "Verification | KafkaError"]
"""What is known of a request's entries that open a transaction, by the identity of the entry."""


class Open(NamedTuple):
    """The entries of a request whose transaction is not open in their partition; `verified` also
    has those that are refused without asking anybody."""

    producer_id: int
    epoch: int
    entries: dict[int, TopicPartition]
    verified: Verified


def unverified(node: Producing, ctx: Context, request: ProduceRequest) -> Open | None:
    """What the coordinator is to be asked before this request; None where it is not.

    Raises KafkaError where transactional batches of two producers come in one request.
    """
    adds = ctx.version >= FIRST_THAT_ADDS
    if not adds and not node.settings.transaction_partition_verification_enable:
        return None
    entries: dict[int, TopicPartition] = {}
    verified: Verified = {}
    producer: tuple[int, int] | None = None
    now_ms = node.world.clock.wall_ms()
    for topic in request.topic_data:
        name = topic.name if ctx.version < 13 else node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < HEADER_SIZE:
                continue  # the append itself will say what is wrong
            header = read_header(records)
            if not header.is_transactional or header.producer_id < 0:
                continue  # without a producer there is nobody to have a transaction
            partition = node.replicas.get(name, data.index) if name else None
            if partition is None:
                continue
            if producer not in (None, (header.producer_id, header.producer_epoch)):
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                    "transactional batches of more than one producer came in one request",
                )
            producer = header.producer_id, header.producer_epoch
            if partition.leader is None:
                continue
            try:
                pending = partition.log.producers.begin_verification(
                    *producer, header.base_sequence, adds, now_ms
                )
            except KafkaError as error:
                verified[id(data)] = bare(error)
                continue
            if pending is not None:
                verified[id(data)] = pending
                entries[id(data)] = (partition.topic, data.index)
    if producer is None or not verified:
        return None
    return Open(*producer, entries, verified)


async def verify(node: Producing, ctx: Context, tid: str, opening: Open) -> Verified:
    """The entries again, those that the coordinator will not have with the error for the client."""
    adds = ctx.version >= FIRST_THAT_ADDS
    codes = await node.txn_verifier.verify(
        tid,
        opening.producer_id,
        opening.epoch,
        opening.entries.values(),
        adds,
        ctx.version >= FIRST_WITH_ABORTABLE,
    )
    verified = opening.verified
    for entry, where in opening.entries.items():
        code = codes[where]
        if code is not ErrorCode.NONE:
            verified[entry] = _refusal(code, adds)
    return verified


class NotVerified(KafkaError):
    """A transaction that could not be verified, which its code alone does not say."""


def _refusal(code: ErrorCode, adds: bool) -> KafkaError:
    if code in _COORDINATOR_AWAY or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        # A code that every producer answers by trying again.
        return NotVerified(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"cannot verify that the partition is part of the transaction: {code.name}",
        )
    if code is ErrorCode.INVALID_TXN_STATE:
        return NotVerified(code, "the partition was not added to the transaction")
    return KafkaError(code)


def admit(
    node: Producing,
    partition: Partition,
    header: BatchHeader,
    verification: Verification | None,
) -> None:
    """Refuses a transactional batch that belongs to no transaction; right before its append."""
    if node.settings.transaction_partition_verification_enable:
        partition.log.producers.admit(header, verification)
