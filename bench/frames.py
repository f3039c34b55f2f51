"""Requests prepared before the clock starts: whole frames in files, for `load.c` to send."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

from tools.kafka import rawkafka
from tools.kafka.rawkafka import Batch, Codec

PRODUCE_VERSION, FETCH_VERSION = 13, 17
"""The newest that both brokers and the encoder know: by topic id, as Java's clients do."""

PRODUCE_ERROR_AT = 4 + 1 + 1 + 16 + 1 + 4
"""Correlation id, tags, topic count, topic id, partition count, partition index."""

FETCH_ERROR_AT = 4 + 1 + 4 + 2 + 4 + 1 + 16 + 1 + 4
"""Correlation id, tags, throttle, error, session, then as above."""

EMPTY_FETCH = 80
"""No answer to a Fetch of one partition that brings records is as short as this."""

_words = random.Random(7)
_NOISE = _words.randbytes(1 << 20)


def _visit() -> bytes:
    """A line of a web log, about 300 bytes, of which lz4 saves some two thirds."""
    pick = _words.randrange
    return (
        b'{"session": "%016x", "user": %d, "page": "/shop/item/%d", "status": 200, "ms": %d, '
        b'"agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/%d.0", "referrer": '
        b'"https://example.org/search?q=%d", "country": "%s", "bytes": %d}'
        % (pick(1 << 64), pick(10**6), pick(10**5), pick(2000), 90 + pick(40), pick(10**4),
           (b"DE", b"FR", b"IN", b"BR", b"US")[pick(5)], pick(10**5))
    )  # fmt: skip


def plain_batch(total: int, value: int) -> Batch:
    """Records with values of `value` bytes, which make a batch of exactly `total` bytes."""
    room = total - 61
    records: list[bytes] = []
    while room:
        offset = len(records) * value % (len(_NOISE) - 2 * value)
        one = rawkafka.record(len(records), _NOISE[offset : offset + value])
        if room - len(one) < value + 32:
            one = _record_of(len(records), room)
        records.append(one)
        room -= len(one)
    return Batch(b"".join(records), len(records))


def _record_of(delta: int, size: int) -> bytes:
    """A record of exactly `size` bytes; lengths whose own length jumps are split by a key."""
    for key in (None, b"", b"k", b"kk"):
        for value in range(size, max(size - 24, 0), -1):
            one = rawkafka.record(delta, _NOISE[:value], key)
            if len(one) == size:
                return one
    raise ValueError(f"no record of {size} bytes")


def lz4_batch(raw: int) -> Batch:
    """About `raw` bytes of records that look like a web log."""
    records: list[bytes] = []
    size = 0
    while size < raw:
        records.append(rawkafka.record(len(records), _visit()))
        size += len(records[-1])
    return Batch(b"".join(records), len(records), codec=Codec.LZ4)


def produce(batch: Batch, topic: UUID, partition: int = 0, acks: int = 1) -> bytes:
    request = rawkafka.produce(batch.encode(), topic_id=topic, partition=partition, acks=acks)
    return rawkafka.encode(request, PRODUCE_VERSION)


def sequence(
    batch: Batch, topic: UUID, producer: tuple[int, int], count: int, partition: int = 0
) -> Iterator[bytes]:
    """The frames of an idempotent producer, acks=all: each batch follows on the last."""
    for number in range(count):
        mine = batch.but(
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=number * batch.count,
        )
        yield produce(mine, topic, partition, acks=-1)


def fetch(
    offset: int, topic: UUID, partitions: int = 1, max_bytes: int = 1 << 20, wait_ms: int = 0
) -> bytes:
    request = rawkafka.fetch(
        offset,
        topic_id=topic,
        partitions=range(partitions),
        max_bytes=max_bytes,
        max_wait_ms=wait_ms,
    )
    return rawkafka.encode(request, FETCH_VERSION)


def write(path: Path, frames: Iterable[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(frames)
    return path
