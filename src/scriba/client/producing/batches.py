"""A batch on its way to a broker, and the fate of each record in it.

One object stands for the fate of all records of a batch; a record's `Delivery` is that batch and
an index, and costs no future of its own until somebody waits for it. Records can move to another
batch before they are sent (a batch that was too large is split; a topic's metadata comes later
than its first records): then the old batch only knows where each of them went.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from scriba.client.model import RecordMetadata, TopicPartition
from scriba.errors import ErrorCode
from scriba.native import implementation
from scriba.native.intake import Ticket
from scriba.peers.errors import BrokerError, ClientError
from scriba.records.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Builder,
    Record,
    assemble,
    build_batch,
    decode_records,
    read_header,
)
from scriba.records.compression import Codec

if not TYPE_CHECKING:
    Ticket = implementation.chosen.Ticket

Watcher = Callable[[], object]


class Batch:
    """Records of one partition that are sent, and succeed or fail, together."""

    __slots__ = (
        "_count",
        "_size",
        "_watchers",
        "append_time",
        "attempts",
        "base_offset",
        "builder",
        "closed",
        "created",
        "data",
        "error",
        "finished",
        "home",
        "moved",
        "ordinal",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "sequence",
        "uncertain",
        "where",
    )

    def __init__(
        self,
        where: TopicPartition,
        ordinal: tuple[int, ...],
        created: int,
        home: Any = None,
        *,
        expected: int = 0,
        parking: bool = False,
    ) -> None:
        self.where = where
        self.ordinal = ordinal
        """Its place in the order of the partition's batches; parts of one come in its place."""
        self.created = created
        self.home = home
        """Whoever can wait for it in another thread."""
        self.builder = None if parking else implementation.chosen.Builder(HEADER_SIZE, expected)
        """Takes the records; None for one that only stands for them, and once it is encoded."""
        self._count = 0
        self._size = HEADER_SIZE
        self.closed = parking
        """Whether it takes no more records."""
        self.data: bytearray | None = None
        """The batch as it is sent, once it is encoded."""
        self.attempts = 0
        self.uncertain = False
        """Whether a broker may have written it though it did not say so."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.sequence = NO_SEQUENCE
        self.finished = False
        self.error: ClientError | None = None
        self.record_errors: dict[int, str | None] = {}
        self.base_offset = -1
        self.append_time = -1
        self.moved: list[tuple[Batch, int]] | None = None
        """Where each of its records is now, when it was split or found its topic."""
        self._watchers: list[tuple[int, Watcher]] = []

    @property
    def count(self) -> int:
        return self._count if self.builder is None else self.builder.count

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return self._size if self.builder is None else self.builder.size

    def add(self, record: Record) -> int:
        """Takes a record in; its index."""
        assert self.builder is not None
        index = self.builder.count
        self.builder.append(record.timestamp, record.key, record.value, record.headers)
        return index

    def park(self, size: int) -> int:
        """Stands for one record more, of about this size; its index."""
        index = self._count
        self._count = index + 1
        self._size += size
        return index

    def unpark(self, size: int) -> None:
        """A record that it stands for has found memory elsewhere."""
        self._size -= size

    @property
    def charge(self) -> int:
        """Bytes it holds of the producer's buffer."""
        return self.size - HEADER_SIZE

    @property
    def numbered(self) -> bool:
        return self.sequence != NO_SEQUENCE

    def take_builder(self) -> Builder:
        """The builder, of which only the figures are kept."""
        builder = self.builder
        assert builder is not None
        self._count, self._size = builder.count, builder.size
        self.builder = None
        return builder

    def build(
        self, builder: Builder, codec: Codec, level: int | None, transactional: bool = False
    ) -> bytearray:
        """The bytes that are sent: `data` from then on. Changes nothing, for it may run beside the
        event loop."""
        return build_batch(
            builder,
            codec=codec,
            level=level,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )

    def number(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Gives it its place in the producer's sequence, a second time after a restart of it."""
        self.producer_id, self.producer_epoch, self.sequence = producer_id, epoch, sequence
        if self.data is not None:
            header = read_header(self.data)._replace(
                producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            self.data = assemble(header, memoryview(self.data)[HEADER_SIZE:])

    def records(self) -> list[Record]:
        """What is in it, once it is encoded."""
        assert self.data is not None
        return decode_records(self.data)

    # -- fate ------------------------------------------------------------------------------------

    def succeed(self, base_offset: int, append_time: int) -> None:
        self.base_offset = base_offset
        self.append_time = append_time
        self._finish()

    def fail(self, error: ClientError, record_errors: dict[int, str | None] | None = None) -> None:
        self.error = error
        if record_errors:
            self.record_errors = record_errors
        self._finish()

    def _finish(self) -> None:
        assert not self.finished
        assert self.moved is None
        self.finished = True
        self.data = None
        if self.builder is not None:
            self.take_builder()
        watchers, self._watchers = self._watchers, []
        for _, tell in watchers:
            tell()

    def move(self, places: "list[tuple[Batch, int]]") -> None:
        """Its records now live elsewhere, each in another batch at an index."""
        assert len(places) == self.count
        self.moved = places
        self.data = None
        watchers, self._watchers = self._watchers, []
        for index, tell in watchers:
            batch, at = places[index]
            batch.watch(at, tell)

    def place(self, index: int) -> "tuple[Batch, int]":
        """Where the record at `index` is now."""
        batch = self
        while batch.moved is not None:
            batch, index = batch.moved[index]
        return batch, index

    def watch(self, index: int, tell: Watcher) -> None:
        batch, index = self.place(index)
        if batch.finished:
            tell()
        else:
            batch._watchers.append((index, tell))


class RecordOutcome(Ticket):
    """What becomes of one record; how to wait for it is for others to say."""

    __slots__ = ()

    batch: Batch

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self.batch = batch
        self.index = index
        self.timestamp = timestamp

    def done(self) -> bool:
        return self.batch.place(self.index)[0].finished

    def _error(self) -> ClientError | None:
        batch, index = self.batch.place(self.index)
        if not batch.finished:
            raise asyncio.InvalidStateError("the record is still on its way")
        if batch.error is None or not batch.record_errors:
            return batch.error
        message = batch.record_errors.get(index, "another record of its batch was refused")
        return BrokerError(ErrorCode.INVALID_RECORD, message, about=str(batch.where))

    def _metadata(self) -> RecordMetadata:
        error = self._error()
        if error is not None:
            raise error.anew()
        batch, index = self.batch.place(self.index)
        topic, partition = batch.where
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self.timestamp
        return RecordMetadata(topic, partition, offset, timestamp)

    async def written(self) -> RecordMetadata:
        """Waits for it, on the event loop."""
        if not self.done():
            await _told(self.batch, self.index)
        return self._metadata()


class Delivery(RecordOutcome):
    """The fate of one record: awaiting it gives where it was written, or raises why it was not."""

    __slots__ = ()

    def exception(self) -> ClientError | None:
        """Why it failed; None when it did not. InvalidStateError before it is done."""
        return self._error()

    def result(self) -> RecordMetadata:
        return self._metadata()

    def add_done_callback(self, call: "Callable[[Delivery], Any]") -> None:
        """Calls it from the event loop when the record is done, soon if it is already."""
        loop = asyncio.get_running_loop()
        self.batch.watch(self.index, lambda: loop.call_soon(call, self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            yield from _told(self.batch, self.index)
        return self.result()


def _told(batch: Batch, index: int) -> "asyncio.Future[None]":
    """A future that is done with the record."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    batch.watch(index, tell)
    return future


async def settled(batch: Batch) -> None:
    """Waits until the fate of every record is known that is, or was, in this batch."""
    rest = [batch]
    while rest:
        if not rest[-1].finished and rest[-1].moved is None:
            await _told(rest[-1], 0)
        last = rest.pop()
        if last.moved is not None:
            rest += dict.fromkeys(place for place, _ in last.moved)
