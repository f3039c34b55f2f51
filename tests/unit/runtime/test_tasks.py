"""Supervised background tasks."""

import asyncio
import logging

import pytest

from scriba.runtime.loop.tasks import Tasks


async def test_an_unexpected_failure_reaches_the_one_who_watches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks()

    async def breaks() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken pass")

    watching = asyncio.ensure_future(tasks.watch())
    tasks.spawn(asyncio.sleep(3600), name="sleeper")
    tasks.spawn(breaks(), name="retention")
    with caplog.at_level(logging.CRITICAL), pytest.raises(ValueError, match="broken pass"):
        await watching
    assert "retention" in caplog.text
    with pytest.raises(ValueError, match="broken pass"):
        await tasks.watch()
    await tasks.stop()
    assert len(tasks) == 0


async def test_a_task_that_ends_or_is_cancelled_is_no_failure() -> None:
    tasks = Tasks()
    watching = asyncio.ensure_future(tasks.watch())
    assert await tasks.spawn(asyncio.sleep(0, "done"), name="short") == "done"
    tasks.spawn(asyncio.sleep(3600), name="long").cancel()
    await asyncio.sleep(0)
    await tasks.stop()
    assert not watching.done()
    watching.cancel()


async def test_stopping_waits_for_the_last_words_of_each_task() -> None:
    tasks = Tasks()
    said: list[str] = []

    async def farewell() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            said.append("bye")

    tasks.spawn(farewell(), name="a")
    tasks.spawn(farewell(), name="b")
    await asyncio.sleep(0)
    await tasks.stop()
    assert said == ["bye", "bye"]
