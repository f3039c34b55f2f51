"""Batches of the metadata log: made a record at a time, and read back from its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.errors import ParseError
from scriba.records.batch import (
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    assemble,
    check_crc,
    decode_records,
    walk,
    write_varint,
)
from scriba.runtime.loop.pace import next_turn
from scriba.storage.log import Log, Slice
from scriba.storage.segments.not_resident import NotResident
from scriba.wire.messages.stored import decode_metadata_record
from scriba.wire.schema import Message

READ_BYTES: Final = 1 << 20

DECODED_AT_ONCE: Final = 256
"""Records decoded in one turn of the loop."""


class Batch(NamedTuple):
    """A batch of the log, decoded. `facts` is set by control batches, which have no records.

    One with a record that cannot be read has none either, and says why in `unreadable`: what the
    quorum agreed on stands in the log whether or not this release understands it.
    """

    base_offset: int
    end_offset: int
    epoch: int
    size: int
    timestamp: int
    records: Sequence[Message]
    facts: QuorumFacts | None = None
    unreadable: str = ""


class BatchBuilder:
    """A batch of metadata records, made a record at a time so that long ones can be made slowly."""

    def __init__(self) -> None:
        self.count = 0
        self._body = bytearray()

    @property
    def size(self) -> int:
        return len(self._body)

    def add(self, value: bytes) -> None:
        record = bytearray(2)  # attributes, and no difference to the batch's timestamp
        write_varint(record, self.count)
        record.append(1)  # no key
        write_varint(record, len(value))
        record += value
        record.append(0)  # no headers
        write_varint(self._body, len(record))
        self._body += record
        self.count += 1

    def build(self, timestamp: int) -> bytearray:
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=self.count - 1,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            count=self.count,
        )
        return assemble(header, self._body)


async def read_batches(
    store: Log, offset: int, facts: QuorumFacts, end_offset: int | None = None
) -> list[Batch]:
    """The log from `offset` to its end, or to `end_offset`, decoded.

    `facts` are those of the quorum up to there. ParseError where a batch is damaged.
    """
    batches: list[Batch] = []
    bound = store.end_offset if end_offset is None else end_offset
    while offset < bound:
        part, facts = await read_part(store, offset, facts, bound)
        batches += part
        offset = batches[-1].end_offset
    return batches


async def read_part(
    store: Log, offset: int, facts: QuorumFacts, bound: int
) -> tuple[list[Batch], QuorumFacts]:
    """As much of the log from `offset` on, and below `bound`, as one read takes; what it says of
    the quorum. Others have their turn of the loop while many records are decoded."""
    part = store.read(offset, READ_BYTES, bound)
    while isinstance(part, NotResident):
        await part.file.load(part.position, part.size)
        part = store.read(offset, READ_BYTES, bound)
    if not isinstance(part, Slice):
        raise ParseError(f"{store.directory}: nothing at offset {offset}")
    data = bytearray(part.size)
    part.file.pread_into(memoryview(data), part.position)
    batches: list[Batch] = []
    decoded = 0
    for at, header in walk(data):
        if header.next_offset <= offset:
            continue
        if header.base_offset != offset or not check_crc(data, at, header):
            raise ParseError(f"{part.file.path}: the batch at offset {offset} is damaged")
        if decoded and decoded + header.count > DECODED_AT_ONCE:
            decoded = 0
            await next_turn()
        decoded += header.count
        batch, facts = await _decode(memoryview(data)[at : at + header.size], header, facts)
        batches.append(batch)
        offset = header.next_offset
    if not batches:
        raise ParseError(f"{part.file.path}: no whole batch at offset {offset}")
    return batches, facts


async def _decode(
    data: memoryview, header: BatchHeader, facts: QuorumFacts
) -> tuple[Batch, QuorumFacts]:
    messages: list[Message] = []
    unreadable = ""
    for number, record in enumerate(decode_records(data)):
        if number and number % DECODED_AT_ONCE == 0:
            await next_turn()
        if header.is_control:
            facts = snapshots.learn(facts, record)
            continue
        try:
            messages.append(decode_metadata_record(record.value or b""))
        except ParseError as error:
            unreadable = f"the record at offset {record.offset} cannot be read: {error}"
            messages.clear()
            break
    batch = Batch(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.size,
        header.max_timestamp,
        messages,
        facts if header.is_control and facts.voters else None,
        unreadable,
    )
    return batch, facts
