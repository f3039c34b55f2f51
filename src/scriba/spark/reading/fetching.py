"""Reads ranges of partitions into Arrow batches, inside a task of Spark or for a small batch in
the planner.

One Fetch is under way while the records of the one before are decoded: where the next one begins
follows from the batch headers alone. The first Fetch of the ranges that come next is under way as
well, so that many short ranges do not cost a round trip each. Per-record work is in `native`'s
`Columns`, which writes buffers that Arrow takes as they are; only rows with headers become objects
on the way.

Offsets are not dense: compaction and the markers of transactions leave gaps, so a range ends when
its last offset has been passed, or when the log has no more batches before its end. What must not
be noticed too late: a topic that was recreated (fetched by its id, so the broker tells), and
records that were deleted before they were read.
"""

import asyncio
import contextlib
import gc
import logging
import struct
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scriba.client import BrokerError, ClientError
from scriba.client.cluster import NO_NODE
from scriba.client.model import Isolation, OffsetSpec, TopicPartition
from scriba.client.settings import ConsumerSettings
from scriba.errors import ErrorCode, KafkaError, ParseError, error_code
from scriba.native import implementation
from scriba.native.columns import Column
from scriba.peers.connection import Connection
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
from scriba.spark.link import Link
from scriba.spark.reading.lookup import TopicGone, ask
from scriba.spark.reading.positions import Range
from scriba.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from scriba.wire.uuids import from_text

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

ROWS: Final = 20_000
"""Most rows of one Arrow batch; about what the JVM takes at once without copying twice."""

BYTES: Final = 32 << 20
"""Most bytes of it, but for the last Kafka batch in it."""

RECORD_BYTES: Final = 1 << 10
"""What a record is taken to need at first: a Fetch asks for about what its range holds, not for all
that the log has after it. What comes tells better."""

LEAST_FETCH_BYTES: Final = 64 << 10

RANGES_AHEAD: Final = 16
"""Ranges whose first Fetch is under way before the one that is read, as long as all of them ask
for no more than one long range does."""

_BY_TOPIC_ID: Final = 13
_NO_SESSION: Final = -1
_GONE_OR_RECREATED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_EMPTY_FETCHES: Final = 2
"""Answers without a batch below the end after which there is none; one may be a follower's."""

_BYTES_SLACK: Final = 1.1

_LOOKS: Final = 3
"""Answers without the topic after which it is gone."""


class DataLoss(Exception):
    """Records that the query should read are gone, or cannot be told from others."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}, or set failOnDataLoss=false to go on with what there is")


class FetchedRecords(NamedTuple):
    data: memoryview
    aborted: Sequence[AbortedTransaction]
    offset: int
    """What was asked for: records before it are not wanted."""


class RangeReader:
    """The Fetch requests of one range, one ahead of the reader."""

    def __init__(
        self,
        link: Link,
        settings: ConsumerSettings,
        part: Range,
        strict: bool,
        limit_ms: int | None = None,
    ) -> None:
        self._link = link
        self._cluster = link.cluster
        self._settings = settings
        self._part = part
        self._strict = strict
        committed = settings.isolation_level == "read_committed"
        self._isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        self._limit_ms = limit_ms or settings.default_api_timeout_ms
        self._offset = part.start
        self._record_bytes = float(RECORD_BYTES)
        self._empty_fetches = 0
        self._ahead: asyncio.Future[FetchResponse] | None = None
        self._nearby = NO_NODE
        """A replica that the leader told us to read from (KIP-392)."""
        self._rack = settings.client_rack
        """Told to the leader, until a replica that it named was of no use: a range is short, and
        the rest of it is read from the leader then."""

    def __iter__(self) -> Iterator[FetchedRecords]:
        while (answer := self._link.run(self._next())) is not None:
            yield answer

    @property
    def where(self) -> TopicPartition:
        return self._part.where

    @property
    def fetch_bytes(self) -> int:
        """How much of the partition the next Fetch asks for."""
        most = self._settings.max_partition_fetch_bytes
        rest = int((self._part.end - self._offset) * self._record_bytes)
        return min(most, max(rest, LEAST_FETCH_BYTES))

    async def begin(self) -> None:
        """Asks for the first records, before anybody waits for them. A failure is left to come
        again then."""
        if self._ahead is None and self._part.topic in self._cluster.topics:
            try:
                self._ahead = await self._post(self._offset)
            except ClientError as failure:
                log.debug("%s: not read ahead: %s", self._part.where, failure)

    async def _next(self) -> FetchedRecords | None:
        """The next records; None at the end of the range."""
        limit = self._limit_ms
        what = f"reading {self._part.where}"
        while self._offset < self._part.end:
            try:
                answer = await self._cluster.retry(self._fetch, limit, what)
            except DataLoss as loss:
                if self._strict:
                    raise
                log.warning("%s: the rest is left out: %s", self._part.where, loss)
                return None
            if answer is not None:
                return answer
        return None

    async def _fetch(self) -> FetchedRecords | None:
        """One try. None when there was nothing to take, or the place to read has moved."""
        where, nearby = self._part.where, self._nearby
        try:
            ahead, self._ahead = self._ahead, None
            answer = await (ahead or await self._post(self._offset))
            if answer.error_code:
                raise BrokerError(error_code(answer.error_code), about=str(where))
            said = answer.responses[0].partitions[0]
            if said.error_code:
                raise BrokerError(error_code(said.error_code), about=str(where))
        except ClientError as failure:
            self._cluster.stale()
            if nearby != NO_NODE:
                log.debug("%s: back from broker %d to the leader: %s", where, nearby, failure)
                self._nearby, self._rack = NO_NODE, ""
                return None
            if isinstance(failure, BrokerError) and await self._explained(failure):
                return None
            raise
        if said.preferred_read_replica >= 0:
            if said.preferred_read_replica in self._cluster.nodes:
                self._nearby = said.preferred_read_replica
            else:
                self._rack = ""
            return None
        return await self._advance(said)

    async def _explained(self, refused: BrokerError) -> bool:
        """Whether the leader's refusal led to another place to read from."""
        if refused.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range()
            return True
        if refused.code in _GONE_OR_RECREATED:
            if await self._is_gone_or_recreated():
                raise self._recreated() from refused
            refused.retriable = True  # this broker has not heard of the topic yet
        return False

    async def _advance(self, said: PartitionData) -> FetchedRecords | None:
        """Steps over what came, and asks for what comes next before this is decoded."""
        data, offset, end = said.records, self._offset, self._part.end
        if not isinstance(data, memoryview) or not data:
            data = memoryview(b"")
        following = max((header.next_offset for _, header in walk(data)), default=offset)
        if following <= offset:
            self._empty_fetches += 1
            committed = self._isolation is Isolation.READ_COMMITTED
            bound = said.last_stable_offset if committed else said.high_watermark
            if self._empty_fetches >= _EMPTY_FETCHES and bound >= end:
                self._offset = end  # compaction left nothing up to there
            return None
        self._empty_fetches = 0
        self._record_bytes = _BYTES_SLACK * len(data) / (following - offset)
        self._offset = following
        if following < end:
            try:
                self._ahead = await self._post(following)
            except ClientError as failure:
                log.debug("%s: not read ahead: %s", self._part.where, failure)
        return FetchedRecords(data, said.aborted_transactions or (), offset)

    async def _post(self, offset: int) -> "asyncio.Future[FetchResponse]":
        part, settings, cluster = self._part, self._settings, self._cluster
        if part.topic not in cluster.topics and await self._is_gone_or_recreated():
            raise self._recreated()
        topic = cluster.topics[part.topic]
        leader = topic.partitions.get(part.partition)
        if leader is None or leader.leader < 0:
            cluster.stale()
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=str(part.where))
        node = leader.leader if self._nearby == NO_NODE else self._nearby
        connection: Connection = await cluster.connect(node, "fetch")
        version = connection.version(FetchRequest)
        if version < _BY_TOPIC_ID and await self._is_gone_or_recreated():
            raise self._recreated()
        request = FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=self._isolation,
            session_epoch=_NO_SESSION,
            topics=[
                FetchTopic(
                    topic=part.topic,
                    topic_id=from_text(part.id),
                    partitions=[
                        FetchPartition(
                            partition=part.partition,
                            current_leader_epoch=leader.leader_epoch,
                            fetch_offset=offset,
                            partition_max_bytes=self.fetch_bytes,
                        )
                    ],
                )
            ],
            rack_id=self._rack,
        )
        limit = settings.request_timeout_ms + settings.fetch_max_wait_ms
        return connection.post(request, FetchResponse, version=version, timeout_ms=limit)

    # -- what is not there any more --------------------------------------------------------------

    async def _is_gone_or_recreated(self) -> bool:
        """Whether the topic of this name is another one by now, or there is none.

        A broker that has not heard of the topic yet says the same, so it is asked several times.
        """
        name, cluster = self._part.topic, self._cluster
        cluster.want(name)
        for _ in range(_LOOKS):
            cluster.stale()
            await cluster.next_update()
            known = cluster.topics.get(name)
            if known is not None:
                return known.id != from_text(self._part.id)
        if cluster.errors.get(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=f"topic {name}")

    def _recreated(self) -> DataLoss:
        return DataLoss(
            f"topic {self._part.topic} with the id {self._part.id} was deleted",
            "start with a new checkpoint",
        )

    async def _out_of_range(self) -> None:
        part = self._part
        wanted = {part.where: int(OffsetSpec.EARLIEST)}
        try:
            found = (await ask(self._cluster, wanted, self._isolation, self._limit_ms))[part.where]
        except TopicGone as missing:
            raise self._recreated() from missing
        begins = 0 if found is None else found.offset
        if begins <= self._offset:
            raise DataLoss(
                f"{part.where} ends before offset {self._offset}, which was there when the read "
                "was planned",
                "start with a new checkpoint",
            )
        if self._strict:
            gone = f"{self._offset} to {min(begins, part.end) - 1}"
            raise DataLoss(
                f"records {gone} of {part.where} were deleted before they were read: the log "
                f"begins at {begins}",
                "raise the topic's retention",
            )
        log.warning("%s: read from %d on; before that all is gone", part.where, begins)
        self._offset = min(begins, part.end)


class VisibleBatch(NamedTuple):
    """A batch that the application may see, and which of its offsets."""

    data: memoryview
    header: BatchHeader
    first: int
    end: int


class Columns:
    """Rows of one partition by column, until there are enough for an Arrow batch."""

    def __init__(self, part: Range) -> None:
        self._columns = implementation.chosen.Columns()
        self._topic = ConstantColumn(part.topic)
        self._partition = struct.pack("=i", part.partition)
        self._partitions = b""

    def add(self, section: VisibleBatch) -> bool:
        """Whether there are enough."""
        data, header, first, end = section
        rows = self._columns.add(
            records_bytes(data, header, MAX_DECOMPRESSED_BYTES),
            header.count,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if header.log_append_time else None,
            first,
            end,
        )
        return rows >= ROWS or self._columns.bytes >= BYTES

    @property
    def rows(self) -> int:
        return self._columns.rows

    def take(self, schema: "pa.Schema") -> "pa.RecordBatch":
        """All rows as one batch of this schema; none are left."""
        import pyarrow as pa

        rows, offsets, times, kinds, keys, values = self._columns.take()
        if len(self._partitions) < 4 * rows:
            self._partitions = self._partition * rows
        columns: list[Any] = [
            _binary(rows, keys),
            _binary(rows, values),
            self._topic.column(rows),
            pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(self._partitions)]),
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
            pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, pa.py_buffer(times)]),
            pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(kinds)]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class ConstantColumn:
    """One text for any number of rows.

    Its buffers serve all batches. Arrow's own way makes a scalar first, and for a scalar it loads
    pandas, if that is installed: as much time as all else that a worker loads.
    """

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._ends = array("i", [0])
        self._data = b""

    def column(self, rows: int) -> Any:
        import pyarrow as pa

        size = len(self._text)
        if len(self._ends) <= rows:
            self._ends = array("i", range(0, size * rows + 1, size))
            self._data = self._text * rows
        held = [None, pa.py_buffer(self._ends), pa.py_buffer(self._data)]
        return pa.Array.from_buffers(pa.string(), rows, held)


def _binary(rows: int, column: Column) -> Any:
    import pyarrow as pa

    ends, data, bits, nulls = column
    held = [pa.py_buffer(bits) if nulls else None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, held, nulls)


class ColumnsWithHeaders(Columns):
    """The same with a column of headers, from records one by one."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self._headers: list[Any] = []

    def add(self, section: VisibleBatch) -> bool:
        data, _, first, end = section
        with gc_paused():
            self._headers += [
                [{"key": k, "value": v} for k, v in record.headers] if record.headers else None
                for record in decode_records(data)
                if first <= record.offset < end
            ]
        return super().add(section)

    def take(self, schema: "pa.Schema") -> "pa.RecordBatch":
        import pyarrow as pa

        field = schema.field("headers")
        rows, self._headers = self._headers, []
        with gc_paused():
            column = pa.array(rows, field.type)
        plain = super().take(schema.remove(schema.get_field_index("headers")))
        return pa.RecordBatch.from_arrays([*plain.columns, column], schema=schema)


class VisibleBatches:
    """What of a range's batches the application may see."""

    def __init__(self, part: Range, committed: bool, check_crcs: bool) -> None:
        self._part = part
        self._committed = committed
        self._check_crcs = check_crcs

    def sections(self, answer: FetchedRecords) -> Iterator[VisibleBatch]:
        """What may be seen of an answer, batch by batch."""
        aborting = [(a.first_offset, a.producer_id) for a in answer.aborted]
        heapify(aborting)
        aborted: set[int] = set()
        first, end = max(answer.offset, self._part.start), self._part.end
        for position, header in walk(answer.data):
            if header.base_offset >= end:
                return
            if header.last_offset < first:
                continue
            batch = answer.data[position : position + header.size]
            if self._check_crcs and not check_crc(batch, 0, header):
                raise ParseError(f"{self._part.where} at {header.base_offset}: wrong checksum")
            if self._committed:
                while aborting and aborting[0][0] <= header.last_offset:
                    aborted.add(heappop(aborting)[1])
                if header.is_control:
                    if _ends_in_abort(batch):
                        aborted.discard(header.producer_id)
                    continue
                if header.is_transactional and header.producer_id in aborted:
                    continue
            elif header.is_control:
                continue
            yield VisibleBatch(batch, header, first, end)


def _ends_in_abort(batch: memoryview) -> bool:
    records = decode_records(batch)
    return bool(records) and control_type(records[0].key) is ControlType.ABORT


def read(
    link: Link,
    settings: ConsumerSettings,
    parts: Sequence[Range],
    *,
    strict: bool,
    headers: bool,
    schema: "pa.Schema",
    limit_ms: int | None = None,
) -> "Iterator[pa.RecordBatch]":
    """The rows of ranges, one range after the other. `strict` is failOnDataLoss."""
    readers = deque(RangeReader(link, settings, part, strict, limit_ms) for part in parts)
    for part in parts:
        link.run(_begin(readers, settings.max_partition_fetch_bytes))
        reader = readers.popleft()
        visible = VisibleBatches(
            part, settings.isolation_level == "read_committed", settings.check_crcs
        )
        columns = ColumnsWithHeaders(part) if headers else Columns(part)
        yield from _rows(reader, visible, columns, schema)


async def _begin(readers: Iterable[RangeReader], most_bytes: int) -> None:
    """Has the first Fetch of the next ranges under way, the very next one in any case."""
    asked = 0
    for reader in islice(readers, RANGES_AHEAD):
        asked += reader.fetch_bytes
        if asked > most_bytes and asked > reader.fetch_bytes:
            return
        await reader.begin()


def _rows(
    reader: RangeReader, visible: VisibleBatches, columns: Columns, schema: "pa.Schema"
) -> "Iterator[pa.RecordBatch]":
    for answer in reader:
        sections = visible.sections(answer)
        while True:
            try:
                enough = any(columns.add(section) for section in sections)
            except (ParseError, KafkaError) as damage:
                code, told = ErrorCode.CORRUPT_MESSAGE, str(damage)
                raise BrokerError(code, told, about=str(reader.where)) from damage
            if not enough:
                break
            yield columns.take(schema)
    if columns.rows:
        yield columns.take(schema)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No search for cycles meanwhile: it takes half the time of decoding and finds nothing, as
    records are tuples of bytes and die by their count."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
