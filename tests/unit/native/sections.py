"""Records as a batch holds them behind its header, made to be read by either implementation."""

from collections.abc import Iterable

from scriba.native import implementation
from scriba.native.implementation import Implementation
from scriba.records.record import Record


def section(given: Iterable[Record], chosen: Implementation = implementation.FALLBACK) -> bytearray:
    builder = chosen.Builder()
    for each in given:
        builder.append(each.timestamp, each.key, each.value, each.headers)
    return builder.take()
