"""Batches that come to a log with their offsets: from a leader, or as markers."""

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.native import implementation
from scriba.records.batch import EndTxnMarker, read_end_txn_marker
from scriba.records.header import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    check_crc,
    read_header,
    sane_header,
)


def check_batches(view: memoryview, end_offset: int) -> list[tuple[int, BatchHeader]]:
    """The whole batches in `view`, each with its position; they must go on from `end_offset`."""
    batches = implementation.chosen.checked_batches(view, end_offset)
    position = 0
    if batches:
        position, last = batches[-1]
        position += last.length + LOG_OVERHEAD
        end_offset = last.base_offset + last.last_offset_delta + 1
    if len(view) - position >= HEADER_SIZE:
        _check_rest(view, position, end_offset)
    return batches


def _check_rest(view: memoryview, position: int, end_offset: int) -> None:
    """Why the walk over batches ended at `position`: part of one is no fault, all else is."""
    header = read_header(view, position)
    if not sane_header(header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no record batch at position {position}")
    if position + header.size > len(view):
        return
    offset = header.base_offset
    if offset < end_offset:
        text = f"offset {offset} does not follow {end_offset - 1}"
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
    if not check_crc(view, position, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"wrong checksum at offset {offset}")
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no offset follows those from {offset} on")


def read_marker(view: memoryview) -> EndTxnMarker | None:
    """How a control batch ends a transaction; None if it says something else."""
    try:
        return read_end_txn_marker(view)
    except ParseError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
