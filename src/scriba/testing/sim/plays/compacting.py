"""A log that is compacted by hand: what tests of the cleaner share."""

from collections.abc import Iterable

from scriba.instant import Instant
from scriba.outcome import at_once
from scriba.records.batch import Record, encode_batch, read_header
from scriba.records.compression import Codec
from scriba.runtime.ports import Disk
from scriba.storage.compaction.choice import Dirt
from scriba.storage.compaction.cleaner import Finished, Means, Rewritten, clean
from scriba.storage.compaction.log import dirt_of, work_on
from scriba.storage.log import Log

SEED = bytes(range(16))
MEANS = Means(map_bytes=1 << 20, map_load=0.9, buffer_bytes=64 << 10, step_bytes=1 << 20)


def keyed(pairs: Iterable[tuple[str, str | None]], at_ms: int) -> list[Record]:
    return [
        Record(0, at_ms, key.encode(), None if value is None else value.encode())
        for key, value in pairs
    ]


def append(
    log: Log,
    pairs: Iterable[tuple[str, str | None]],
    now: Instant,
    codec: Codec = Codec.NONE,
    **more: object,
) -> int:
    batch = encode_batch(keyed(pairs, now.wall_ms), codec=codec, **more)  # type: ignore[arg-type]
    return log.append(memoryview(batch), read_header(batch), 0, now)[0]


async def look(log: Log, now: Instant, checkpoint: int | None = None) -> Dirt:
    return await dirt_of(log, log.last_stable_offset(log.end_offset), checkpoint, now)


async def compact(
    disk: Disk,
    log: Log,
    now: Instant,
    checkpoint: int | None = None,
    means: Means = MEANS,
    bound: int | None = None,
) -> Finished:
    """One pass over all that may be compacted, as the broker runs it."""
    dirt = await look(log, now, checkpoint)
    end = dirt.first_uncleanable if bound is None else bound
    await log.flush(log.sealed_offset)
    generation = log.compaction.generation
    work = at_once(work_on(log, min(dirt.first_dirty, end), end, means, SEED, now))
    for step in clean(disk, work):
        if isinstance(step, Rewritten):
            await log.take_compacted(step, generation, now)
        elif isinstance(step, Finished):
            return step
    raise AssertionError("a cleaner ends by saying so")
