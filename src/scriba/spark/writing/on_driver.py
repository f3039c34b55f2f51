"""Small batches are brought to the driver, which writes them itself.

A task that writes runs Python: to start it takes Spark longer than to write ten thousand rows. So
rows are fetched by a job that stays in Java, and the driver writes them in the same transaction
that its tasks would write in.

How many rows a batch has is known only when it was computed. The driver tries when the batch
before was small, and the job gives it no more than it can hold: each of its tasks counts its rows
and leaves out those after the limit, and the bytes of a row that is larger than its share. All rows
are computed all the same, as queries with state demand. If something was left out the rows are
thrown away, and tasks compute and write the batch anew; after that the driver tries less often.
"""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

MOST_BYTES: Final = 32 << 20
"""Of keys, values and headers of all rows that one task of the job gives to the driver."""

MOST_PAUSE: Final = 64

_IN_TASK: Final = (1 << 33) - 1
"""Of a monotonically increasing id: the number of the row within its task."""


class SmallBatches:
    """Whether the driver tries to write a batch itself, going by those before."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self._rows: int | None = None
        """Of the last batch."""
        self._pause = 0
        self._next_pause = 1

    def expected(self) -> bool:
        """Whether the next batch is likely to be small. The first one is not: it may be all that a
        topic holds."""
        if self._rows is None or self._pause:
            return False
        return self._rows <= self.most_rows > 0

    def tried(self) -> None:
        """The driver tries: in vain, until `written` says that it has not been."""
        self._pause = self._next_pause
        self._next_pause = min(2 * self._next_pause, MOST_PAUSE)

    def written(self, rows: int, by_driver: bool) -> None:
        self._rows = rows
        if by_driver:
            self._pause, self._next_pause = 0, max(1, self._next_pause // 4)
        elif self._pause:
            self._pause -= 1


def fetch(rows: DataFrame, names: Collection[str], most_rows: int) -> pa.Table | None:
    """The rows with the columns of these names; None when there are more, or larger ones."""
    columns = [f"cast(`{n}` as binary) as `{n}`" for n in ("key", "value") if n in names]
    columns += [f"`{n}`" for n in ("topic", "partition", "headers") if n in names]
    counted = rows.selectExpr(
        *columns,
        f"{_size(names)} <= {MOST_BYTES // most_rows} as fits",
        f"monotonically_increasing_id() & {_IN_TASK} as number",
    )
    kept = [f"if(fits, `{n}`, null) as `{n}`" for n in ("key", "value", "headers") if n in names]
    kept += [f"`{n}`" for n in ("topic", "partition") if n in names]
    found = counted.where(f"number <= {most_rows}").selectExpr(*kept, "fits").toArrow()
    whole = found.filter(found.column("fits"))
    if found.num_rows > most_rows or whole.num_rows < found.num_rows:
        return None
    return whole.drop_columns(["fits"])


def _size(names: Collection[str]) -> str:
    """The bytes of a row, in SQL; it is never null."""
    parts = [f"coalesce(octet_length(`{n}`), 0)" for n in ("key", "value") if n in names]
    if "headers" in names:
        each = "coalesce(octet_length(h.key), 0) + coalesce(octet_length(h.value), 0)"
        parts.append(f"coalesce(aggregate(`headers`, 0, (n, h) -> n + {each}), 0)")
    return " + ".join(parts)
