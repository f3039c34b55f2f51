"""The records of one partition as one answer brought them, decoded batch by batch when wanted.

Per-record work is in two places only: `records.batch.decode_records`, and the one comprehension
that makes a batch's `ConsumerRecord`s. What no application may see is left out here: records before
the offset asked for, control records, and, for `read_committed`, those of aborted transactions.
"""

import logging
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop
from typing import Any

from scriba.client.errors import DecodeError
from scriba.client.model import ConsumerRecord, TimestampType, TopicPartition
from scriba.client.serializers import Deserializer
from scriba.errors import KafkaError, ParseError
from scriba.records.batch import (
    BatchHeader,
    ControlType,
    Record,
    check_crc,
    control_type,
    decode_records,
    walk,
)
from scriba.wire.fetch import AbortedTransaction

log = logging.getLogger(__name__)


class Reading:
    """How a consumer reads, the same for all its chunks."""

    __slots__ = ("check_crcs", "skip_errors", "to_key", "to_value")

    def __init__(
        self,
        to_key: Deserializer | None,
        to_value: Deserializer | None,
        check_crcs: bool,
        skip_errors: bool,
    ) -> None:
        self.to_key = to_key
        self.to_value = to_value
        self.check_crcs = check_crcs
        self.skip_errors = skip_errors

    def key(self, data: bytes | None) -> Any:
        return data if data is None or self.to_key is None else self.to_key(data)

    def value(self, data: bytes | None) -> Any:
        return data if data is None or self.to_value is None else self.to_value(data)


class Chunk:
    """`aborted` are the aborted transactions in it, None when they are not left out."""

    __slots__ = (
        "_aborted",
        "_aborting",
        "_at",
        "_batches",
        "_data",
        "_end",
        "_failure",
        "_reading",
        "_ready",
        "end_epoch",
        "end_offset",
        "generation",
        "next_offset",
        "where",
    )

    def __init__(
        self,
        where: TopicPartition,
        data: memoryview,
        offset: int,
        generation: int,
        reading: Reading,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> None:
        self.where = where
        self.generation = generation
        """Which of the consumer's positions in the partition it belongs to."""
        self.next_offset = offset
        """Where to go on reading, after what has been taken."""
        self.end_offset = offset
        """Where to go on reading, after all of it."""
        self.end_epoch = -1
        """Of the leader that wrote the last batch in it."""
        self._data = data
        self._reading = reading
        self._batches: deque[tuple[int, BatchHeader]] = deque()
        self._end = offset
        self._ready: list[ConsumerRecord[Any, Any]] = []
        self._at = 0
        self._failure: DecodeError | None = None
        self._aborting = (
            None if aborted is None else [(a.first_offset, a.producer_id) for a in aborted]
        )
        if self._aborting:
            heapify(self._aborting)
        self._aborted: set[int] = set()
        self._survey()

    def _survey(self) -> None:
        """Finds the batches; what cannot be one is reported when reading gets there."""
        try:
            for position, header in walk(self._data):
                if header.last_offset >= self.next_offset:
                    self._batches.append((position, header))
                    self.end_offset = header.next_offset
                    self.end_epoch = header.leader_epoch
        except ParseError as damage:
            if not self._batches:
                self._damaged(self.next_offset, self.next_offset + 1, damage)

    @property
    def used_up(self) -> bool:
        """Whether nothing is left of it; what is left may still turn out to be of no interest."""
        return self._at == len(self._ready) and not self._batches and self._failure is None

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Up to `most` records, fewer at the end of a batch; none when the chunk is used up.

        DecodeError when the next record cannot be read.
        """
        if self._at == len(self._ready) and not self._fill():
            return []
        start = self._at
        self._at = min(start + most, len(self._ready))
        taken = self._ready[start : self._at]
        self.next_offset = taken[-1].offset + 1
        return taken

    def take_one(self) -> ConsumerRecord[Any, Any] | None:
        if self._at == len(self._ready) and not self._fill():
            return None
        record = self._ready[self._at]
        self._at += 1
        self.next_offset = record.offset + 1
        return record

    def _fill(self) -> bool:
        """Decodes the next batch that has a record for the application."""
        if self._failure is not None:
            raise self._failure
        self._ready = []
        self._at = 0
        self.next_offset = max(self.next_offset, self._end)
        while self._batches:
            position, header = self._batches.popleft()
            if self._decode(position, header):
                return True
            if self._failure is not None:
                raise self._failure
            self.next_offset = header.next_offset
        return False

    def _decode(self, position: int, header: BatchHeader) -> bool:
        """Fills `_ready` from one batch; whether it has anything."""
        batch = self._data[position : position + header.size]
        if self._reading.check_crcs and not check_crc(batch, 0, header):
            raise self._damaged(header.base_offset, header.next_offset, "its checksum is wrong")
        if header.is_control:
            self._note_control(batch, header)
            return False
        if self._aborting is not None and self._is_aborted(header):
            return False
        try:
            records = decode_records(batch)
        except (ParseError, KafkaError) as damage:
            raise self._damaged(header.base_offset, header.next_offset, damage) from damage
        if records and records[0].offset < self.next_offset:
            records = [record for record in records if record.offset >= self.next_offset]
        self._ready = self._present(records, header)
        if self._failure is None:
            # What compaction left out behind the last record need not be asked for again.
            self._end = header.next_offset
        return bool(self._ready)

    def _present(
        self, records: list[Record], header: BatchHeader
    ) -> list[ConsumerRecord[Any, Any]]:
        topic, partition = self.where
        epoch = header.leader_epoch
        kind = (
            TimestampType.LOG_APPEND_TIME if header.log_append_time else TimestampType.CREATE_TIME
        )
        reading = self._reading
        if reading.to_key is None and reading.to_value is None:
            return [
                ConsumerRecord(topic, partition, offset, time, kind, key, value, headers, epoch)
                for offset, time, key, value, headers in records
            ]
        to_key, to_value = reading.key, reading.value
        try:
            return [
                ConsumerRecord(
                    topic,
                    partition,
                    offset,
                    time,
                    kind,
                    to_key(key),
                    to_value(value),
                    headers,
                    epoch,
                )
                for offset, time, key, value, headers in records
            ]
        except Exception:
            return self._present_one_by_one(records, kind, epoch)

    def _present_one_by_one(
        self, records: list[Record], kind: TimestampType, epoch: int
    ) -> list[ConsumerRecord[Any, Any]]:
        """The records before the first that a deserializer refuses; or all but those."""
        topic, partition = self.where
        reading = self._reading
        good: list[ConsumerRecord[Any, Any]] = []
        for offset, time, key, value, headers in records:
            try:
                good.append(
                    ConsumerRecord(
                        topic,
                        partition,
                        offset,
                        time,
                        kind,
                        reading.key(key),
                        reading.value(value),
                        headers,
                        epoch,
                    )
                )
            except Exception as refusal:
                error = DecodeError(
                    topic, partition, offset, offset + 1, f"a deserializer refused it: {refusal!r}"
                )
                error.__cause__ = refusal
                if not reading.skip_errors:
                    self._failure = error
                    break
                log.warning("left out: %s", error)
        return good

    # -- transactions ----------------------------------------------------------------------------

    def _is_aborted(self, header: BatchHeader) -> bool:
        aborting = self._aborting
        while aborting and aborting[0][0] <= header.last_offset:
            self._aborted.add(heappop(aborting)[1])
        return header.is_transactional and header.producer_id in self._aborted

    def _note_control(self, batch: memoryview, header: BatchHeader) -> None:
        """An abort marker ends its transaction: what the producer writes then is another one."""
        if self._aborting is None or not header.is_transactional:
            return
        try:
            records = decode_records(batch)
            if records and control_type(records[0].key) is ControlType.ABORT:
                self._is_aborted(header)
                self._aborted.discard(header.producer_id)
        except (ParseError, KafkaError) as damage:
            raise self._damaged(header.base_offset, header.next_offset, damage) from damage

    def _damaged(self, offset: int, next_offset: int, why: object) -> DecodeError:
        self._failure = DecodeError(*self.where, offset, next_offset, str(why))
        return self._failure
