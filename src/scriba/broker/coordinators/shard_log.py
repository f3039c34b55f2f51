"""A coordinator's records: as batches on their way into its partition's log, and read back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.broker.partitions import cold_reads
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.instant import Instant
from scriba.native import implementation
from scriba.outcome import Change, Machine, Origin, Outcome
from scriba.records.batch import (
    HEADER_SIZE,
    NO_SEQUENCE,
    BatchHeader,
    build_batch,
    check_crc,
    decode_records,
    read_end_txn_marker,
    read_header,
    walk,
)
from scriba.records.compression import Codec
from scriba.storage.log import NotResident, Slice
from scriba.wire.messages.coordinators import decode_change, encode_change

if TYPE_CHECKING:
    from scriba.native.fallback import Builder
    from scriba.runtime.loop.pace import Pace
    from scriba.storage.log import Log

NO_PRODUCER: Final = (-1, -1)
RECORD_OVERHEAD: Final = 32
"""More than what a record's lengths, deltas and share of the batch header take."""
BETWEEN_LOOKS: Final = 64
"""Records replayed before the clock is looked at again."""


class Batch(NamedTuple):
    view: memoryview
    header: BatchHeader
    changes: list[Change]


def batches(topic: str, outcome: Outcome, now: Instant, codec: Codec, limit: int) -> list[Batch]:
    """The records of an outcome, ready to be appended; all of them are encoded before any is.

    Raises KafkaError for what the topic can never take. One batch unless they may be parted.
    """
    packing = Packing(topic, outcome, now, codec, limit)
    for change in outcome.records:
        packing.add(change)
    return packing.done()


class Packing:
    """The records of an outcome on their way into batches."""

    def __init__(
        self, topic: str, outcome: Outcome, now: Instant, codec: Codec, limit: int
    ) -> None:
        self._topic = topic
        self._producer = outcome.producer
        self._parted = outcome.splittable
        self._now_ms = now.wall_ms
        self._codec = codec
        self._limit = limit
        self._built: list[Batch] = []
        self._records = implementation.chosen.Builder(HEADER_SIZE)
        self._changes: list[Change] = []
        self._size = HEADER_SIZE

    def add(self, change: Change) -> None:
        try:
            key, value = encode_change(self._topic, change)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if self._parted:
            added = len(key) + (len(value) if value else 0) + RECORD_OVERHEAD
            if self._changes and self._size + added > self._limit:
                self._close()
        self._changes.append(change)
        self._size = self._records.append(self._now_ms, key, value, ())

    def done(self) -> list[Batch]:
        if self._changes:
            self._close()
        return self._built

    def _close(self) -> None:
        self._built.append(
            _batch(
                self._topic, self._records, self._changes, self._producer, self._codec, self._limit
            )
        )
        self._changes = []


def _batch(
    topic: str,
    records: Builder,
    changes: list[Change],
    producer: tuple[int, int] | None,
    codec: Codec,
    limit: int,
) -> Batch:
    producer_id, producer_epoch = producer or NO_PRODUCER
    batch = build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE if producer is None else 0,
        transactional=producer is not None,
    )
    if len(batch) > limit:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{len(changes)} records of {topic} take {len(batch)} bytes, {limit} are allowed",
        )
    return Batch(memoryview(batch), read_header(batch), changes)


async def read_back(
    store: Callable[[], Log], machine: Machine, chunk_bytes: int, pace: Pace
) -> None:
    """Replays a whole log into a machine, a chunk at a time, giving way between.

    `store` gives the log: a replica that moves to another directory has another one meanwhile.

    Records that are appended meanwhile are replayed, too: when this returns, without an await
    after the last look, the machine knows everything up to the log's end.
    """
    offset = store().start_offset
    while offset < (log := store()).end_offset:
        offset = max(offset, log.start_offset)  # which may have moved
        found = await _chunk(log, offset, chunk_bytes)
        if found is None:
            return  # compaction left nothing up to the end
        chunk, path, start = found
        begun = offset
        for position, header in walk(chunk):
            if header.next_offset > offset:
                where = f"the batch at offset {header.base_offset} ({path}, {start + position})"
                if not check_crc(chunk, position, header):
                    raise ParseError(f"{where} is damaged")
                batch = chunk[position : position + header.size]
                try:
                    await _replay(log.topic, machine, batch, header, pace)
                except ParseError as error:
                    raise ParseError(f"{where} cannot be read: {error}") from error
                offset = header.next_offset
                await pace()
        if offset == begun:
            raise ParseError(f"{log!r} holds no whole batch at {offset}")


async def _chunk(log: Log, offset: int, chunk_bytes: int) -> tuple[memoryview, str, int] | None:
    """Whole batches from the one with `offset` on, and perhaps a part of one.

    With the file and the position that they were read from.
    """
    loaded = False
    while True:
        found = log.read(offset, chunk_bytes, log.end_offset)
        if isinstance(found, NotResident):
            await cold_reads.load(log, found)
        elif not isinstance(found, Slice):
            return None
        elif loaded or found.file.resident(found.position, found.size):
            view = memoryview(bytearray(found.size))
            try:
                got = found.file.pread_into(view, found.position)
            except OSError as error:
                raise cold_reads.unreadable(log, error) from error
            return view[:got], found.file.path, found.position
        else:
            # Then it is looked up again: the segment may have been swapped meanwhile.
            with suppress(OSError):
                await found.file.load(found.position, found.size)
            loaded = True


async def _replay(
    topic: str, machine: Machine, batch: memoryview, header: BatchHeader, pace: Pace
) -> None:
    if header.is_control:
        marker = read_end_txn_marker(batch)
        if marker is not None:
            for _ in machine.replay_marker(
                header.producer_id, header.producer_epoch, marker.commit
            ):
                await pace()
        return
    producer = (
        (header.producer_id, header.producer_epoch) if header.is_transactional else NO_PRODUCER
    )
    for count, record in enumerate(decode_records(batch), 1):
        if record.key is not None:
            change = decode_change(topic, record.key, record.value)
            if change is not None:
                machine.replay(*change, Origin(record.offset, record.timestamp, *producer))
        if count % BETWEEN_LOOKS == 0:
            await pace()
