"""What a partition of a test's broker holds, read as a consumer reads it."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from scriba.broker.partitions.partition import Partition
from scriba.client.consuming.completed_fetch import CompletedFetch, DecodeSettings
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.model import TopicPartition
from scriba.storage.results import Slice
from scriba.storage.segments.not_resident import settled
from scriba.testing.model import Record
from scriba.wire.messages.fetch import AbortedTransaction

READ_BYTES: Final = 1 << 20
AS_BYTES: Final = DecodeSettings(to_key=None, to_value=None, check_crcs=True, skip_errors=False)


async def read_records(partition: Partition, uncommitted: bool) -> AsyncGenerator[Record, None]:
    """What a consumer of the partition sees from its start, control records left out."""
    store = partition.log
    offset = store.start_offset
    bound = partition.readable(not uncommitted).value
    where = TopicPartition(partition.topic, partition.index)
    while offset < bound:
        found = await settled(partial(store.read, offset, READ_BYTES, bound))
        if not isinstance(found, Slice):
            return
        data = memoryview(bytearray(found.size))
        found.file.pread_into(data, found.position)
        aborted = None
        if not uncommitted:
            aborted = [
                AbortedTransaction(producer_id=gone.producer_id, first_offset=gone.first_offset)
                for gone in store.aborted_transactions(offset, bound, found)
            ]
        chunk = CompletedFetch(where, data, offset, 0, AS_BYTES, aborted)
        while records := chunk.take(READ_BYTES):
            for record in records:
                yield _plain(record)
        offset = chunk.end_offset


def _plain(record: ConsumerRecord[Any, Any]) -> Record:
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
    )
