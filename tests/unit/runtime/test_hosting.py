"""Loops beside the caller's program: they answer, say when they do not, and end."""

import asyncio
import threading

import pytest

from scriba.runtime.loop.hosting import LoopThread, in_a_thread, unique, until


@pytest.fixture
def home() -> LoopThread[asyncio.AbstractEventLoop]:
    return LoopThread(asyncio.new_event_loop(), "home")


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise TimeoutError("its own")


def test_it_answers_and_fails_and_ends(home: LoopThread[asyncio.AbstractEventLoop]) -> None:
    assert home.call(answer(7), 60) == 7
    with pytest.raises(TimeoutError, match="its own"):
        home.call(fail(), 60)
    home.end()
    assert home.loop.is_closed()
    assert "home" not in {thread.name for thread in threading.enumerate()}


def test_who_does_not_answer_is_told(home: LoopThread[asyncio.AbstractEventLoop]) -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        home.call(asyncio.sleep(600), 0.05)
    assert home.call(answer(1), 60) == 1
    home.end()


def test_what_still_runs_at_the_end_is_cancelled(
    home: LoopThread[asyncio.AbstractEventLoop],
) -> None:
    ended: list[str] = []

    async def begin() -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(600)
            finally:
                ended.append("cancelled")

        home.task = asyncio.ensure_future(work())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    home.call(begin(), 60)
    home.end()
    assert ended == ["cancelled"]


def test_held_it_stands_still_until_it_is_released(
    home: LoopThread[asyncio.AbstractEventLoop],
) -> None:
    home.hold()
    with pytest.raises(TimeoutError):
        home.call(answer(1), 0.05)
    home.release()
    assert home.call(answer(2), 60) == 2
    home.hold()
    home.end()
    assert home.loop.is_closed()


async def test_waiting_in_a_thread_holds_no_loop() -> None:
    gate = threading.Event()
    asyncio.get_running_loop().call_soon(gate.set)
    assert await in_a_thread(lambda: gate.wait(300))


def test_small_things() -> None:
    assert unique() != unique()
    assert len(list(until(0))) == 1
    assert len(list(until(0.02))) >= 2
