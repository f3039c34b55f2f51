"""What rows to write must look like, and where they may go."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from scriba.spark.link import Link
from scriba.spark.options import OptionError, Subscription, WriteOptions
from scriba.spark.reading import lookup

COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
}
"""Columns that are written, with their types; others are left out."""


def check_columns(schema: StructType, options: WriteOptions) -> set[str]:
    """The columns that count, by lower-case name; OptionError when they do not do."""
    found = set()
    for field in schema.fields:
        name = field.name.lower()
        if name not in COLUMNS:
            continue
        if not isinstance(field.dataType, COLUMNS[name]):
            wanted = " or ".join(kind.typeName() for kind in COLUMNS[name])
            raise OptionError(
                f"column {name} is of type {field.dataType.simpleString()}; cast it to {wanted}"
            )
        found.add(name)
    if "value" not in found:
        raise OptionError("there is no column value; name what to write as value")
    if "topic" not in found and options.topic is None:
        raise OptionError("rows name no topic; set the option topic, or add a column topic")
    return found


def targets(link: Link, options: WriteOptions) -> dict[str, int]:
    """The topics to write to, with how many partitions each has now; OptionError if one is not
    there. No topic is made by writing to it: with what partitions, and to keep what how long?"""
    limit = options.settings().max_block_ms

    async def look() -> lookup.Topics:
        link.cluster.stale()  # what it knows of leaders may be of a topic of before
        return await lookup.describe_topics(
            link.cluster, Subscription(topics=options.targets), limit
        )

    found = link.run(look())
    for name in options.targets:
        if name not in found:
            raise OptionError(
                f"topic {name} does not exist; create it (scriba topic create {name}), or check "
                "the name in the options topic and topics"
            )
    return {name: len(found[name].partitions) for name in options.targets}
