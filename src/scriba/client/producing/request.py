"""The Produce request for a few batches, which answer belongs to which, and what codes mean."""

from collections.abc import Mapping
from typing import Final, cast

from scriba.client.cluster import Topic
from scriba.client.producing.accumulator import Queue
from scriba.client.producing.batches import Batch
from scriba.client.transactions.machine import Transactions
from scriba.errors import ErrorCode
from scriba.peers.connection import Connection, Payload
from scriba.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from scriba.wire.schema import Records
from scriba.wire.uuids import ZERO

_BY_TOPIC_ID: Final = 13
_EXPLICIT: Final = 11
"""The newest version in which the leader does not tell the coordinator of its partition."""

Awaited = dict[tuple[str | bytes, int], tuple[Queue, Batch]]
"""Batches by the topic's name or id, as the answer will have it, and the partition."""


OUT_OF_STEP: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""Answers that tell that the broker and this producer count differently."""

WRITTEN_PERHAPS: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Answers that leave open whether the batch is in the log."""

WRONG_PICTURE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""Answers that tell that somebody else leads the partition by now."""

IN_VAIN: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Answers of a leader without followers; they may have another leader, which it has not heard."""


def produce_request(
    connection: Connection,
    topics: Mapping[str, Topic],
    taken: list[tuple[Queue, Batch]],
    transactions: Transactions | None,
) -> tuple[int, ProduceRequest, Awaited]:
    """The version, the request, and whose answer is whose in it."""
    ids = {queue.where.topic: topics[queue.where.topic].id for queue, _ in taken}
    newest = _BY_TOPIC_ID if ZERO not in ids.values() else _BY_TOPIC_ID - 1
    if transactions is not None and not transactions.implicit:
        newest = _EXPLICIT
    version = connection.version(ProduceRequest, newest)
    data = {name: TopicProduceData(name=name, topic_id=ids[name]) for name in ids}
    awaited: Awaited = {}
    for queue, batch in taken:
        name, index = queue.where
        assert batch.data is not None
        records = cast(Records, Payload(batch.data))
        data[name].partition_data.append(PartitionProduceData(index=index, records=records))
        awaited[ids[name] if version >= _BY_TOPIC_ID else name, index] = (queue, batch)
    request = ProduceRequest(
        transactional_id=None if transactions is None else transactions.transactional_id,
        topic_data=list(data.values()),
    )
    return version, request, awaited
