"""Garbage collections of a process that serves: what lasts is not walked again."""

import asyncio
import contextlib
import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scriba.runtime.loop import collector
from scriba.runtime.memory import private_bytes

MANY = 50_000
PATIENCE_S = 60


@pytest.fixture
def frozen() -> Iterator[None]:
    """A collector as a node has it, and afterwards as it was."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    collector.hold_collector()
    collector.freeze()
    yield
    gc.unfreeze()
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)


class Ring:
    """An object that keeps itself."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


def test_what_outlasts_a_collection_is_not_walked_again(frozen: None) -> None:
    kept = [[each] for each in range(MANY)]
    gc.collect(1)
    assert len(gc.get_objects()) < MANY // 2
    assert len(kept) == MANY


def test_what_is_made_by_itself_goes_out_of_sight_as_well(frozen: None) -> None:
    kept = [[each] for each in range(10 * MANY)]
    assert len(gc.get_objects()) < MANY
    assert len(kept) == 10 * MANY


def test_what_lasts_for_a_while_and_then_goes_is_found(frozen: None) -> None:
    """Such as the exceptions of somebody who tries again every second."""
    Ring.alive, kept = 0, deque[list[Ring]](maxlen=5)
    for _ in range(500):
        kept.append([Ring() for _ in range(100)])
        collector.collect_young(older=True)
    assert Ring.alive < 5 * collector.LASTING // 2, "most of 50,000 are gone"


def test_a_young_cycle_is_collected_as_ever(frozen: None) -> None:
    gone = weakref.ref(Ring())
    gc.collect(1)
    assert gone() is None


def test_a_cycle_that_was_frozen_ends_with_a_look_at_everything(frozen: None) -> None:
    ring = Ring()
    gc.collect()
    gone = weakref.ref(ring)
    del ring
    gc.collect()
    assert gone() is not None
    assert collector.collect_all() > 0
    assert gone() is None
    assert len(gc.get_objects()) < MANY // 10, "what is left is frozen again"


async def test_growth_ends_what_no_other_collection_finds(frozen: None) -> None:
    ring = Ring()
    gc.collect()
    gone = weakref.ref(ring)
    del ring
    await _while_it_collects(0, lambda: gone() is None)


async def test_young_ones_do_not_gather_while_as_many_old_ones_go(frozen: None) -> None:
    old = [[each] for each in range(MANY)]
    gc.collect(1)
    kept = []
    for each in range(MANY):
        old.pop()
        kept.append([each])
    assert len(gc.get_objects()) >= MANY, "nothing has called the collector"
    await _while_it_collects(1 << 60, lambda: len(gc.get_objects()) < MANY // 2)


async def _while_it_collects(memory_bytes: int, done: Callable[[], bool]) -> None:
    work = asyncio.create_task(collector.collect_as_it_grows(memory_bytes, 0.001))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def test_a_process_knows_what_it_holds_by_itself(tmp_path: Path) -> None:
    before = private_bytes()
    held = bytearray(b"x") * (64 << 20)
    assert private_bytes() - before > len(held) // 2
    assert private_bytes(str(tmp_path / "none")) > len(held)
