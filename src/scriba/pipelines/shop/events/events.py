"""From records to events: judged one by one, by the rules that the endpoint has too.

Rows go through Python in Arrow batches, where `checks.judge` says of every record what becomes of
it. So a record means the same here and at the endpoint, to the last letter, and none can end a
query: whatever it holds, there is a row for it. Nothing here holds state, so the same functions
serve streams and batches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from scriba.pipelines.shop.events.checks import (
    ACCEPTED,
    DEAD_LETTER,
    LATE,
    OUTCOMES,
    Verdict,
    judge,
)
from scriba.pipelines.shop.topics import Names

TIMESTAMP: Final = pa.timestamp("us", "UTC")
LONGEST_LETTER: Final = 16 * 1024
"""Bytes of a dead letter that are kept: written as JSON, each may become six."""
RECORD: Final = ("topic", "partition", "offset", "timestamp", "value")

ITEM: Final = pa.struct(
    [("product_id", pa.string()), ("quantity", pa.int32()), ("price_cents", pa.int64())]
)
ITEM_TYPE: Final = "struct<product_id:string,quantity:int,price_cents:bigint>"


class Judged(NamedTuple):
    """A record and what became of it."""

    topic: str
    value: bytes | None
    verdict: Verdict


class Column(NamedTuple):
    spark: str
    arrow: pa.DataType
    of: Callable[[Judged], Any] | None = None
    """None: the field of this name."""


def _text(judged: Judged) -> str | None:
    """As it was sent; of a dead letter bytes that are no text are replaced, and many left out."""
    if judged.value is None or judged.verdict.outcome != DEAD_LETTER:
        return None if judged.value is None else judged.value.decode()
    return judged.value[:LONGEST_LETTER].decode(errors="replace")


def _rejected(judged: Judged) -> str | None:
    return _text(judged) if judged.verdict.outcome in (LATE, DEAD_LETTER) else None


def _time(judged: Judged) -> int | None:
    return None if judged.verdict.outcome == DEAD_LETTER else judged.verdict.time_us


def _units(judged: Judged) -> int | None:
    items = judged.verdict.event.get("items")
    return None if items is None else sum(item["quantity"] for item in items)


def _string(of: Callable[[Judged], Any] | None = None) -> Column:
    return Column("string", pa.string(), of)


COLUMNS: Final[Mapping[str, Column]] = {
    "outcome": _string(lambda judged: judged.verdict.outcome),
    "reason": _string(lambda judged: judged.verdict.reason),
    "value": _string(_text),
    "rejected": _string(_rejected),
    "event_id": _string(),
    "event_time": Column("timestamp", TIMESTAMP, _time),
    "user_id": _string(),
    "session_id": _string(),
    "device": _string(),
    "user_agent": _string(),
    "product_id": _string(),
    "quantity": Column("int", pa.int32()),
    "price_cents": Column("bigint", pa.int64()),
    "order_id": _string(),
    "items": Column(f"array<{ITEM_TYPE}>", pa.list_(ITEM)),
    "units": Column("bigint", pa.int64(), _units),
    "total_cents": Column("bigint", pa.int64()),
}
"""Fields of all three kinds of events; which of them are there depends on the topic."""

PLACE: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "arrived": ("timestamp", TIMESTAMP),
}
EVENT: Final = tuple(name for name in COLUMNS if name != "rejected")
COUNTED: Final = (
    "event_id",
    "event_time",
    "user_id",
    "session_id",
    "product_id",
    "order_id",
    "items",
    "units",
    "total_cents",
)


def judged(
    records: DataFrame,
    names: Names,
    columns: Sequence[str] = EVENT,
    outcomes: Collection[str] = OUTCOMES,
    carried: Sequence[str] = (),
) -> DataFrame:
    """Records of the connector by place, with `columns` of what they say and became, where it is
    one of `outcomes`; and columns of theirs as they are."""
    return _through(records, names, columns, outcomes, carried)


def accepted(records: DataFrame, names: Names) -> DataFrame:
    """The events that count; some of them may be there twice."""
    return _through(records, names, COUNTED, (ACCEPTED,))


def _through(
    records: DataFrame,
    names: Names,
    columns: Sequence[str],
    wanted: Collection[str],
    carried: Sequence[str] = (),
) -> DataFrame:
    """The topic's name comes without the shop's prefix."""
    types = {name: spark for name, (spark, _) in PLACE.items()}
    types |= {name: records.schema[name].dataType.simpleString() for name in carried}
    types |= {name: COLUMNS[name].spark for name in columns}
    prefix = names.prefix

    def through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield judged_batch(batch, prefix, columns, wanted, carried)

    schema = ", ".join(f"{name} {spark}" for name, spark in types.items())
    return records.select(*RECORD, *carried).mapInArrow(through, schema)


def judged_batch(
    batch: pa.RecordBatch,
    prefix: str,
    columns: Sequence[str],
    wanted: Collection[str],
    carried: Sequence[str] = (),
) -> pa.RecordBatch:
    names = [str(name).removeprefix(prefix) for name in batch.column("topic").to_pylist()]
    arrived = batch.column("timestamp").cast(TIMESTAMP)
    told = zip(
        names, batch.column("value").to_pylist(), arrived.cast(pa.int64()).to_pylist(), strict=True
    )
    rows = [
        Judged(topic, value, judge(topic, value, -1 if at is None else at))
        for topic, value, at in told
    ]
    kept = [index for index, row in enumerate(rows) if row.verdict.outcome in wanted]
    place = [
        pa.array(names, pa.string()),
        batch.column("partition"),
        batch.column("offset"),
        arrived,
        *(batch.column(name) for name in carried),
    ]
    if len(kept) < len(rows):
        place = [column.take(pa.array(kept, pa.int64())) for column in place]
        rows = [rows[index] for index in kept]
    events = [row.verdict.event for row in rows]
    made = []
    for name in columns:
        of = COLUMNS[name].of
        values = [event.get(name) for event in events] if of is None else list(map(of, rows))
        made.append(pa.array(values, COLUMNS[name].arrow))
    return pa.RecordBatch.from_arrays([*place, *made], names=[*PLACE, *carried, *columns])
