"""One function that knows the good case alone, in Python: the twin of what `_native` has.

It answers None for everything else: what is wrong is found out at leisure by whoever called.
"""

from scriba.errors import KafkaError, ParseError
from scriba.native import fallback as pure
from scriba.records.compression import Codec, decompress
from scriba.records.header import Buffer


def check_lz4(
    frame: Buffer,
    max_bytes: int,
    count: int,
    base_timestamp: int,
    need_keys: bool,
    earliest: int,
    latest: int,
) -> tuple[int, int, int] | None:
    """As `check_records`, of records that are an lz4 frame; None if it is no good one.

    Nor if it grows to more than `max_bytes`. ParseError is for the records in it.
    """
    try:
        data = decompress(Codec.LZ4, frame, max_bytes)
    except (KafkaError, ParseError):
        return None
    return pure.check_records((data,), count, base_timestamp, need_keys, earliest, latest)
