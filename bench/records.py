"""CPU per record of reading, writing and checking, extension and fallback beside other codecs.

    python -m bench.records

Prints a table. Times are of this thread's processor time, the best of several rounds. Reading is
timed to the last field of every record; writing gives a whole batch with its checksum. librdkafka
has no way in to its codec alone: its row is in the benchmark of whole clients.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from aiokafka.record import default_records as aiokafka_codec
from kafka.record import default_records as kafka_python_codec

from scriba.native import implementation
from scriba.records.batch import HEADER_SIZE, Record, build_batch, decode_records, encode_batch
from scriba.records.compression import Codec
from scriba.records.header import read_header
from scriba.records.validate import prepare
from scriba.settings import TopicSettings

NOW = 1_700_000_000_000
BATCH_BYTES = 256 << 10
ROUNDS = 20
ROUND_SECONDS = 0.02

Work = Callable[[], object]


def words(size: int) -> bytes:
    """Text that compresses about as logs do."""
    line = b"2026-11-15 10:02:11 INFO order %d accepted, customer %d, total %d cents; "
    text = b"".join(line % (n * 7919, n * 104729 % 10007, n * n % 99991) for n in range(size // 60))
    return (text + b" " * size)[:size]


def made(size: int, keyed: bool) -> list[Record]:
    count = BATCH_BYTES // size
    text = words(BATCH_BYTES + size)
    return [
        Record(n, NOW + n // 10, b"key-%08d" % n if keyed else None, text[n * 50 : n * 50 + size])
        for n in range(count)
    ]


def calls_in_a_round(work: Work) -> int:
    work()
    began = time.thread_time()
    work()
    return max(1, int(ROUND_SECONDS / max(time.thread_time() - began, 1e-7)))


def seconds(works: Sequence[Work]) -> list[float]:
    """Processor time of one call of each, in turns: a busy neighbour troubles all of them alike."""
    calls = [calls_in_a_round(work) for work in works]
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for at, work in enumerate(works):
            began = time.thread_time()
            for _ in range(calls[at]):
                work()
            best[at] = min(best[at], (time.thread_time() - began) / calls[at])
    return best


# ---- the codecs ----


def using(chosen: implementation.Implementation, work: Work) -> Work:
    def run() -> object:
        implementation.chosen = chosen
        return work()

    return run


def append_each(records: Sequence[Record]) -> bytearray:
    builder = implementation.chosen.Builder(HEADER_SIZE)
    append = builder.append
    for _, timestamp, key, value, headers in records:
        append(timestamp, key, value, headers)
    return build_batch(builder)


def fields(records: Iterable[Record]) -> None:
    for _offset, _timestamp, _key, _value, _headers in records:
        pass


def foreign_write(codec: type, records: Sequence[Record]) -> object:
    builder = codec(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * BATCH_BYTES,
    )
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, [])
    return builder.build()


def foreign_read(codec: type, batch: bytes) -> None:
    for record in codec(batch):
        _ = (record.offset, record.timestamp, record.key, record.value, record.headers)


def works(records: Sequence[Record]) -> Iterator[tuple[str, str, Work]]:
    plain = encode_batch(records)
    frozen = bytes(plain)
    view = memoryview(plain)
    packed = {codec: memoryview(encode_batch(records, codec=codec)) for codec in Codec if codec}
    header = read_header(plain)
    section = view[HEADER_SIZE:]
    rules = (header.count, header.base_timestamp, False, 0, 2 * NOW)
    topic = TopicSettings()
    for chosen, name in ((implementation.NATIVE, "native"), (implementation.FALLBACK, "fallback")):
        if chosen is None:
            continue
        yield "write", name, using(chosen, lambda: encode_batch(records))
        yield "write, one by one", name, using(chosen, lambda: append_each(records))
        yield "read", name, using(chosen, lambda: fields(decode_records(plain)))
        check = chosen.check_records
        yield "check", name, lambda check=check: check((section,), *rules)  # type: ignore[misc]
        yield "produce: verdict", name, using(chosen, lambda: prepare(view, topic, NOW))
        for codec, batch in packed.items():
            label = f"produce: verdict, {codec.name.lower()}"
            yield label, name, using(chosen, lambda batch=batch: prepare(batch, topic, NOW))  # type: ignore[misc]
    for name, codec in (("aiokafka", aiokafka_codec), ("kafka-python", kafka_python_codec)):
        write, read = codec.DefaultRecordBatchBuilder, codec.DefaultRecordBatch
        yield "write, one by one", name, lambda write=write: foreign_write(write, records)  # type: ignore[misc]
        yield "read", name, lambda read=read: foreign_read(read, frozen)  # type: ignore[misc]


def main() -> None:
    chosen = implementation.chosen
    columns = ("native", "fallback", "aiokafka", "kafka-python")
    print(f"nanoseconds of CPU per record, batches of {BATCH_BYTES >> 10} KB")
    for size in (100, 1000):
        for keyed in (False, True):
            records = made(size, keyed)
            table: dict[str, dict[str, float]] = {}
            rows = list(works(records))
            spent = seconds([call for _, _, call in rows])
            for (work, who, _), took in zip(rows, spent, strict=True):
                table.setdefault(work, {})[who] = took / len(records) * 1e9
            print(f"\n{size} B values, {'keys' if keyed else 'no keys'}, {len(records)} records")
            print(f"  {'':28}" + "".join(f"{column:>14}" for column in columns))
            for work, row in table.items():
                cells = (f"{row[who]:14.1f}" if who in row else f"{'-':>14}" for who in columns)
                print(f"  {work:28}" + "".join(cells))
    implementation.chosen = chosen


if __name__ == "__main__":
    main()
