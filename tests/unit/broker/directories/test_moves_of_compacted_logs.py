"""Compacted replicas that move between directories: a deleted key stays deleted."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.jobs.schedule import cleaning_pass
from scriba.broker.partitions.directories.dir_moves import DirMoves, Move
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch, read_header
from scriba.storage.log import Log
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.directories.moving import (
    BROKER,
    DIRS,
    alter,
    configure,
    elsewhere,
    held_back,
    home,
    restarted,
    slow,
)
from tests.unit.broker.stored_records import stored_records

NEVER_BY_ITSELF: dict[str, Any] = {"log_cleaner_backoff_ms": 1 << 40}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}


def write(brokers: Brokers, key: str, value: bytes | None) -> None:
    now = brokers.nodes[1].world.clock.now()
    data = encode_batch([Record(0, now.wall_ms, key.encode(), value, ())])
    brokers.partition(1, "t").append(memoryview(data), read_header(data), now)


def write_sixty(brokers: Brokers, prefix: str) -> None:
    for n in range(60):
        write(brokers, f"{prefix}{n}", b"." * 300)


async def with_a_deleted_key(brokers: Brokers) -> None:
    """A log of 122 records, in small segments: `K` is written first, and deleted at offset 61."""
    await brokers.create("t", (1,), configs=COMPACTED)
    write(brokers, "K", b"first")
    write_sixty(brokers, "a")
    write(brokers, "K", None)
    write_sixty(brokers, "b")


async def clean(brokers: Brokers) -> None:
    node = brokers.nodes[1]
    await cleaning_pass(node, node.world.clock.now())


async def state(brokers: Brokers) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for each in await stored_records(brokers.partition(1, "t"))}


async def cleaned_later(brokers: Brokers) -> None:
    """Tombstones go with the second compaction after the one that has seen them."""
    for _ in range(3):
        write_sixty(brokers, "c")
        await asyncio.sleep(10)
        await clean(brokers)


async def is_copied_up_to(brokers: Brokers, offset: int) -> None:
    node = brokers.nodes[1]

    def move() -> Move:
        (found,) = (each for directory in node.replicas.dirs for each in moves.into(directory))
        return found

    moves = node.replicas.moves
    await brokers.until(lambda: move().log.end_offset > offset, seconds=600)


async def settled_in(brokers: Brokers, target: str) -> None:
    await slow(brokers, 1 << 40)
    await brokers.until(lambda: home(brokers) == target, seconds=600)
    await asyncio.sleep(5)


async def begins(brokers: Brokers, copied: int) -> str:
    """A move that is slow, of which this much is done; its target."""
    target = elsewhere(home(brokers))
    await slow(brokers, 1000)
    assert await alter(brokers, target) is ErrorCode.NONE
    await is_copied_up_to(brokers, copied)
    return target


def test_compaction_waits_for_a_move_whose_copy_is_still_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        await with_a_deleted_key(brokers)
        target = await begins(brokers, copied=80)
        gate = held_back(monkeypatch)
        await restarted(brokers)
        done = brokers.nodes[1].counters.compactions
        await clean(brokers)
        assert brokers.nodes[1].counters.compactions == done
        gate.set()
        await settled_in(brokers, target)
        assert (await state(brokers))[b"K"] is None
        await cleaned_later(brokers)
        assert brokers.nodes[1].counters.compactions > done
        assert (await state(brokers)).get(b"K") is None

    play(script, count=1, **DIRS, **NEVER_BY_ITSELF)


def test_what_was_copied_before_a_compaction_that_the_move_missed_is_copied_anew() -> None:
    """As where the target was away for a run of the broker: nobody held the cleaner back."""

    async def script(brokers: Brokers) -> None:
        await with_a_deleted_key(brokers)
        target = await begins(brokers, copied=40)
        resume, resumed = DirMoves.resume, []

        def resume_later(*args: Any) -> None:
            resumed.append(lambda: resume(*args))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DirMoves, "resume", resume_later)
            await restarted(brokers)
            await brokers.until(lambda: bool(resumed))
        await cleaned_later(brokers)
        assert b"K" not in await state(brokers), "its tombstone is gone as well"
        go_on: Callable[[], None] = resumed[0]
        go_on()
        await settled_in(brokers, target)
        assert b"K" not in await state(brokers)

    play(script, count=1, **DIRS, **NEVER_BY_ITSELF)


def test_a_move_copies_nothing_while_a_compaction_may_still_swap_segments() -> None:
    async def script(brokers: Brokers) -> None:
        await with_a_deleted_key(brokers)
        flush, asked, gate = Log.flush, asyncio.Event(), asyncio.Event()

        async def flush_later(store: Log, up_to: int | None = None) -> None:
            asked.set()
            await gate.wait()
            await flush(store, up_to)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Log, "flush", flush_later)
            cleaning = asyncio.create_task(clean(brokers))
            await asked.wait()  # of the first swap
        target = elsewhere(home(brokers))
        await configure(brokers, BROKER, "1", replica_alter_log_dirs_io_max_bytes_per_second=1000)
        assert await alter(brokers, target) is ErrorCode.NONE
        await asyncio.sleep(3)
        gate.set()
        await cleaning
        swapped = [each.offset for each in await stored_records(brokers.partition(1, "t"))]
        await settled_in(brokers, target)
        moved = [each.offset for each in await stored_records(brokers.partition(1, "t"))]
        assert moved == swapped

    play(script, count=1, **DIRS, **NEVER_BY_ITSELF)
