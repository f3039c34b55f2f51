"""The Produce request for a few batches, and which answer in it belongs to which."""

from collections.abc import Mapping
from typing import Final, cast

from scriba.client.accumulator import Queue
from scriba.client.batches import Batch
from scriba.client.cluster import Topic
from scriba.client.connection import Connection, Payload
from scriba.client.transactions import Transactions
from scriba.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from scriba.wire.schema import Records
from scriba.wire.uuids import ZERO

_BY_TOPIC_ID: Final = 13
_EXPLICIT: Final = 11
"""The newest version in which the leader does not tell the coordinator of its partition."""

Awaited = dict[tuple[str | bytes, int], tuple[Queue, Batch]]
"""Batches by the topic's name or id, as the answer will have it, and the partition."""


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
