"""Waiting for an offset."""

import asyncio

import pytest

from scriba.runtime.watermark import Watermark


async def test_waiters_wake_at_their_offset_in_order_and_no_sooner() -> None:
    mark = Watermark(5)
    woken: list[str] = []

    async def wait(name: str, offset: int) -> None:
        await mark.reach(offset)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, offset in (("c", 9), ("a", 6), ("b", 9), ("d", 20)):
            group.create_task(wait(name, offset))
        await asyncio.sleep(0)
        mark.advance(5)
        await asyncio.sleep(0)
        assert woken == []
        mark.advance(19)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == ["a", "c", "b"]
        mark.advance(20)
    assert mark.waiting() == 0


async def test_a_passed_offset_is_reached_at_once() -> None:
    mark = Watermark()
    mark.advance(3)
    assert mark.reach(3).done()
    mark.advance(1)
    assert mark.value == 3


async def test_those_who_give_up_do_not_pile_up() -> None:
    mark = Watermark()
    kept = [mark.reach(1_000_000 + n) for n in range(10)]
    for n in range(10_000):
        mark.reach(1_000 + n).cancel()
    assert len(mark.waits) <= 128
    assert mark.waiting() == 10
    mark.advance(1_000_004)
    assert [waiter.done() for waiter in kept] == [True] * 5 + [False] * 5


async def test_failure_ends_waits_now_and_later_but_not_what_was_reached() -> None:
    mark = Watermark(2)
    waiters = [mark.reach(n) for n in (3, 4)]
    mark.fail(ConnectionError("no longer leader"))
    for waiter in (*waiters, mark.reach(5)):
        with pytest.raises(ConnectionError, match="no longer leader"):
            await waiter
    await mark.reach(2)


async def test_one_future_may_wait_on_many_marks() -> None:
    marks = [Watermark() for _ in range(3)]
    any_of: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for mark in marks:
        mark.watch(1, any_of)
    marks[1].advance(1)
    assert any_of.done()
    for mark in marks:
        mark.advance(2)


async def test_a_failure_that_is_told_again_and_again_does_not_grow() -> None:
    mark = Watermark()
    mark.fail(ValueError("gone"))
    frames: list[int] = []
    for _ in range(100):
        try:
            await mark.reach(1)
        except ValueError as error:
            trace, count = error.__traceback__, 0
            while trace is not None:
                trace, count = trace.tb_next, count + 1
            frames.append(count)
    assert frames == [frames[0]] * 100
