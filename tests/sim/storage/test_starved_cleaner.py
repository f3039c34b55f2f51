"""A worker that gets only idle time is given up where there is none, and only there."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from scriba.broker.jobs.compaction import LEAST_BYTES, PATIENCE_MS, Starved, in_time
from scriba.storage.compaction.cleaner import Progress
from scriba.testing.sim.world.world import SimClock, SimWorld


async def worker(clock_ms: float, step: Progress, count: int) -> AsyncIterator[Progress]:
    for _ in range(count):
        await asyncio.sleep(clock_ms / 1000)
        yield step


def steps_taken(pause_ms: float, moved: int, count: int, *, idle: bool, held_ms: float = 0) -> int:
    """How many steps come out of a worker that needs `pause_ms` for each of `moved` bytes."""
    sim = SimWorld(1)

    async def play() -> int:
        taken = 0
        steps = worker(pause_ms, Progress(moved, 0), count)
        async for _ in in_time(SimClock(sim.loop), steps, idle):
            taken += 1
            await asyncio.sleep(held_ms / 1000)
        return taken

    return sim.run(play())


def test_one_that_says_nothing_for_too_long_is_starved() -> None:
    with pytest.raises(Starved):
        steps_taken(PATIENCE_MS + 1, LEAST_BYTES, 1, idle=True)


def test_one_that_says_a_little_all_the_time_is_starved_as_well() -> None:
    with pytest.raises(Starved):
        steps_taken(PATIENCE_MS / 100, LEAST_BYTES // 101, 1000, idle=True)


def test_a_slow_one_that_moves_enough_goes_on() -> None:
    assert steps_taken(PATIENCE_MS / 100, LEAST_BYTES // 99, 1000, idle=True) == 1000


def test_one_that_is_held_back_by_its_owner_is_not_starved() -> None:
    assert steps_taken(1, 1, 100, idle=True, held_ms=PATIENCE_MS) == 100


def test_one_that_may_take_time_from_others_is_waited_for() -> None:
    assert steps_taken(10 * PATIENCE_MS, 1, 5, idle=False) == 5
