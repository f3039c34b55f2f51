"""Small micro-batches are read by the planner, and cost no task in Python.

To start a task that runs Python takes Spark as long as to read some ten thousand records. But Spark
can take rows from the planner, together with the partitions: Java keeps them in a block, which a
task takes instead of starting Python. Should the block be lost, the task reads the partition as any
other.

Spark has this for its own wrapper of `SimpleDataSourceStreamReader` alone, which neither knows
limits nor tells the lag. So a reader belongs to the class of that wrapper only from the moment at
which it has rows to hand over until they are taken. With a Spark that has no such class, tasks read
all.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader

from scriba.spark.options import ReadOptions
from scriba.spark.reading.positions import Range

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _Wrapper
except ImportError:  # an internal name
    _Wrapper = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES: Final = 8 << 20
"""Of rows that go through the planner; more are left to tasks."""

_EASING: Final = 0.9


class Prefetch:
    """Which batches are small enough."""

    def __init__(self, options: ReadOptions) -> None:
        self._most = options.max_on_driver
        if options.max_records_per_partition is not None:
            self._most = min(self._most, options.max_records_per_partition)
        if _Wrapper is None or (options.min_partitions or 1) > 1:
            self._most = 0
        self._record_bytes = 0.0
        """By the last one that was read here."""

    def wanted(self, parts: Sequence[Range]) -> bool:
        records = sum(part.size for part in parts)
        if not 0 < records <= self._most:
            return False
        if records * self._record_bytes > MOST_BYTES:
            self._record_bytes *= _EASING  # records may be shorter by now
            return False
        return True

    def bounded(self, rows: "Iterator[pa.RecordBatch]") -> "list[pa.RecordBatch] | None":
        """All of the rows; None when they are too large."""
        found, records, size = [], 0, 0
        for batch in rows:
            found.append(batch)
            records += batch.num_rows
            size += batch.nbytes
            self._record_bytes = size / records
            if size > MOST_BYTES:
                return None
        return found


def offer(reader: DataSourceStreamReader, rows: "Iterable[pa.RecordBatch]") -> None:
    """Spark takes these rows with the partition that is planned now."""
    vars(reader)["prefetched"] = list(rows)
    reader.__class__ = _offering(type(reader))


def withdraw(reader: DataSourceStreamReader) -> None:
    """What was offered and not taken is for a batch of before."""
    if vars(reader).pop("prefetched", None) is not None:
        reader.__class__ = type(reader).__bases__[0]


@cache
def _offering(plain: type[DataSourceStreamReader]) -> type[DataSourceStreamReader]:
    """The class of a reader that has rows to hand over."""

    def take(self: Any, start: dict[str, Any], end: dict[str, Any]) -> "Iterator[pa.RecordBatch]":
        rows: list[pa.RecordBatch] = self.prefetched
        withdraw(self)
        return iter(rows)

    return type(plain.__name__, (plain, _Wrapper), {"getCache": take})
