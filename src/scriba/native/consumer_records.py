"""The records of a fetched batch as a consumer hands them out, in Python.

`_native` does the same in C where it was built. `RecordFields` carries the fields of the
class that an application sees, which inherits it and adds no field of its own, so that the
extension can make its objects without calling it.
"""

from collections.abc import Callable
from typing import TypeVar

from scriba.native.fallback import decode_records
from scriba.records.header import Buffer

R = TypeVar("R")

Make = Callable[..., R]
"""Of topic, partition, offset, timestamp and its type, key, value, headers, leader epoch."""


class RecordFields:
    """Where the fields of a consumer's record live."""

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )


def present_records(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    start: int,
    make: Make[R],
    topic: str,
    partition: int,
    timestamp_type: int,
    leader_epoch: int,
    /,
) -> list[R]:
    """The records that fill `data`, as `decode_records` reads them, from offset `start` on."""
    return [
        make(topic, partition, offset, time, timestamp_type, key, value, headers, leader_epoch)
        for offset, time, key, value, headers in decode_records(
            data, count, base_offset, base_timestamp, append_time
        )
        if offset >= start
    ]
