"""The data source `scriba`: reads topics into rows, in batch and in streaming queries.

The columns are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp,
timestampType and, when asked for, headers. Where a stream has got to is explained in `positions`.

Three processes take part. A planner that lives as long as the query answers where the logs end and
shares ranges out to tasks; tasks read ranges; and the sink, if any, writes. Only values travel
between them. What is read of a small micro-batch comes from the planner itself, see `prefetch`.

A query's progress can be published as the committed offsets of a consumer group (`groupId`). Spark
tells a source that a batch is done only when it builds the next one, but it asks for new data at
every trigger, naming where the last finished batch ended: that is what gets committed.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from scriba.client import ClientError
from scriba.client.model import TopicPartition
from scriba.client.settings import ConsumerSettings
from scriba.spark.link import Link, link
from scriba.spark.options import EARLIEST, OptionError, ReadOptions, read_options, write_options
from scriba.spark.reading import lookup
from scriba.spark.reading.alignment import align_by_timestamp
from scriba.spark.reading.fetching import DataLoss, read
from scriba.spark.reading.group_offsets import publish
from scriba.spark.reading.positions import (
    INITIAL,
    SINCE,
    Positions,
    Range,
    cap,
    find_losses,
    from_json,
    limit_rate,
    pack,
    ranges,
    resume_positions,
    split,
    to_json,
    total,
    unread_partitions,
)
from scriba.spark.reading.prefetch import Prefetch, offer, withdraw

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

T = TypeVar("T")

NAME: Final = "scriba"

PREFETCH_MS: Final = 5_000
"""How long the planner tries to read a small batch itself."""

TOPICS_AGE_S: Final = 1.0
"""Topics and partitions are looked up again after this time; ends of logs at every trigger."""

LOOKS: Final = 5
"""How often a trigger looks again when topics are deleted under its eyes."""

HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


def columns(headers: bool) -> StructType:
    schema = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    return schema.add("headers", HEADERS) if headers else schema


def arrow_schema(headers: bool) -> "pa.Schema":
    import pyarrow as pa

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
    if headers:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields.append(("headers", pa.list_(pa.field("element", pair))))
    return pa.schema(fields)


class RangesPartition(InputPartition):
    """One task's share of a read."""

    def __init__(self, parts: Iterable[Range]) -> None:
        super().__init__(tuple(tuple(part) for part in parts))

    @property
    def ranges(self) -> list[Range]:
        return [Range(*part) for part in self.value]


class ScribaDataSource(DataSource):
    """`spark.dataSource.register(ScribaDataSource)`, then `format("scriba")`."""

    cores: ClassVar[int | None] = None
    """Tasks that run at the same time, as far as that is known where reads are planned."""

    @classmethod
    def knowing(cls, cores: int) -> "type[ScribaDataSource]":
        """The same for a session with so many cores: where reads are planned Spark tells nothing
        of the session, but the class travels there."""
        return type(cls.__name__, (cls,), {"cores": cores, "__module__": cls.__module__})

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return columns(self.options.get("includeheaders", "false").strip().lower() == "true")

    def reader(self, schema: StructType) -> "ScribaReader":
        return ScribaReader(read_options(self.options, streaming=False), self.cores)

    def streamReader(self, schema: StructType) -> "ScribaStreamReader":
        return ScribaStreamReader(read_options(self.options, streaming=True), self.cores)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError('a topic cannot be overwritten; write with mode("append")')
        # not loaded where rows are only read
        from scriba.spark.writing.at_least_once import BatchWriter

        return BatchWriter(write_options(self.options, exactly_once=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """At least once; `ExactlyOnceSink` does better."""
        if overwrite:
            raise OptionError('a topic cannot be overwritten; use outputMode("append") or "update"')
        from scriba.spark.writing.at_least_once import StreamWriter

        options = write_options(self.options, exactly_once=False, streaming=True)
        return StreamWriter(options, schema)


class _Reading:
    """What tasks of both kinds of query do."""

    def __init__(self, options: ReadOptions, cores: int | None = None) -> None:
        self.options = options
        self.cores = cores

    def _link(self) -> Link:
        return link(self.options.client, ConsumerSettings)

    def _limit(self) -> int:
        return self.options.settings().default_api_timeout_ms

    def _cut(self, parts: list[Range]) -> list[InputPartition]:
        least, most = self.options.min_partitions, self.options.max_records_per_partition
        pieces = split(parts, least, most)
        return [RangesPartition(share) for share in pack(pieces, self.cores, least, most)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, RangesPartition):
            return iter(())  # Spark's stand-in when there is nothing to read
        return self._rows(partition.ranges)

    def _rows(
        self, parts: Sequence[Range], limit_ms: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        options = self.options
        return read(
            self._link(),
            options.settings(),
            parts,
            strict=options.fail_on_data_loss,
            headers=options.headers,
            schema=arrow_schema(options.headers),
            limit_ms=limit_ms,
        )


class ScribaReader(_Reading, DataSourceReader):
    """A batch query: everything between two places."""

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self._link().run(self._plan())
        for topic, spot in start.items():
            for partition, first in spot.offsets.items():
                last = end[topic].offsets[partition]
                if first > last:
                    raise OptionError(
                        f"{topic}-{partition}: the start, {first}, is after the end, {last}"
                    )
        return self._cut(ranges(start, end))

    async def _plan(self) -> tuple[Positions, Positions]:
        options, cluster, limit = self.options, self._link().cluster, self._limit()
        found = await lookup.describe_topics(cluster, options.subscription, limit)
        lookup.require_all(options.subscription, found)
        start = await lookup.resolve(cluster, found, options.start, options, limit, start=True)
        end = await lookup.resolve(cluster, found, options.end, options, limit, start=False)
        return start, end


class ScribaStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. All but `read` runs in the planner, which keeps what is below."""

    def __init__(self, options: ReadOptions, cores: int | None = None) -> None:
        super().__init__(options, cores)
        self._initial: dict[str, Any] | None = None
        self._topics: lookup.Topics = {}
        self._topics_at = -math.inf
        self._ends: Positions = {}
        self._ceiling: Positions | None = None
        self._published: Positions = {}
        self._last_batch = -math.inf
        self._prefetch = Prefetch(options)

    # -- where to read ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks several times; the answer must stay the same."""
        if self._initial is None:
            start = self._link().run(self._steadily(self._find_start))
            self._initial = {"topics": to_json(start), INITIAL: True}
        return self._initial

    async def _find_start(self) -> Positions:
        options, cluster, limit = self.options, self._link().cluster, self._limit()
        found = await lookup.describe_topics(cluster, options.subscription, limit)
        lookup.require_all(options.subscription, found)
        return await lookup.resolve(cluster, found, options.start, options, limit, start=True)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark has no word for both limits at once; `latestOffset` looks at the options."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._ceiling = self._link().run(self._steadily(self._look))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = from_json(start["topics"])
        fresh = INITIAL in start
        if not fresh:
            self._publish(known)
        now, begin = self._link().run(self._steadily(lambda: self._where(known)))
        if fresh and not known and not now:
            return start  # nothing matches the pattern yet
        if self._ceiling is not None:
            now = self._within(begin, self._ceiling)
        if not isinstance(limit, ReadAllAvailable) and self._ceiling is None:
            if self._too_few(begin, now):
                return start if not fresh else self._document(begin, known)
            self._last_batch = time.monotonic()
        if not isinstance(limit, ReadAllAvailable) and self.options.max_offsets is not None:
            now = self._rate_limited(begin, now, self.options.max_offsets)
        if to_json(now) == start["topics"] and not fresh:
            return start
        return self._document(now, known if fresh else None)

    def _rate_limited(self, begin: Positions, now: Positions, most: int) -> Positions:
        if not self.options.align_by_timestamp:
            return limit_rate(begin, now, most)
        limit, isolation = self._limit(), self.options.isolation
        here = self._link()
        return here.run(align_by_timestamp(here.cluster, begin, now, most, isolation, limit))

    def _document(self, end: Positions, since: Positions | None) -> dict[str, Any]:
        document: dict[str, Any] = {"topics": to_json(end)}
        if since is not None:
            document[SINCE] = to_json(since)
        return document

    async def _steadily(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does it anew, with the topics asked for anew, when one of them is found gone."""
        for _ in range(LOOKS - 1):
            try:
                return await work()
            except lookup.TopicGone as gone:
                log.info("%s; looking again", gone)
                self._topics_at = -math.inf
        return await work()

    async def _look(self) -> Positions:
        """Where the logs end now."""
        options, cluster, limit = self.options, self._link().cluster, self._limit()
        if time.monotonic() - self._topics_at >= TOPICS_AGE_S:
            self._topics = await lookup.describe_topics(cluster, options.subscription, limit)
            self._topics_at = time.monotonic()
        self._ends = await lookup.ends(cluster, self._topics, options.isolation, limit)
        return self._ends

    async def _where(self, known: Positions) -> tuple[Positions, Positions]:
        """Where the logs end, and where to go on; DataLoss when the two do not fit."""
        now = await self._look()
        for loss in find_losses(known, now):
            if self.options.fail_on_data_loss:
                raise DataLoss(loss.what, loss.fix)
            log.warning("%s; reading goes on with what there is", loss.what)
        new = unread_partitions(known, now)
        limit, isolation = self._limit(), self.options.isolation
        begins = await lookup.log_bounds(self._link().cluster, new, EARLIEST, isolation, limit)
        return now, resume_positions(known, now, begins)

    def _within(self, begin: Positions, ceiling: Positions) -> Positions:
        """What Trigger.AvailableNow may read: up to what was there when the query started."""
        capped = cap(self._ends, ceiling)
        return {
            topic: spot._replace(
                offsets={p: max(o, begin[topic].offsets.get(p, o)) for p, o in spot.offsets.items()}
            )
            for topic, spot in capped.items()
        }

    def _too_few(self, begin: Positions, now: Positions) -> bool:
        """Whether to wait for more, as minOffsetsPerTrigger asks."""
        least = self.options.min_offsets
        if least is None or total(begin, now) >= least:
            return False
        waited_ms = (time.monotonic() - self._last_batch) * 1000
        return waited_ms < self.options.max_delay_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end, from which listeners have the lag."""
        return {"topics": to_json(self._ends)} if self._ends else None

    # -- batches ---------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        withdraw(self)
        first = end.get(SINCE, start["topics"]) if INITIAL in start else start["topics"]
        begin, stop = from_json(first), from_json(end["topics"])
        new = unread_partitions(begin, stop)
        if new:
            find = lookup.log_bounds(
                self._link().cluster, new, EARLIEST, self.options.isolation, self._limit()
            )
            begin = resume_positions(begin, stop, self._found(find))
        parts = ranges(begin, stop)
        if self._prefetch.wanted(parts) and (rows := self._small(parts)) is not None:
            offer(self, rows)
            return [RangesPartition(parts)]
        return self._cut(parts)

    def _small(self, parts: list[Range]) -> "list[pa.RecordBatch] | None":
        """All rows of ranges that are few; None when they are larger than they were thought to be,
        or cannot be read now: tasks are tried again, and tell what is wrong."""
        limit_ms = min(self._limit(), PREFETCH_MS)
        try:
            return self._prefetch.bounded(self._rows(parts, limit_ms))
        except (ClientError, DataLoss) as failure:
            log.info("left to tasks: %s", failure)
            return None

    def _found(
        self, find: Coroutine[Any, Any, dict[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """Where new topics begin; those that are gone again are left to the tasks to miss."""
        try:
            return self._link().run(find)
        except lookup.TopicGone as gone:
            if self.options.fail_on_data_loss:
                raise DataLoss(str(gone), "start with a new checkpoint") from gone
            log.warning("%s; reading goes on with what there is", gone)
            return {}

    def _publish(self, known: Positions) -> None:
        group = self.options.group
        if group is not None and known != self._published:
            done = publish(self._link(), group, known)
            if done:
                self._published = known

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to free: what was read stays in the log."""

    def stop(self) -> None:
        """The planner process ends with the query, and its connections with it.

        Where Java has hung up, as it does when a query is stopped amid a batch, it ends here:
        pyspark would go on to tell Java of that, and print all that comes of it.
        """
        if _java_hung_up(sys.exc_info()[1]):
            os._exit(0)


def _java_hung_up(error: BaseException | None) -> bool:
    """Whether pyspark's own conversation has ended, and not one with a broker."""
    if not isinstance(error, ConnectionError | EOFError):
        return False
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return not any(name.partition(".")[0] == "scriba" for name in modules)
