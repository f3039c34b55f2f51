"""The records of one partition as one answer brought them, decoded batch by batch when wanted.

A batch becomes `ConsumerRecord`s by one call of `native`'s `present_records`; whoever takes them
one by one goes through `rest` without a call of Python, and where that has got to is worked out
when somebody asks. What no application may see is left out here: records before the offset asked
for, control records, and, for `read_committed`, those of aborted transactions.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop
from itertools import islice
from operator import length_hint
from typing import Any

from scriba.client.consuming.record import ConsumerRecord
from scriba.client.errors import DecodeError
from scriba.client.model import TimestampType, TopicPartition
from scriba.client.serializers import Deserializer
from scriba.errors import KafkaError, ParseError
from scriba.native import implementation
from scriba.records.batch import (
    BatchHeader,
    ControlType,
    check_crc,
    control_type,
    decode_records,
    records_bytes,
    walk,
)
from scriba.records.compression import MAX_DECOMPRESSED_BYTES
from scriba.wire.messages.fetch import AbortedTransaction

log = logging.getLogger(__name__)


class DecodeSettings:
    """How a consumer reads, the same for all its completed fetches."""

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


class GivenBack:
    """Records of one partition that the application took and gave back; they come first again."""

    __slots__ = ("_records", "end_epoch", "end_offset", "rest")

    def __init__(
        self, records: list[ConsumerRecord[Any, Any]], end_offset: int, end_epoch: int
    ) -> None:
        self._records = records
        self.rest: Iterator[ConsumerRecord[Any, Any]] = iter(records)
        """Those that have not been taken again."""
        self.end_offset = end_offset
        """Where reading went on after them, and the epoch that was seen there."""
        self.end_epoch = end_epoch

    @property
    def used_up(self) -> bool:
        return not length_hint(self.rest)

    @property
    def next_offset(self) -> int:
        """Where to go on reading, after what has been taken."""
        left = length_hint(self.rest)
        return self._records[-left].offset if left else self.end_offset

    @property
    def seen_epoch(self) -> int:
        """Of the leader that wrote the last record that was taken; -1 when none was."""
        taken = len(self._records) - length_hint(self.rest)
        return self._records[taken - 1].leader_epoch if taken else -1

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        return list(islice(self.rest, most))


class CompletedFetch:
    """`aborted` are the aborted transactions in it, None when they are not left out."""

    __slots__ = (
        "_aborted",
        "_aborting",
        "_batches",
        "_data",
        "_end",
        "_epoch",
        "_failure",
        "_reading",
        "_ready",
        "_start",
        "end_epoch",
        "end_offset",
        "generation",
        "rest",
        "where",
    )

    def __init__(
        self,
        where: TopicPartition,
        data: memoryview,
        offset: int,
        generation: int,
        reading: DecodeSettings,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> None:
        self.where = where
        self.generation = generation
        """Which of the consumer's positions in the partition it belongs to."""
        self.rest: Iterator[ConsumerRecord[Any, Any]] = iter(())
        """Those of `_ready` that have not been taken; whoever takes one takes it from here."""
        self.end_offset = offset
        """Where to go on reading, after all of it."""
        self.end_epoch = -1
        """Of the leader that wrote the last batch in it."""
        self._data = data
        self._reading = reading
        self._batches: deque[tuple[int, BatchHeader]] = deque()
        self._end = offset
        self._ready: list[ConsumerRecord[Any, Any]] = []
        """What the batch at hand has for the application."""
        self._start = offset
        """Where to go on reading when none of them has been taken."""
        self._epoch = -1
        """Of the leader that wrote what was taken before them; -1 for none."""
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
        start = self._start
        try:
            for position, header in walk(self._data):
                if header.last_offset >= start:
                    self._batches.append((position, header))
                    self.end_offset = header.next_offset
                    self.end_epoch = header.leader_epoch
        except ParseError as damage:
            if not self._batches:
                self._damaged(start, start + 1, damage)

    @property
    def used_up(self) -> bool:
        """Whether nothing is left of it; what is left may still turn out to be of no interest."""
        return not (self._batches or length_hint(self.rest)) and self._failure is None

    @property
    def next_offset(self) -> int:
        """Where to go on reading, after what has been taken."""
        left = length_hint(self.rest)
        if not left and not self._batches and self._failure is None:
            return self.end_offset
        taken = len(self._ready) - left
        return self._ready[taken - 1].offset + 1 if taken else self._start

    @property
    def seen_epoch(self) -> int:
        """Of the leader that wrote the last record that was taken; -1 when none was."""
        taken = len(self._ready) - length_hint(self.rest)
        return self._ready[taken - 1].leader_epoch if taken else self._epoch

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Up to `most` records, fewer at the end of a batch; none when all are used up.

        DecodeError when the next record cannot be read.
        """
        taken = list(islice(self.rest, most))
        if not taken and self.fill():
            taken = list(islice(self.rest, most))
        return taken

    def fill(self) -> bool:
        """Decodes the next batch that has a record for the application, when the last is taken."""
        if self._failure is not None:
            raise self._failure.anew()
        self._epoch = self.seen_epoch
        self._start = max(self.next_offset, self._end)
        self._ready = []
        while self._batches:
            position, header = self._batches.popleft()
            if self._decode(position, header):
                return True
            if self._failure is not None:
                raise self._failure.anew()
            self._start = header.next_offset
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
        kind = TimestampType.CREATE_TIME
        if header.log_append_time:
            kind = TimestampType.LOG_APPEND_TIME
        try:
            records: list[ConsumerRecord[Any, Any]] = implementation.chosen.present_records(
                records_bytes(batch, header, MAX_DECOMPRESSED_BYTES),
                header.count,
                header.base_offset,
                header.base_timestamp,
                header.max_timestamp if header.log_append_time else None,
                self._start,
                ConsumerRecord,
                *self.where,
                kind,
                header.leader_epoch,
            )
        except (ParseError, KafkaError) as damage:
            raise self._damaged(header.base_offset, header.next_offset, damage) from damage
        self._ready = self._deserialized(records)
        self.rest = iter(self._ready)
        if self._failure is None:
            # What compaction left out behind the last record need not be asked for again.
            self._end = header.next_offset
        return bool(self._ready)

    def _deserialized(
        self, records: list[ConsumerRecord[Any, Any]]
    ) -> list[ConsumerRecord[Any, Any]]:
        """The records before the first that a deserializer refuses; or all but those."""
        to_key, to_value = self._reading.to_key, self._reading.to_value
        if to_key is None and to_value is None:
            return records
        good: list[ConsumerRecord[Any, Any]] = []
        for record in records:
            try:
                if to_key is not None and record.key is not None:
                    record.key = to_key(record.key)
                if to_value is not None and record.value is not None:
                    record.value = to_value(record.value)
            except Exception as refusal:
                at, why = record.offset, f"a deserializer refused it: {refusal!r}"
                error = DecodeError(record.topic, record.partition, at, at + 1, why)
                error.__cause__ = refusal
                if not self._reading.skip_errors:
                    self._failure = error
                    break
                log.warning("left out: %s", error)
            else:
                good.append(record)
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
