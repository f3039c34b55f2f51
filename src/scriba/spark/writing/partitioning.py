"""Where rows go, and how they get there: by topic, then by partition, as columns.

A batch of rows is split by topic; each part is put in the order of its partitions, within which
rows keep theirs; then runs of rows go to their partition's batch as bytes.
"""

import struct
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from scriba.client.errors import RecordError
from scriba.client.model import TopicPartition
from scriba.native import implementation
from scriba.native.arrow import Given
from scriba.spark.writing.task_writer import TaskWriter


class RowPartitioner:
    """Which partition a row goes to: its own, that of its key, or any for rows without one."""

    def __init__(self, counts: Mapping[str, int], first: int) -> None:
        self._counts = counts
        self._turns = count(first)

    def partitions(self, topic: str, rows: int, keys: Any, own: Any) -> Any:
        """An array of partitions, for arrays of keys and of partitions that rows name, or None.

        Rows without a key stay together within a batch, so that batches fill (KIP-794).
        """
        partitions = self._counts.get(topic)
        if partitions is None:
            raise RecordError(
                f"a row names the topic {topic!r}",
                fix="name every topic that rows may go to in the option topics",
            )
        turn = next(self._turns) % partitions
        named = own is not None and own.null_count < rows
        if named:
            _check(topic, own, partitions)
            if not own.null_count:
                return own
        if keys is None or keys.null_count == rows:
            found = struct.pack("=i", turn) * rows
        else:
            first, held = column_buffers(keys)
            found = implementation.chosen.place_keys(held, first, first + rows, partitions, turn)
        chosen = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(found)])
        return pc.coalesce(own, chosen) if named else chosen


def _check(topic: str, own: Any, partitions: int) -> None:
    least, most = pc.min_max(own).as_py().values()
    for partition in (least, most):
        if not 0 <= partition < partitions:
            raise RecordError(f"a row names partition {partition} of {topic}, which there is not")


def column_buffers(column: Any) -> tuple[int, Given]:
    """The first row and the buffers of an array of bytes."""
    bits, ends, data = column.buffers()
    return column.offset, (ends, b"" if data is None else data, bits if column.null_count else None)


class Rows:
    """The columns of an Arrow batch of rows to write, of one topic."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        known = {name.lower(): name for name in batch.schema.names}
        self.count = batch.num_rows
        self._columns = {name: batch.column(known[name]) for name in known}

    def bytes(self, name: str) -> Any:
        column = self._columns.get(name)
        return None if column is None else column.cast(pa.binary())

    def plain(self, name: str) -> Any:
        return self._columns.get(name)

    def with_headers(self) -> bool:
        column = self._columns.get("headers")
        return column is not None and column.null_count < self.count

    def headers(self) -> Iterator[Any]:
        for each in self._columns["headers"].to_pylist():
            yield [(pair["key"], pair["value"]) for pair in each] if each else ()


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic; all of them when `topic` is given."""
    if topic is not None:
        yield topic, batch
        return
    named = Rows(batch).plain("topic")
    found = pc.unique(named).to_pylist()
    if None in found:
        raise RecordError(
            "a row has no topic", fix="set the option topic, or fill the column topic"
        )
    if len(found) == 1:
        yield found[0], batch
        return
    order, runs = in_runs(named)
    batch, begin = batch.take(order), 0
    for each, end in runs:
        yield each, batch.slice(begin, end - begin)
        begin = end


def in_runs(column: Any) -> tuple[Any, list[tuple[Any, int]]]:
    """The order that brings equal rows together, in which they keep theirs; each with its end."""
    order = pc.array_sort_indices(column)
    runs = pc.run_end_encode(column.take(order))
    return order, list(zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True))


def write_batch(
    writer: TaskWriter, partitioner: RowPartitioner, batch: pa.RecordBatch, topic: str | None
) -> None:
    """All rows of a batch, each to its place."""
    if not batch.num_rows:
        return
    now = time.time_ns() // 1_000_000
    for name, part in by_topic(batch, topic):
        rows = Rows(part)
        keys, values = rows.bytes("key"), rows.bytes("value")
        places = partitioner.partitions(name, rows.count, keys, rows.plain("partition"))
        try:
            if rows.with_headers():
                _one_by_one(writer, name, now, rows, places)
            else:
                _in_runs(writer, name, now, keys, values, places)
        except (TypeError, ValueError, OverflowError) as wrong:
            raise RecordError(f"a row cannot be written: {wrong}") from wrong


def _in_runs(writer: TaskWriter, topic: str, now: int, keys: Any, values: Any, places: Any) -> None:
    order, runs = in_runs(places)
    if len(runs) > 1 or values.offset or (keys is not None and keys.offset):
        keys, values = None if keys is None else keys.take(order), values.take(order)
    held_keys = None if keys is None else column_buffers(keys)[1]
    held_values, begin = column_buffers(values)[1], 0
    for partition, end in runs:
        where = TopicPartition(topic, partition)
        writer.add_rows(where, now, held_keys, held_values, range(begin, end))
        begin = end


def _one_by_one(writer: TaskWriter, topic: str, now: int, rows: Rows, places: Any) -> None:
    keys, values = rows.bytes("key"), rows.bytes("value")
    listed = [None] * rows.count if keys is None else keys.to_pylist()
    columns = (places.to_pylist(), listed, values.to_pylist(), rows.headers())
    for partition, key, value, headers in zip(*columns, strict=True):
        writer.add(TopicPartition(topic, partition), now, key, value, headers)
