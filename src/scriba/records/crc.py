"""CRC-32C (Castagnoli), the checksum of record batches and of producer snapshots.

The package `crc32c` uses the processor's instruction, takes writable memoryviews without a copy
and gives up the interpreter lock on large input. Everything here imports it from this file, so
that another implementation has one place to go to.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
