"""Batches that come to a log with their offsets: from a leader, or as markers."""

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.records.batch import EndTxnMarker, read_end_txn_marker
from scriba.records.header import BatchHeader, check_crc, walk


def check_batches(view: memoryview, end_offset: int) -> list[tuple[int, BatchHeader]]:
    """The whole batches in `view`, each with its position; they must go on from `end_offset`."""
    batches = []
    try:
        for position, header in walk(view):
            if header.base_offset < end_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {header.base_offset} does not follow {end_offset - 1}",
                )
            if not check_crc(view, position, header):
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"wrong checksum at offset {header.base_offset}"
                )
            end_offset = header.next_offset
            batches.append((position, header))
    except ParseError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return batches


def read_marker(view: memoryview) -> EndTxnMarker | None:
    """How a control batch ends a transaction; None if it says something else."""
    try:
        return read_end_txn_marker(view)
    except ParseError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
