"""Writes rows at least once: `df.write.format("scriba")` and `df.writeStream.format("scriba")`.

Each task writes for itself as an idempotent producer, so nothing that is sent again within a task
is there twice. But a task that Spark runs again writes again, and so does a batch that is repeated
after a crash. Exactly once is not to be had this way: all rows of a batch would have to be in one
transaction, in which no two tasks may write to one partition, and a data source in Python cannot
ask Spark to bring rows to tasks by their partition. `exactly_once.ExactlyOnceSink` can.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from scriba.client.producing.producer_id import ProducerIdentity
from scriba.client.settings import ProducerSettings
from scriba.spark.link import Link, link
from scriba.spark.options import WriteOptions
from scriba.spark.writing.partitioning import RowPartitioner, write_batch
from scriba.spark.writing.targets import check_columns, targets
from scriba.spark.writing.task_writer import Identity, TaskWriter, Written


@dataclass
class TaskDone(WriterCommitMessage):
    written: list[Written]


class _Writing:
    """What tasks of both kinds of query do."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self.options
        here = link(options.client, ProducerSettings)
        counts = targets(here, options)
        identity = here.run(own_identity(here))
        writer = TaskWriter(here, options.settings(), identity)
        context = TaskContext.get()
        partitioner = RowPartitioner(counts, 0 if context is None else context.partitionId())
        for batch in iterator:
            write_batch(writer, partitioner, batch, options.topic)
        return TaskDone(writer.finish())


class BatchWriter(_Writing, DataSourceArrowWriter):
    """A batch query."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task has written by now, and there is nothing to undo."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What other tasks wrote stays."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has written by now, and there is nothing to undo."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What other tasks wrote stays, and is written again with the batch."""


async def own_identity(here: Link) -> Identity:
    identity = ProducerIdentity(here.cluster)
    limit = here.cluster.settings.request_timeout_ms
    await here.cluster.retry(identity.get, limit, "a producer id")
    assert identity.current is not None
    return Identity(*identity.current, None, False)
