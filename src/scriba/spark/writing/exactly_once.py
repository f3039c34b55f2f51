"""Writes the rows of a stream into topics exactly once.

The sink works inside `foreachBatch`, in a classic session as with Spark Connect (see `origin`):

    driver                                                   tasks
    take the transactional id, read the marker (once a run)
    leave the batch out if the marker names it
    begin a transaction                              ->      write their partitions, all under
    check that no partition was written by two       <-      the transaction's producer and epoch
    put the batch's name in as the marker
    commit: the one point at which the batch exists

Rows go to the tasks by target partition, so that each partition is written by one task, which
counts its rows from zero. A task that runs a second time cannot know what its first run wrote, so
it refuses; the driver then aborts the transaction and begins the batch anew, under a new epoch that
shuts out whatever the old tasks still send. Commit by two drivers at once is not possible either:
the one that took the transactional id first is fenced, and fails. The rows of a small batch are
brought to the driver, which writes them as the only task of the transaction (see `on_driver`).

What must never happen: a commit of anything but exactly the rows of one batch and its marker.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from scriba.client.errors import AbortableTransactionError
from scriba.client.model import TopicPartition
from scriba.client.settings import ProducerSettings
from scriba.spark.link import Link, link, own_link
from scriba.spark.options import OptionError, WriteOptions, write_options
from scriba.spark.origin import BatchStopped, Origin, cores, origin, shuffled, stopped
from scriba.spark.progress import Outcome, keep
from scriba.spark.reading.fetching import ConstantColumn
from scriba.spark.reasons import reason
from scriba.spark.writing.on_driver import SmallBatches, fetch
from scriba.spark.writing.partitioning import RowPartitioner, write_batch
from scriba.spark.writing.targets import COLUMNS, check_columns, targets
from scriba.spark.writing.task_writer import Identity, TaskRepeated, TaskWriter, Written
from scriba.spark.writing.transactions import Marker, SinkTransactions

log = logging.getLogger(__name__)

CORES_A_TASK: Final = 2
"""A task that writes keeps the JVM and its Python worker busy, so two tasks on two cores would be
slower than one. A single one places rows itself, and reads them too when nothing was shuffled
before: the shuffle would cost more than it lets run in parallel. What comes after a shuffle, such
as state, goes on with as many tasks as it has, and its rows are few."""

_WRITTEN: Final = "written string"
"""What a task did, as a list of `Written` in JSON."""


class WriteTask:
    """What a task of the exactly-once sink does; travels to the executors by pickle."""

    def __init__(self, options: WriteOptions, identity: Identity, counts: dict[str, int]) -> None:
        self.client = dict(options.client)
        self.topic = options.topic
        self.identity = identity
        self.counts = counts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise TaskRepeated(
                f"task {context.partitionId()} is tried again; what its first attempt wrote is not "
                "known, so the batch begins anew"
            )
        done = self.write(link(self.client, ProducerSettings), batches, alone=False)
        told = ConstantColumn(json.dumps(done)).column(1)
        yield pa.RecordBatch.from_arrays([told], names=["written"])

    def write(self, here: Link, batches: Iterable[pa.RecordBatch], *, alone: bool) -> list[Written]:
        """`alone` on the driver, which knows that nobody else has the identity."""
        settings = ProducerSettings.build(self.client, {})
        writer = TaskWriter(here, settings, self.identity, alone=alone)
        partitioner = RowPartitioner(self.counts, 0)
        for batch in batches:
            write_batch(writer, partitioner, batch, self.topic)
        return writer.finish()


class WrittenBatch(NamedTuple):
    """The rows of a batch, as they were written."""

    written: list[Written]
    on_driver: bool


WriteRows = Callable[[WriteTask], WrittenBatch]
"""Has the rows of a batch written, by tasks or by the driver."""


def _unwatched(step: str) -> None:
    """Nobody looks on."""


class ExactlyOnceSink:
    """Give it to `writeStream.foreachBatch`; one object for one query.

    `watch` is called with the name of each step, before it is taken.
    """

    def __init__(
        self, options: Mapping[str, str], watch: Callable[[str], None] = _unwatched
    ) -> None:
        self.options = write_options(options, exactly_once=True)
        self.last: Outcome | None = None
        self._given = dict(options)
        self._watch = watch
        self._link: Link | None = None
        self._owner: Origin | None = None
        self._transactions: SinkTransactions | None = None
        self._marker: Marker | None = None
        self._cores = 0
        self._shuffled: bool | None = None
        self._small = SmallBatches(self.options.max_on_driver)

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark Connect carries it to its server: as it was when it was made."""
        return ExactlyOnceSink, (self._given, self._watch)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        def plan(counts: dict[str, int]) -> WriteRows:
            names = check_columns(rows.schema, self.options)
            if self.options.topic:
                names.discard("topic")

            def write_rows(task: WriteTask) -> WrittenBatch:
                done = self._by_driver(rows, names, task)
                return done or self._by_tasks(self._plan(rows, names, counts), task)

            return write_rows

        if not self._write(rows.sparkSession, batch_id, plan):
            # Spark ends a query with state whose batch was not computed, needed or not.
            rows.write.format("noop").mode("overwrite").save()

    def write(self, make: Callable[[], pa.Table], batch_id: int, session: SparkSession) -> bool:
        """A batch whose rows the driver has: it writes them itself, which saves a job.

        `make` is asked for them once earlier runs can write no more, and may read what they wrote;
        it is not asked, and the answer False, when the batch was committed before. `session` is
        that of the batch (`rows.sparkSession`).
        """

        def plan(counts: dict[str, int]) -> WriteRows:
            here, batches = self._here(), make().to_batches()
            return lambda task: WrittenBatch(task.write(here, batches, alone=True), True)

        return self._write(session, batch_id, plan)

    def _write(
        self, session: SparkSession, batch_id: int, plan: Callable[[dict[str, int]], WriteRows]
    ) -> bool:
        """Whether the batch was written, and not before."""
        owner = self._origin(session, batch_id)
        here = self._here()
        counts = targets(here, self.options)
        transactions = self._own(here, owner, batch_id)
        marker = self._marker
        if marker is not None and marker.query == owner.query and marker.batch >= batch_id:
            log.info("batch %d of query %s was committed before", batch_id, owner.query)
            self._report(owner, Outcome(batch_id, 0, 0, 0, True))
            return False
        write_rows = plan(counts)
        for attempt in range(1, self.options.attempts + 1):
            begun = time.monotonic()
            done = self._attempt(transactions, write_rows, counts, attempt)
            if done is not None:
                self._commit(transactions, Marker(owner.query, batch_id))
                spent = (time.monotonic() - begun) * 1000
                written, on_driver = done
                rows = sum(w.rows for w in written)
                self._report(
                    owner,
                    Outcome(batch_id, rows, len(written), attempt, False, spent, on_driver),
                )
                break
            targets(here, self.options)  # nothing is tried again without them
        return True

    def _by_driver(self, rows: DataFrame, names: set[str], task: WriteTask) -> WrittenBatch | None:
        """None when the batch is not small, or not expected to be."""
        if not self._small.expected():
            return None
        self._small.tried()
        found = fetch(rows, names, self._small.most_rows)
        if found is None:
            log.info("a batch is larger than those before: tasks write it")
            return None
        written = task.write(self._here(), found.to_batches(), alone=True)
        self._small.written(found.num_rows, by_driver=True)
        return WrittenBatch(written, True)

    def _by_tasks(self, planned: DataFrame, task: WriteTask) -> WrittenBatch:
        written = [
            Written(*place)
            for row in planned.mapInArrow(cast(Any, task), _WRITTEN).collect()
            for place in json.loads(row.written)
        ]
        self._small.written(sum(place.rows for place in written), by_driver=False)
        return WrittenBatch(written, False)

    def _origin(self, session: SparkSession, batch_id: int) -> Origin:
        """In Spark Connect, where the run is not told, this object serves a single one."""
        if self._owner is not None and self._owner.run is None:
            return self._owner
        checkpoint = self.options.checkpoint if self._owner is None else None
        return origin(session, checkpoint, batch_id)

    def _report(self, owner: Origin, outcome: Outcome) -> None:
        self.last = outcome
        keep(owner.query, outcome)

    def _here(self) -> Link:
        """Its own link: queries of one driver run at the same time, a loop only for one of them."""
        if self._link is None:
            self._link = own_link(self.options.client, ProducerSettings, self)
        return self._link

    def _own(self, here: Link, owner: Origin, batch_id: int) -> SinkTransactions:
        """Takes the sink over for this run of the query, unless that was done before."""
        query = owner.query
        if self._transactions is not None and self._owner == owner:
            return self._transactions
        if self._owner is not None and self._owner.query != query:
            raise OptionError("this sink belongs to another query; make one for each")
        self._watch("take over")
        place = TopicPartition(self.options.targets[0], 0)
        sink_id = self.options.sink_id or query
        transactions = SinkTransactions(here, self.options.settings(), sink_id, place)
        marker = transactions.take_over()
        known = marker is not None and marker.query == query
        if batch_id > 0 and not known and self.options.marker_missing == "fail":
            raise OptionError(
                f"the sink has no record of earlier batches of this query, so batch {batch_id} may "
                "be there already: its group's offsets expired, were deleted, or belong to another "
                "query, or this one wrote elsewhere before; look into the topic, then set "
                "markerMissing=write to go on"
            )
        self._transactions, self._owner, self._marker = transactions, owner, marker
        return transactions

    def _plan(self, rows: DataFrame, names: set[str], counts: dict[str, int]) -> DataFrame:
        """The rows as tasks write them: with topic and partition, and by these to the tasks."""
        prepared = rows.select(*(_written(name) for name in COLUMNS if name in names))
        tasks = min(self._tasks(rows.sparkSession), sum(counts.values()))
        if tasks == 1:
            alone = self.options.tasks == 1 or not self._are_shuffled(rows)
            return prepared.coalesce(1) if alone else prepared.repartition(1)
        place = _place_udf(counts, self.options.topic)
        key = F.col("key") if "key" in names else F.lit(None).cast("binary")
        topic = F.lit(self.options.topic) if self.options.topic else F.col("topic")
        chosen = place(key) if self.options.topic else place(topic, key)
        if "partition" in names:
            chosen = F.coalesce(F.col("partition"), chosen)
        prepared = prepared.withColumn("partition", chosen)
        return prepared.repartitionById(tasks, _task_of(topic, counts, tasks))

    def _are_shuffled(self, rows: DataFrame) -> bool:
        """Found out once: it takes a planning of the whole query, which is the same in all of its
        batches."""
        if self._shuffled is None:
            self._shuffled = shuffled(rows)
        return self._shuffled

    def _tasks(self, session: SparkSession) -> int:
        if self.options.tasks is not None:
            return self.options.tasks
        self._cores = self._cores or cores(session)
        return max(1, self._cores // CORES_A_TASK)

    def _attempt(
        self,
        transactions: SinkTransactions,
        write_rows: WriteRows,
        counts: dict[str, int],
        attempt: int,
    ) -> WrittenBatch | None:
        """Writes the batch once; None when it has to begin anew."""
        self._watch("begin")
        places = [TopicPartition(t, p) for t, n in counts.items() for p in range(n)]
        identity = transactions.begin(places)
        self._watch("write")
        try:
            done = write_rows(WriteTask(self.options, identity, counts))
            check_disjoint(done.written)
        except Exception as failure:
            self._watch("abort")
            transactions.abort()
            run = None if self._owner is None else self._owner.run
            if stopped(failure, run):
                raise BatchStopped(run) from None
            if attempt == self.options.attempts:
                raise
            log.warning("the batch begins anew, as its tasks failed: %s", reason(failure))
            return None
        return done

    def _commit(self, transactions: SinkTransactions, marker: Marker) -> None:
        # Unless it is committed for certain, the sink is taken over anew and the marker tells.
        self._transactions = None
        self._watch("mark")
        try:
            transactions.mark(marker)
        except AbortableTransactionError:
            transactions.abort()
            raise
        self._watch("commit")
        transactions.commit()
        self._transactions = transactions
        self._watch("committed")
        self._marker = marker


def check_disjoint(written: list[Written]) -> None:
    """No two tasks may have written to one partition: one of them would have been ignored."""
    seen = set()
    for place in written:
        where = (place.topic, place.partition)
        if where in seen:
            raise TaskRepeated(f"two tasks wrote to {place.topic}-{place.partition}")
        seen.add(where)


def _written(name: str) -> Column:
    """A column of rows as tasks take it."""
    column = F.col(name)
    return column.cast("binary").alias(name) if name in ("key", "value") else column.alias(name)


def _place_udf(counts: dict[str, int], topic: str | None) -> Callable[..., Column]:
    partitioner = RowPartitioner(counts, 0)

    def place(keys: pa.Array) -> pa.Array:
        assert topic is not None
        return partitioner.partitions(topic, len(keys), keys, None)

    def place_by_topic(topics: pa.Array, keys: pa.Array) -> pa.Array:
        found = pa.nulls(len(keys), pa.int32())
        for name in pc.unique(topics).to_pylist():
            chosen = partitioner.partitions(name, len(keys), keys, None)
            found = pc.if_else(pc.equal(topics, name), chosen, found)
        return found

    made = cast(Any, arrow_udf)(place if topic else place_by_topic, IntegerType())
    return cast(Callable[..., Column], made)


def _task_of(topic: Column, counts: dict[str, int], tasks: int) -> Column:
    """Which task writes a partition: they are dealt out in turn over all topics."""
    first, base = F.lit(0), 0
    for name, partitions in counts.items():
        first = F.when(topic == name, F.lit(base)).otherwise(first)
        base += partitions
    return ((first + F.col("partition")) % tasks).cast("int")
